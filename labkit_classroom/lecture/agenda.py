"""Clock times of a route, from the plan for minutes and from what the labs' waiting took on this machine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from itertools import pairwise

from labkit.exercises.minutes import Section

from labkit.system import lease
from labkit.system.errors import LabError
from labkit.system.words import plural
from labkit_classroom.lecture import breaks
from labkit_classroom.lecture.pace import Pace
from labkit_classroom.lecture.routes import Part, Route

WELCOME = Part("Welcome: who is here, joining the room, set-up", minutes=10)  # the first day's first part
CONTINUED = ", continued"  # at the end of the title of what a break has cut
CHANGE = "a place to change instructors"
RESERVE = "Reserve: no day goes as planned"
Waits = Mapping[str, Mapping[str, float]]  # minutes that each section of a lab waited, by lab


@dataclass(frozen=True)
class Entry:
    """A part of a day with its clock times, which are of five minutes. A lab that breaks cut is several.

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

    @property
    def minutes(self) -> int:
        """How long it is."""
        return round((self.end - self.begin).total_seconds() / 60)


@dataclass(frozen=True)
class Day:
    """One day of a route.

    Attributes
    ----------
    entries : tuple of Entry
        Its parts and breaks, in their order.
    end : datetime
        When it should be over.
    """

    entries: tuple[Entry, ...]
    end: datetime

    @property
    def timetable(self) -> tuple[Entry, ...]:
        """Its entries, and what is left of the day as its last one."""
        last = self.entries[-1].end
        return (*self.entries, Entry(last, self.end, Part(RESERVE))) if last < self.end else self.entries

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


def basis(route: Route, waits: Waits, pace: Pace | None = None) -> str:
    """Return a sentence or two on where the minutes come from."""
    planned = [lab for lab in route.labs if lab not in waits]
    if not planned:
        told = "All waiting was measured on this machine."
    elif len(planned) == len(route.labs):
        told = "Waiting is as planned for two cores: ./lab rehearse measures it on this machine."
    else:
        told = f"Waiting was measured on this machine, but for labs {', '.join(planned)}: ./lab rehearse measures it."
    if pace is None:
        return told
    taken = [(part.lab, section) for day in route.days for part in day for section in part.sections]
    paces = [pace[lab][section.name] for lab, section in taken if section.name in pace.get(lab, {})]
    if not paces:
        return f"{told} The room's minutes are of other labs: nothing is planned by them."
    least, most = f"{min(paces):.2g}", f"{max(paces):.2g}"
    times = least if least == most else f"{least} to {most}"
    sections = plural(len(taken), "section")
    return f"{told} {len(paces)} of {sections} are planned by what a room took: {times} times the plan's minutes."


def sharing(people: int | None, count: int | None) -> tuple[float, str]:
    """Return the factor by which a round of all takes longer than one person's measuring, and a sentence on it.

    Parameters
    ----------
    people, count : int, optional
        How many people measure, and on how many slots; by default those of this machine (`labkit.system.lease`).

    Raises
    ------
    LabError
        When one is given, and nothing says the other.
    """
    if people is None and count is None:
        return 1.0, ""
    count = count or len(lease.slots()) or None
    if people is None or count is None:
        raise LabError("how many people measure, and on how many slots? Give both, such as --people 40 --slots 4.")
    rounds = max(1.0, people / count)
    measured = f"{people} people measure in turns on {plural(count, 'slot')}"
    return rounds, f"{measured}: all waiting counts {rounds:.3g} times, as a round of the room takes that long."


def schedule(
    route: Route, start: time, first: date, waits: Waits, rounds: float = 1.0, pace: Pace | None = None
) -> list[Day]:
    """Return the days of a route with clock times, a welcome and breaks.

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
    pace : mapping, optional
        How many times as long as planned a room took for sections of labs; a section that is not in it is as planned.

    Raises
    ------
    LabError
        When it leads beyond the calendar.
    """

    def timed(lab: str, planned: Section) -> Section:
        wait = rounds * waits.get(lab, {}).get(planned.name, planned.wait)
        factor = (pace or {}).get(lab, {}).get(planned.name, 1.0)
        return replace(planned, read=factor * planned.read, do=factor * planned.do, wait=factor * wait)

    days = []
    try:
        for number, parts in enumerate(route.days):
            taken = [replace(part, sections=tuple(timed(part.lab, one) for one in part.sections)) for part in parts]
            begin = datetime.combine(first + timedelta(days=number), start)
            days.append(_day(taken if number else [WELCOME, *taken], begin, route.hours))
    except OverflowError as error:
        raise LabError("so many hours or people lead beyond the calendar: give fewer, or an earlier --date.") from error
    return days


def _day(parts: Sequence[Part], begin: datetime, hours: float) -> Day:
    """Return a day with its breaks and clock times."""
    pieces = [(index, section) for index, part in enumerate(parts) for section in part.sections or (None,)]
    work = [breaks.Work(index, section.minutes if section else parts[index].minutes) for index, section in pieces]
    stops = breaks.place(work, begin, hours)
    starts = [i for i in range(len(work)) if i == 0 or i in stops or work[i].part != work[i - 1].part]
    now, entries, begun = begin, [], set()
    for first, after in pairwise([*starts, len(work)]):
        index = work[first].part
        if stop := stops.get(first):
            between_labs = index not in begun and parts[index].lab and parts[work[first - 1].part].lab
            end = now + timedelta(minutes=stop.minutes)
            entries.append(Entry(now, end, replace(stop, note=CHANGE if between_labs else "")))
            now = end
        end = now + timedelta(minutes=breaks.lasts(work[first:after]))
        sections, at = [], now
        for _, section in pieces[first:after]:
            if section:
                sections.append((at, section))
                at += timedelta(minutes=section.minutes)
        title = parts[index].title + CONTINUED * (index in begun)
        part = replace(parts[index], title=title, sections=tuple(section for _, section in sections))
        entries.append(Entry(now, end, part, tuple(sections)))
        begun.add(index)
        now = end
    return Day(tuple(entries), begin + timedelta(hours=hours))


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
        took: Counter[str] = Counter()
        for entry in day.entries:
            took[entry.part.lab] += entry.minutes
        labs = {lab: minutes for lab, minutes in took.items() if lab not in ("", "00")}
        if not labs:
            sentences.append(f"{late} Give it more hours.")
            continue
        fitting = [lab for lab, minutes in labs.items() if minutes >= day.over_minutes]
        shortest = min(fitting or labs, key=lambda lab: labs[lab])
        sentences.append(f"{late} Its optional sections are not enough: leave out lab {shortest}, for one.")
    return sentences
