"""A room's timetable: the current part, the delay, and sections to skip."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

LATE_MIN = 5  # delays shorter than this suggest no sections to skip


class Planned(NamedTuple):
    """A part of a timetable: a section of a lab, a talk or a break."""

    title: str  # such as "Lab 02 · 5 Time it"
    begin: datetime
    end: datetime
    lab: str = ""  # lab and section are empty for talks and breaks
    section: str = ""
    exercises: tuple[int, ...] = ()
    minutes: float = 0
    core: bool = True  # whether later sections need it


Plan = Sequence[Planned]
Passed = Mapping[tuple[str, int], int]  # number of seats that passed, by lab and exercise


def write(plan: Plan) -> list[list[Any]]:
    """Return a timetable in a form that JSON can store."""
    return [[value.isoformat() if isinstance(value, datetime) else value for value in part] for part in plan]


def read(stored: list[list[Any]]) -> tuple[Planned, ...]:
    """Return the timetable from the result of `write`."""
    return tuple(
        Planned(
            title, datetime.fromisoformat(begin), datetime.fromisoformat(end), lab, section, tuple(exercises), *more
        )
        for title, begin, end, lab, section, exercises, *more in stored
    )


def planned(plan: Plan, now: datetime) -> dict[str, str] | None:
    """Return the current or next part: title, when it begins or ends, and what follows; None after the last one."""
    ahead = [part for part in plan if now < part.end]
    if not ahead:
        return None
    part, following = ahead[0], ahead[1:2]
    when = f"from {part.begin:%H:%M}" if now < part.begin else f"until {part.end:%H:%M}"
    if now >= part.begin and following and following[0].begin.date() == part.end.date():
        when += f", then {following[0].title}"
    return {"title": part.title, "when": when}


def drift(plan: Plan, passed: Passed, people: int, now: datetime) -> int | None:
    """Return the minutes by which the room is behind its plan (negative: ahead); None if unknown.

    The delay counts from the planned end of the section after the last one that half of the seats have passed. Only
    minutes of the plan count, not the night; after the end of the plan, the delay is unknown.
    """
    if not plan or not people or now >= plan[-1].end:
        return None
    finished = [
        place
        for place, section in enumerate(plan)
        if section.exercises and all(2 * passed[section.lab, number] >= people for number in section.exercises)
    ]
    following = max(finished, default=-1) + 1
    ahead = [section for section in plan[following:] if section.exercises]
    if following and now < plan[following - 1].end:
        return -_planned_minutes(plan, now, plan[following - 1].end)
    return _planned_minutes(plan, ahead[0].end, now) if ahead else 0


def _planned_minutes(plan: Plan, begin: datetime, end: datetime) -> int:
    spans = (min(part.end, end) - max(part.begin, begin) for part in plan)
    return int(sum((span for span in spans if span > timedelta()), timedelta()).total_seconds() // 60)


def make_up(plan: Plan, late: int | None, now: datetime) -> str:
    """Return the next optional sections today that make up for a delay; empty if the room is on time.

    A late room still has sections ahead of it that are already past in the plan.
    """
    if late is None or late < LATE_MIN:
        return ""
    reached = now - timedelta(minutes=late)
    optional = [part for part in plan if not part.core and part.begin >= reached and part.begin.date() == now.date()]
    if not optional:
        return f"{late} minutes late, and no optional section is left today"
    before = itertools.accumulate((part.minutes for part in optional), initial=0.0)
    skipped = [part for part, saved in zip(optional, before, strict=False) if saved < late]
    return f"{late} minutes late. Skip next: " + ", ".join(f"{part.title} ({part.minutes:.0f} min)" for part in skipped)


def today(plan: Plan, titles: Mapping[str, str], now: datetime) -> list[dict[str, str]]:
    """Return the start and title of each lab, talk and break today that is not over yet."""
    day = [part for part in plan if part.begin.date() == now.date()]
    runs = itertools.groupby(day, key=lambda part: titles.get(part.lab, part.title))
    parts = [(title, list(run)) for title, run in runs]
    return [{"begin": f"{run[0].begin:%H:%M}", "title": title} for title, run in parts if run[-1].end > now]
