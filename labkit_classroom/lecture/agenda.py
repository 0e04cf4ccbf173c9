"""Timetables: a route's clock times, from planned minutes and waiting times measured on this machine."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta

from labkit.exercises.catalogue import Section
from labkit.system.errors import LabError
from labkit_classroom.lecture.routes import Part, Route

CONTINUED = ", continued"  # appended to the title of a lab after a break
HEAD = "| time | what | minutes | waiting |\n| --- | --- | ---: | ---: |"
RESERVE = "Reserve: no day goes to plan"
STEP_MIN = 5  # parts of a day end at multiples of this
# Rules for breaks.
MAX_WORK_MIN = 90  # work between two breaks
MIN_WORK_MIN = 30  # work before a break may precede the next lab, if that doesn't fit as a whole
BREAK = Part("Break", minutes=15, is_break=True)
LUNCH = Part("Lunch", minutes=60, is_break=True)
LUNCH_FROM = time(11, 45)  # on a long day, the first break from then on is lunch
LUNCH_DAY = timedelta(hours=6)  # shorter days have no lunch
Waits = Mapping[str, Mapping[str, float]]  # minutes of waiting by lab and section


@dataclass(frozen=True)
class Entry:
    """A part of a day with its clock times. A lab interrupted by breaks has several entries."""

    begin: datetime
    end: datetime
    part: Part  # the lab, talk or break
    sections: tuple[tuple[datetime, Section], ...] = ()  # of a lab, and when each begins

    @property
    def minutes(self) -> int:
        """Its length in minutes."""
        return round((self.end - self.begin).total_seconds() / 60)


@dataclass(frozen=True)
class Day:
    """One day of a route."""

    entries: tuple[Entry, ...]  # its parts and breaks, in order
    end: datetime  # when it should be over

    @property
    def timetable(self) -> tuple[Entry, ...]:
        """Its entries, with the rest of the day as the last one."""
        last = self.entries[-1].end
        return (*self.entries, Entry(last, self.end, Part(RESERVE))) if last < self.end else self.entries

    @property
    def over_minutes(self) -> int:
        """Minutes by which the day runs over; 0 if it fits."""
        return max(0, round((self.entries[-1].end - self.end).total_seconds() / 60))


def clock(text: str) -> time:
    """Return a time of day written like `9:00` or `13.30`.

    Raises
    ------
    LabError
        If it isn't a time.
    """
    hour, _, minute = text.strip().replace(".", ":").partition(":")
    try:
        return time(int(hour), int(minute or 0))
    except ValueError as error:
        raise LabError(f"a time is written like 9:00 or 13:30, not {text!r}.") from error


def basis(route: Route, waits: Waits) -> str:
    """Return a sentence on the origin of the waiting times."""
    planned = [lab for lab in route.labs if lab not in waits]
    if not planned:
        return "All waiting times were measured on this machine."
    return f"Waiting times in labs {', '.join(planned)} are estimates for two cores: ./lab rehearse measures them here."


def schedule(route: Route, start: time, first: date, waits: Waits, rounds: float = 1.0) -> list[Day]:
    """Return the days of a route with clock times and breaks.

    Parameters
    ----------
    route : Route
        The labs, talks and breaks.
    start : time
        When each day begins.
    first : date
        The first day.
    waits : mapping
        Minutes of waiting per section, measured on this machine; for other labs, the plan's are used.
    rounds : float
        The factor by which waiting gets longer because people share a server's measuring slots.
    """

    def timed(part: Part) -> Part:
        measured = waits.get(part.lab, {})
        sections = (
            replace(section, wait=rounds * measured.get(section.name, section.wait)) for section in part.sections
        )
        return replace(part, sections=tuple(sections))

    days = []
    for number, planned in enumerate(route.days):
        begin = datetime.combine(first + timedelta(days=number), start)
        end = begin + timedelta(hours=route.hours)
        entries = _with_times(_with_breaks(list(map(timed, planned)), begin, end), begin)
        days.append(Day(tuple(entries), end))
    return days


def _with_times(parts: Sequence[Part], begin: datetime) -> Iterator[Entry]:
    """Yield a day's parts with clock times."""
    begun = set()
    for part in parts:
        section_begin, sections = begin, []
        for section in part.sections:
            sections.append((section_begin, section))
            section_begin += timedelta(minutes=section.minutes)
        end = begin + timedelta(minutes=_lasts([part]))
        if part.lab in begun:
            part = replace(part, title=part.title + CONTINUED)
        if part.lab:
            begun.add(part.lab)
        yield Entry(begin, end, part, tuple(sections))
        begin = end


