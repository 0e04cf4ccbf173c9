"""An agenda on the screen and as Markdown."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.table import Table

from labkit.exercises.catalogue import Section
from labkit_classroom.lecture import prose
from labkit_classroom.lecture.agenda import Day
from labkit_classroom.lecture.routes import Route

HEAD = ("time", "what", "minutes", "waiting")


class _Row(NamedTuple):
    """A row of a day: one of its parts, or a section of a lab."""

    cells: tuple[str, str, str, str]
    is_section: bool = False


def tables(days: Sequence[Day]) -> Iterator[Table]:
    """Yield each day as a table for a terminal."""
    for number, day in enumerate(days, start=1):
        shown = Table(title=day_title(number, day), title_justify="left")
        for name in HEAD:
            shown.add_column(name, justify="right" if name in HEAD[2:] else "left")
        for (time, what, *minutes), is_section in _rows(day):
            shown.add_row(time, "  " * is_section + what, *minutes, style=None if is_section else "bold")
        yield shown


def markdown(route: Route, days: Sequence[Day], advice: Sequence[str]) -> str:
    """Return an agenda in Markdown; parts of a day are bold, and a lab's sections below it are not."""
    left_out = f"Left out: {route.left_out}" if route.left_out else ""
    lines = [f"# {route.title}\n", *(f"{text}\n" for text in (route.audience, left_out, *advice) if text)]
    for number, day in enumerate(days, start=1):
        lines += [f"## {day_title(number, day)}\n", f"| {' | '.join(HEAD)} |", "| --- | --- | ---: | ---: |"]
        for (time, what, *minutes), is_section in _rows(day):
            what = what.replace("|", "\\|")
            lines.append(f"| {' | '.join([time, what if is_section else f'**{what}**', *minutes])} |")
        lines.append("")
    return "\n".join(lines)


def day_title(number: int, day: Day) -> str:
    """Return when a day begins and ends."""
    return f"Day {number}, {day.entries[0].begin:%H:%M} to {day.end:%H:%M}"


def section_name(section: Section) -> str:
    """Return a section's heading without markup, and whether it is optional."""
    heading = prose.inline(section.heading or section.name).striptags()
    return heading if section.core else f"{heading} · optional"


def _rows(day: Day) -> Iterator[_Row]:
    for entry in day.timetable:
        waits = f"{sum(section.wait for _, section in entry.sections):.1f}" if entry.sections else ""
        yield _Row((f"{entry.begin:%H:%M}–{entry.end:%H:%M}", entry.part.title, str(entry.minutes), waits))
        for begin, section in entry.sections:
            wait = f"{section.wait:.1f}" if section.wait else ""
            yield _Row((f"{begin:%H:%M}", section_name(section), f"{section.minutes:.0f}", wait), is_section=True)
