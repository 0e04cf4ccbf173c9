"""Clock times of a route, from the plan for minutes and from what the labs' waiting took on this machine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta

from labkit.exercises.minutes import Section
from labkit.system import slots
from labkit.system.errors import LabError
from labkit.system.words import plural
from labkit_classroom.lecture.routes import Part, Route

Waits = Mapping[str, Mapping[str, float]]  # minutes that each section of a lab waited, by lab


@dataclass(frozen=True)
class Entry:
    """A part of a day with its clock times, which are of five minutes.

    Attributes
    ----------
    begin, end : datetime
        When it begins and ends.
    part : Part
        What it is.
    sections : tuple of (datetime, Section)
        When each section of a lab begins.
    """

    begin: datetime
    end: datetime
    part: Part
    sections: tuple[tuple[datetime, Section], ...] = ()


@dataclass(frozen=True)
class Day:
    """One day of a route.

    Attributes
    ----------
    entries : tuple of Entry
        Its parts, in their order.
    end : datetime
        When it should be over.
    """

    entries: tuple[Entry, ...]
    end: datetime

    @property
    def over_minutes(self) -> int:
        """The minutes by which the day's last part ends too late; 0 when it fits."""
        return max(0, round((self.entries[-1].end - self.end).total_seconds() / 60))


def clock(text: str) -> time:
    """Return the time of day that `9:00` or `13.30` means.

    Raises
    ------
    LabError
        When it is none.
    """
    hour, _, minute = text.strip().replace(".", ":").partition(":")
    try:
        return time(int(hour), int(minute or 0))
    except ValueError as error:
        raise LabError(f"a time is written like 9:00 or 13:30, not {text!r}.") from error


def calendar_day(text: str | None) -> date:
    """Return the day that `2026-12-01` means; today when there is no text.

    Raises
    ------
    LabError
        When it is none.
    """
    try:
        return date.fromisoformat(text) if text else date.today()
    except ValueError as error:
        raise LabError(f"a date is written like 2026-12-01, not {text!r}.") from error


def basis(route: Route, waits: Waits) -> str:
    """Return a sentence on where the minutes of waiting come from."""
    labs = [part.lab for day in route.days for part in day if part.lab]
    planned = [lab for lab in labs if lab not in waits]
    if not planned:
        return "All waiting was measured on this machine."
    if len(planned) == len(labs):
        return "Waiting is as planned for two cores: ./lab rehearse measures it on this machine."
    return f"Waiting was measured on this machine, but for labs {', '.join(planned)}: ./lab rehearse measures it."


def sharing(people: int | None, count: int | None) -> tuple[float, str]:
    """Return the factor by which a round of all takes longer than one person's measuring, and a sentence on it.

    Parameters
    ----------
    people, count : int, optional
        How many people measure, and on how many slots; by default as this machine is divided (`labkit.system.slots`).

    Raises
    ------
    LabError
        When one is given, and nothing says the other.
    """
    division = slots.read()
    if division:
        people, count = people or division.people, count or len(division.slots)
    if people is None and count is None:
        return 1.0, ""
    if people is None or count is None:
        raise LabError("how many people measure, and on how many slots? Give both, such as --people 40 --slots 4.")
    rounds = slots.rounds(people, count)
    measured = f"{people} people measure in turns on {plural(count, 'slot')}"
    return rounds, f"{measured}: all waiting counts {rounds:.3g} times, as a round of the room takes that long."


def schedule(route: Route, start: time, first: date, waits: Waits, rounds: float = 1.0) -> list[Day]:
    """Return the days of a route with clock times.

    Parameters
    ----------
    route : Route
        What is done.
    start : time
        When each day begins.
    first : date
        The first day.
    waits : mapping
        The minutes that each section of a lab waited on this machine; a lab that is not in it takes the plan's.
    rounds : float
        How many times as long all people wait, where they measure in turns on one server.

    Raises
    ------
    LabError
        When it leads beyond the calendar.
    """
    try:
        return _days(route, start, first, waits, rounds)
    except OverflowError as error:
        raise LabError("so many hours or people lead beyond the calendar: give fewer, or an earlier --date.") from error


def _days(route: Route, start: time, first: date, waits: Waits, rounds: float) -> list[Day]:
    days = []
    for number, parts in enumerate(route.days):
        now = begin = datetime.combine(first + timedelta(days=number), start)
        entries = []
        for part in parts:
            entries.append(_entry(part, now, waits.get(part.lab, {}), rounds))
            now = entries[-1].end
        days.append(Day(tuple(entries), begin + timedelta(hours=route.hours)))
    return days


def _entry(part: Part, begin: datetime, waited: Mapping[str, float], rounds: float) -> Entry:
    """Return a part with its clock times; a lab ends at the next five minutes."""
    if not part.lab:
        return Entry(begin, begin + timedelta(minutes=part.minutes), part)
    now, sections = begin, []
    for planned in part.sections:
        section = replace(planned, wait=rounds * waited.get(planned.name, planned.wait))
        sections.append((now, section))
        now += timedelta(minutes=section.minutes)
    takes = 5 * math.ceil(round((now - begin).total_seconds() / 300, 2))
    return Entry(begin, begin + timedelta(minutes=takes), part, tuple(sections))


def leave_out(day: Day) -> list[tuple[str, Section]]:
    """Return the sections to leave out for a day to fit, as (lab, section): optional ones, the longest first.

    Where that is not enough, all of them: then the day takes a lab less.
    """
    optional = [(entry.part.lab, section) for entry in day.entries for _, section in entry.sections if not section.core]
    chosen: list[tuple[str, Section]] = []
    left = float(day.over_minutes)
    for lab, section in sorted(optional, key=lambda item: -item[1].minutes):
        if left <= 0:
            break
        chosen.append((lab, section))
        left -= section.minutes
    return chosen


def advice(days: Sequence[Day]) -> list[str]:
    """Return a sentence for each day that doesn't fit: by how much, and what to leave out."""
    sentences = []
    for number, day in enumerate(days, start=1):
        if not day.over_minutes:
            continue
        which = f"Day {number} ends" if len(days) > 1 else "It ends"
        late = (
            f"{which} {day.over_minutes} minutes too late, at {day.entries[-1].end:%H:%M} instead of {day.end:%H:%M}."
        )
        out = leave_out(day)
        if sum(section.minutes for _, section in out) >= day.over_minutes:
            names = ", ".join(f"section {section.name} of lab {lab} ({section.minutes:.0f})" for lab, section in out)
            sentences.append(f"{late} Leave out {names}.")
            continue
        labs = [entry for entry in day.entries if entry.part.lab and entry.part.lab != "00"]
        fitting = [lab for lab in labs if (lab.end - lab.begin).total_seconds() / 60 >= day.over_minutes]
        shortest = min(fitting or labs, key=lambda lab: lab.end - lab.begin)
        sentences.append(f"{late} Its optional sections are not enough: leave out lab {shortest.part.lab}, for one.")
    return sentences
