"""An agenda on the screen, as Markdown and as a calendar."""

from collections.abc import Sequence

import icalendar
from rich.table import Table

from labkit_classroom.lecture.agenda import Day, Entry
from labkit_classroom.lecture.routes import Route

HEAD = ("time", "what", "minutes", "of which waiting")


def table(day: Day, title: str) -> Table:
    """Return a day as a table for a terminal."""
    shown = Table(*HEAD, title=title, title_justify="left")
    for row in _rows(day):
        shown.add_row(*row)
    return shown


def markdown(route: Route, days: Sequence[Day], advice: Sequence[str]) -> str:
    """Return an agenda in Markdown."""
    lines = [f"# {route.title}", ""]
    for text in filter(None, (route.audience, route.left_out and f"Left out: {route.left_out}", *advice)):
        lines += [text, ""]
    for day in days:
        lines += [f"## {day_title(day)}", "", f"| {' | '.join(HEAD)} |", "| --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(day)]
        lines.append("")
    return "\n".join(lines)


def calendar(route: Route, days: Sequence[Day], advice: Sequence[str]) -> str:
    """Return an agenda as an iCalendar file (RFC 5545), in local time, whatever the place."""
    events = icalendar.Calendar()
    events.add("prodid", "-//labkit//agenda//EN")
    events.add("version", "2.0")
    events.add("x-wr-calname", route.title)
    events.add("x-wr-caldesc", " ".join(advice))
    for entry in (entry for day in days for entry in day.entries):
        event = icalendar.Event()
        event.add("uid", f"{entry.begin:%Y%m%dT%H%M}-{route.name or 'labs'}@labkit")
        event.add("dtstamp", days[0].entries[0].begin)
        event.add("dtstart", entry.begin)
        event.add("dtend", entry.end)
        event.add("summary", entry.part.title)
        if entry.sections:
            event.add("description", _sections(entry))
        events.add_component(event)
    text: bytes = events.to_ical()
    return text.decode()


def day_title(day: Day) -> str:
    """Return the date of a day, and when it begins and ends."""
    return f"{day.entries[0].begin:%A, %d %B %Y, %H:%M} to {day.end:%H:%M}"


def _rows(day: Day) -> list[tuple[str, str, str, str]]:
    rows = []
    for entry in day.entries:
        takes = f"{(entry.end - entry.begin).total_seconds() / 60:.0f}"
        waits = sum(section.wait for _, section in entry.sections)
        title = entry.part.title + (f" ({_sections(entry)})" if entry.sections else "")
        rows.append((f"{entry.begin:%H:%M}–{entry.end:%H:%M}", title, takes, f"{waits:.1f}" if entry.sections else ""))
    return rows


def _sections(entry: Entry) -> str:
    """Return the names of a lab's sections that are done."""
    numbered = [section.name for _, section in entry.sections if section.name.isdigit()]
    return f"section{'s' * (len(numbered) > 1)} {', '.join(numbered)}"
