"""The routes through the labs, from `solutions/routes.toml`: labs and talks, without breaks."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.exercises import minutes, sources
from labkit.system import paths
from labkit.system.errors import LabError

FILE = "routes.toml"  # the file in solutions/


@dataclass(frozen=True)
class Part:
    """A part of a day.

    Attributes
    ----------
    title : str
        The part's title.
    lab : str
        The lab's number; empty for a break or a talk.
    sections : tuple of minutes.Section
        The lab's sections that are done.
    minutes : float
        How long a break or a talk is.
    is_break : bool
        Whether nobody works.
    note : str
        What the instructor should know of it.
    """

    title: str
    lab: str = ""
    sections: tuple[minutes.Section, ...] = ()
    minutes: float = 0
    is_break: bool = False
    note: str = ""


@dataclass(frozen=True)
class Route:
    """A way through the labs.

    Attributes
    ----------
    name, title, audience, left_out : str
        The route's name and title, for whom it is, and what is not in it.
    hours : float
        How long a day is, with its breaks.
    days : tuple of tuple of Part
        The parts of each day.
    """

    name: str
    title: str
    audience: str
    left_out: str
    hours: float
    days: tuple[tuple[Part, ...], ...]

    @property
    def labs(self) -> list[str]:
        """The labs' numbers, each once, in their order."""
        return list(dict.fromkeys(part.lab for day in self.days for part in day if part.lab))


def find(name: str) -> Route:
    """Return the route of this name.

    Raises
    ------
    LabError
        When there is none, or its entry can't be read.
    """
    known = tomllib.loads((paths.SOLUTIONS / FILE).read_text())
    if name not in known:
        raise LabError(f"there is no route {name!r}: the routes are {', '.join(known)}.")
    entry = known[name]
    days: list[list[Part]] = [[]]
    for part in entry["parts"]:
        if part.get("next_day"):
            days.append([])
        else:
            days[-1].append(_part(part))
    return Route(
        name, entry["title"], entry["audience"], entry["left_out"], entry["hours"], days=tuple(map(tuple, days))
    )


def names() -> list[str]:
    """Return the names of all routes."""
    return list(tomllib.loads((paths.SOLUTIONS / FILE).read_text()))


def of_labs(labs: Sequence[str], hours: float) -> Route:
    """Return a route of one day through labs that are named one by one, by their core sections."""
    parts = tuple(_lab_part(sources.find(number.strip())) for number in labs)
    title = f"Labs {', '.join(part.lab for part in parts)}"
    return Route("", title, "", "", hours, (parts,))


def _part(entry: dict[str, Any]) -> Part:
    if "lab" in entry:
        return _lab_part(sources.find(entry["lab"]), entry.get("sections", ()))
    return Part(entry["talk"], minutes=entry["minutes"])


def _lab_part(source: Path, optional: Sequence[str] = ()) -> Part:
    """Return a lab by its core sections and some optional ones."""
    plan = minutes.plan(source)
    if unknown := set(optional) - {section.name for section in plan}:
        raise LabError(f"lab {source.stem[:2]} has no section {', '.join(sorted(unknown))}.")
    sections = tuple(section for section in plan if section.core or section.name in optional)
    return Part(sources.title(source), source.stem[:2], sections)
