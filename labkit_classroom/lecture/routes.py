"""Routes through the labs, from `solutions/routes.toml`: labs, talks and breaks."""

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


@dataclass(frozen=True)
class Route:
    """A route through the labs."""

    title: str
    audience: str
    left_out: str
    hours: float  # the length of a day, including breaks
    days: tuple[tuple[Part, ...], ...]  # the parts of each day
    lists_breaks: bool = True  # whether the parts include breaks; otherwise, the timetable inserts them

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
    days = [[WELCOME]]
    for part in entry["parts"]:
        if part.get("next_day"):
            days.append([])
        else:
            days[-1].append(_part(part))
    return Route(entry["title"], entry["audience"], entry["left_out"], entry["hours"], tuple(map(tuple, days)))


def names() -> list[str]:
    """Return the names of all routes."""
    return list(_read())


def _read() -> dict[str, Any]:
    return tomllib.loads((paths.SOLUTIONS / FILE).read_text(encoding="utf-8"))


def of_labs(labs: Sequence[str], hours: float) -> Route:
    """Return a one-day route through the core sections of labs."""
    parts = [_lab_part(number.strip()) for number in labs]
    title = f"Labs {', '.join(part.lab for part in parts)}"
    return Route(title, "", "", hours, ((WELCOME, *parts),), lists_breaks=False)


def _part(entry: dict[str, Any]) -> Part:
    if "lab" in entry:
        return _lab_part(entry["lab"], entry.get("sections", ()), entry.get("from"), entry.get("to"))
    return Part(entry.get("talk") or entry["break"], minutes=entry["minutes"], is_break="break" in entry)


def _lab_part(lab: str, optional: Sequence[str] = (), first: str | None = None, last: str | None = None) -> Part:
    """Return a lab's core and selected optional sections, from a first to a last one."""
    info = catalogue.find(lab)
    names = [section.name for section in info.sections]
    first, last = first or names[0], last or names[-1]
    if unknown := {*optional, first, last} - set(names):
        raise LabError(f"lab {info.number} has no section {', '.join(sorted(unknown))}.")
    stretch = info.sections[names.index(first) : names.index(last) + 1]
    return Part(
        info.title, info.number, tuple(section for section in stretch if section.core or section.name in optional)
    )
