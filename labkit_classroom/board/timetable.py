"""A room's timetable: what is planned for now, how far behind the room is, and what makes up time."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

LATE_MIN = 5  # minutes behind from which on it is said what makes up time


class Planned(NamedTuple):
    """A part of a timetable: a section of a lab, a talk or a break.

    Attributes
    ----------
    title : str
        Its title, such as "Lab 02 · 5 Time it".
    begin, end : datetime
        When it should begin and be over.
    lab, section : str
        The lab and its section; empty for a talk or a break.
    exercises : tuple of int
        The exercises of the section.
    minutes, do : float
        How long it takes, and its exercises of that.
    core : bool
        Whether later sections need it.
    """

    title: str
    begin: datetime
    end: datetime
    lab: str = ""
    section: str = ""
    exercises: tuple[int, ...] = ()
    minutes: float = 0
    do: float = 0
    core: bool = True


Plan = Sequence[Planned]
Passed = Mapping[tuple[str, int], int]  # how many have passed an exercise


def write(plan: Plan) -> str:
    """Return a timetable as text."""
    return json.dumps([[part.isoformat() if isinstance(part, datetime) else part for part in one] for one in plan])


def read(text: str) -> tuple[Planned, ...]:
    """Return the timetable that a text of `write` has."""

    def part(title: str, begin: str, end: str, lab: str, section: str, exercises: list[int], *more: Any) -> Planned:
        begins, ends = datetime.fromisoformat(begin), datetime.fromisoformat(end)
        return Planned(title, begins, ends, lab, section, tuple(exercises), *more)

    return tuple(part(*one) for one in json.loads(text))


def planned(plan: Plan, now: datetime) -> dict[str, str] | None:
    """Return what is planned for now: its title, when it begins or ends, and what follows; None when all is over."""
    place = next((place for place, one in enumerate(plan) if now < one.end), None)
    if place is None:
        return None
    one, following = plan[place], plan[place + 1 : place + 2]
    then = "".join(f", then {_following(one, other)}" for other in following if other.begin.date() == one.end.date())
    when = f"from {one.begin:%H:%M}" if now < one.begin else f"until {one.end:%H:%M}{then}"
    return {"title": one.title, "when": when}


def _following(one: Planned, other: Planned) -> str:
    """Return a short title for what follows."""
    if other.lab:
        return other.title.partition(" · ")[2] if other.lab == one.lab else other.title
    return other.title[:1].lower() + other.title[1:]


def drift(plan: Plan, passed: Passed, people: int, now: datetime) -> int | None:
    """Return the minutes by which the room is behind its plan, negative when ahead; None when nobody knows.

    It is behind by how long ago the section should have been over that comes after the last one that half of the seats
    are through with.
    """
    if not plan or not people:
        return None
    through = [
        place
        for place, section in enumerate(plan)
        if section.exercises and all(2 * passed[section.lab, number] >= people for number in section.exercises)
    ]
    following = max(through, default=-1) + 1
    ahead = [section for section in plan[following:] if section.exercises]
    if following and now < plan[following - 1].end:
        return -_minutes(plan[following - 1].end - now)
    return max(0, _minutes(now - ahead[0].end)) if ahead else 0


def _minutes(span: timedelta) -> int:
    return int(span.total_seconds() // 60)


def make_up(plan: Plan, late: int | None, now: datetime) -> str:
    """Return what makes up time for a room that is late; empty for one that is not.

    These are today's sections that should begin from now on: optional ones are skipped, the longest first. If those are
    not enough, exercises are done together on the projector, those first that are planned for longest.
    """
    if late is None or late < LATE_MIN:
        return ""
    ahead = [one for one in plan if one.lab and one.begin >= now and one.begin.date() == now.date()]
    skipped, left = _enough([(one, one.minutes) for one in ahead if not one.core], late)
    together, left = _enough([(one, one.do) for one in ahead if one.core and one.exercises], left)
    steps = [
        words + _listed([f"{_where(one)} ({minutes:.0f} min)" for one, minutes in chosen])
        for words, chosen in (("skip ", skipped), ("do together on the projector the exercises of ", together))
        if chosen
    ]
    if not steps:
        return f"{late} minutes late, and nothing is left today that makes up time"
    short = f": that makes up {late - left:.0f}" if left >= 1 else ""
    return f"{late} minutes late: {'; '.join(steps)}{short}"


def _enough(sections: list[tuple[Planned, float]], minutes: float) -> tuple[list[tuple[Planned, float]], float]:
    """Return sections, the longest first, until their minutes are enough, and the minutes that they lack."""
    chosen = []
    for section, takes in sorted(sections, key=lambda item: -item[1]):
        if minutes <= 0 or takes <= 0:
            break
        chosen.append((section, takes))
        minutes -= takes
    return chosen, max(minutes, 0)


def _where(section: Planned) -> str:
    name = f"section {section.section}" if section.section.isdigit() else section.section
    return f"lab {section.lab}, {name}"


def _listed(texts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))