def _with_breaks(parts: Sequence[Part], begin: datetime, end: datetime) -> list[Part]:
    """Return a day's parts with breaks: before the next lab if it doesn't fit, otherwise as late as possible.

    Labs are split only between sections. On a long day, the first break around noon is lunch.
    """
    placed: list[Part] = []
    stretch: list[Part] = []  # the parts since the last break
    lunch_is_due = end - begin >= LUNCH_DAY and begin.time() <= LUNCH_FROM
    for part in parts:
        pieces = [replace(part, sections=(section,)) for section in part.sections] or [part]
        for place, piece in enumerate(pieces):
            longer = _joined(stretch, piece)
            ends_lab = place == 0 and _lasts(stretch) >= MIN_WORK_MIN and _lasts([*stretch, part]) > MAX_WORK_MIN
            if stretch and (ends_lab or _lasts(longer) > MAX_WORK_MIN):
                placed += stretch
                is_noon = (begin + timedelta(minutes=_lasts(placed))).time() >= LUNCH_FROM
                placed.append(LUNCH if is_noon and lunch_is_due else BREAK)
                lunch_is_due &= not is_noon
                longer = [piece]
            stretch = longer
    return [*placed, *stretch]


def _joined(stretch: Sequence[Part], piece: Part) -> list[Part]:
    """Return a day's parts plus one more, merged with the last one if it is of the same lab."""
    *before, last = stretch or [piece]
    if not stretch or not last.lab or last.lab != piece.lab:
        return [*stretch, piece]
    return [*before, replace(last, sections=last.sections + piece.sections)]


def _lasts(parts: Sequence[Part]) -> int:
    """Return the minutes that a day's parts take on the clock, where each ends at a multiple of `STEP_MIN`."""
    exact = (part.minutes + sum(section.minutes for section in part.sections) for part in parts)
    return sum(STEP_MIN * math.ceil(round(minutes / STEP_MIN, 2)) for minutes in exact)


def advice(days: Sequence[Day]) -> list[str]:
    """Return a sentence for each day that runs over."""
    return [
        f"Day {number} runs over by {day.over_minutes} minutes, to {day.entries[-1].end:%H:%M}: leave out a lab or "
        "optional sections, or allow more hours."
        for number, day in enumerate(days, start=1)
        if day.over_minutes
    ]


def markdown(route: Route, days: Sequence[Day], advice: Sequence[str]) -> str:
    """Return an agenda in Markdown, with a day's parts in bold, followed by their sections."""
    left_out = f"Left out: {route.left_out}." if route.left_out else ""
    parts = [f"# {route.title}", route.audience, left_out]
    for number, day in enumerate(days, start=1):
        hours = f"{day.entries[0].begin:%H:%M} to {day.end:%H:%M}"
        parts += [f"## Day {number}, {hours}", "\n".join([HEAD, *_rows(day)])]
    return "\n\n".join(filter(None, [*parts, *advice])) + "\n"


def _rows(day: Day) -> Iterator[str]:
    for entry in day.timetable:
        waits = f"{sum(section.wait for _, section in entry.sections):.1f}" if entry.sections else ""
        yield f"| {entry.begin:%H:%M}–{entry.end:%H:%M} | **{entry.part.title}** | {entry.minutes} | {waits} |"
        for begin, section in entry.sections:
            wait = f"{section.wait:.1f}" if section.wait else ""
            name = section.heading if section.core else f"{section.heading} · optional"
            yield f"| {begin:%H:%M} | {name} | {section.minutes:.0f} | {wait} |"
