"""Routes through the labs, from `solutions/routes.toml`: each day's labs."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.exercises import catalogue
from labkit.exercises.catalogue import Section
from labkit.system import paths
from labkit.system.errors import LabError

FILE = "routes.toml"  # the file in solutions/


@dataclass(frozen=True)
class Part:
    """A part of a day."""

    title: str
    lab: str = ""  # the lab's number; empty for a break or a talk
    sections: tuple[Section, ...] = ()  # of the lab, that are taught
    minutes: float = 0  # the length of a break or a talk
    is_break: bool = False


WELCOME = Part("Welcome: who is here, joining the room, set-up", minutes=10)
CLOSING = Part("The room's figures; what to do next", minutes=15)


@dataclass(frozen=True)
class Route:
    """A route through the labs."""

    title: str
    audience: str
    left_out: str
    hours: float  # the length of a day, including breaks
    days: tuple[tuple[Part, ...], ...]  # each day's parts, without breaks

    @property
    def labs(self) -> list[str]:
        """The labs' numbers in order, without duplicates."""
        return list(dict.fromkeys(part.lab for day in self.days for part in day if part.lab))


def find(name: str) -> Route:
    """Return a route by name.

    Raises
    ------
    LabError
        If there is no such route, or its entry can't be read.
    """
    routes = _read()
    if name not in routes:
        raise LabError(f"there is no route {name!r}: the routes are {', '.join(routes)}.")
    entry = routes[name]
    in_full, also = entry.get("in_full", ()), entry.get("also", {})
    days = [(*(_lab_part(lab, lab in in_full, also.get(lab, ())) for lab in labs), CLOSING) for labs in entry["days"]]
    others = [lab.number for lab in catalogue.labs() if not any(lab.number in labs for labs in entry["days"])]
    left_out = f"labs {', '.join(others)}, and optional sections"
    if in_full:
        left_out += f", except those of {', '.join(in_full)}"
    if also:
        left_out += f", except {', '.join(f'{lab} · {section}' for lab in also for section in also[lab])}"
    return Route(entry["title"], entry["audience"], left_out, entry["hours"], ((WELCOME, *days[0]), *days[1:]))


def names() -> list[str]:
    """Return the names of all routes."""
    return list(_read())


def _read() -> dict[str, Any]:
    return tomllib.loads((paths.SOLUTIONS / FILE).read_text(encoding="utf-8"))


def of_labs(labs: Sequence[str], hours: float) -> Route:
    """Return a one-day route through the core sections of labs."""
    parts = [_lab_part(number.strip()) for number in labs]
    title = f"Labs {', '.join(part.lab for part in parts)}"
    return Route(title, "", "", hours, ((WELCOME, *parts),))


def _lab_part(lab: str, in_full: bool = False, also: Sequence[str] = ()) -> Part:
    """Return a lab's core sections with some of the optional ones, by number, or with all of them."""
    info = catalogue.find(lab)
    taught = (part for part in info.sections if part.core or in_full or part.name.partition(" · ")[0] in also)
    return Part(info.title, info.number, tuple(taught))
