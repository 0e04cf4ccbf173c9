"""An agenda on the screen, as Markdown and as a calendar."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import icalendar
from rich.table import Table

from labkit.exercises.minutes import OPTIONAL, Section
from labkit_classroom.lecture import prose
from labkit_classroom.lecture.agenda import Day
from labkit_classroom.lecture.routes import Route

HEAD = ("time", "what", "minutes", "waiting")


class _Row(NamedTuple):
    """A row of a day: a part of it, or a section of a lab, of which `time` is when it begins."""

    time: str
    what: str
    minutes: str
    waiting: str
    is_section: bool = False


def table(day: Day, title: str) -> Table:
    """Return a day as a table for a terminal."""
    shown = Table(title=title, title_justify="left")
    for name in HEAD:
        shown.add_column(name, justify="right" if name in HEAD[2:] else "left")
    for row in _rows(day):
        shown.add_row(
            row.time,
            "  " * row.is_section + row.what,
            row.minutes,
            row.waiting,
            style=None if row.is_section else "bold",
        )
    return shown


def markdown(route: Route, days: Sequence[Day], advice: Sequence[str]) -> str:
    """Return an agenda in Markdown; parts of a day are bold, and a lab's sections below it are not."""
    lines = [f"# {route.title}", ""]
    for text in filter(None, (route.audience, route.left_out and f"Left out: {route.left_out}", *advice)):
        lines += [text, ""]
    for day in days:
        lines += [f"## {day_title(day)}", "", f"| {' | '.join(HEAD)} |", "| --- | --- | ---: | ---: |"]
        for row in _rows(day):
            what = row.what.replace("|", "\\|")
            lines.append(
                f"| {row.time} | {what if row.is_section else f'**{what}**'} | {row.minutes} | {row.waiting} |"
            )
        lines.append("")
    return "\n".join(lines)


def calendar(route: Route, days: Sequence[Day], advice: Sequence[str]) -> str:
    """Return an agenda as an iCalendar file (RFC 5545), in local time, whatever the place."""
    events = icalendar.Calendar()
    events.add("prodid", "-//labkit//agenda//EN")
    events.add("version", "2.0")
    events.add("x-wr-calname", route.title)
    events.add("x-wr-caldesc", " ".join(advice))
    for entry in (entry for day in days for entry in day.timetable):
        event = icalendar.Event()
        event.add("uid", f"{entry.begin:%Y%m%dT%H%M}-{route.name or 'labs'}@labkit")
        event.add("dtstamp", days[0].entries[0].begin)
        event.add("dtstart", entry.begin)
        event.add("dtend", entry.end)
        event.add("summary", entry.part.title)
        described = [f"{begin:%H:%M} {section_name(section)}" for begin, section in entry.sections]
        if description := "\n".join(filter(None, [entry.part.note, *described])):
            event.add("description", description)
        events.add_component(event)
    text: bytes = events.to_ical()
    return text.decode()


def day_title(day: Day) -> str:
    """Return the date of a day, and when it begins and ends."""
    return f"{day.entries[0].begin:%A, %d %B %Y, %H:%M} to {day.end:%H:%M}"


def section_name(section: Section) -> str:
    """Return a section's heading without markup, and whether it is optional."""
    heading = prose.inline(section.heading or section.name).striptags()
    return heading + OPTIONAL * (not section.core)


def _rows(day: Day) -> Iterator[_Row]:
    for entry in day.timetable:
        title = f"{entry.part.title}: {entry.part.note}" if entry.part.note else entry.part.title
        waits = f"{sum(section.wait for _, section in entry.sections):.1f}" if entry.sections else ""
        yield _Row(f"{entry.begin:%H:%M}–{entry.end:%H:%M}", title, str(entry.minutes), waits)
        for begin, section in entry.sections:
            wait = f"{section.wait:.1f}" if section.wait else ""
            yield _Row(f"{begin:%H:%M}", section_name(section), f"{section.minutes:.0f}", wait, is_section=True)
