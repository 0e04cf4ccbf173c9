"""An agenda in Markdown."""

from collections.abc import Iterator, Sequence

from labkit.exercises.catalogue import Section
from labkit_classroom.lecture import prose
from labkit_classroom.lecture.agenda import Day
from labkit_classroom.lecture.routes import Route

HEAD = "| time | what | minutes | waiting |\n| --- | --- | ---: | ---: |"


def markdown(route: Route, days: Sequence[Day], advice: Sequence[str]) -> str:
    """Return an agenda in Markdown; parts of a day are bold, and a lab's sections below it are not."""
    left_out = f"Left out: {route.left_out}" if route.left_out else ""
    parts = [f"# {route.title}", route.audience, left_out]
    for number, day in enumerate(days, start=1):
        parts += [f"## {day_title(number, day)}", "\n".join([HEAD, *_rows(day)])]
    return "\n\n".join(filter(None, [*parts, *advice])) + "\n"


def _rows(day: Day) -> Iterator[str]:
    for entry in day.timetable:
        waits = f"{sum(section.wait for _, section in entry.sections):.1f}" if entry.sections else ""
        yield f"| {entry.begin:%H:%M}–{entry.end:%H:%M} | **{entry.part.title}** | {entry.minutes} | {waits} |"
        for begin, section in entry.sections:
            wait = f"{section.wait:.1f}" if section.wait else ""
            yield f"| {begin:%H:%M} | {section_name(section)} | {section.minutes:.0f} | {wait} |"


def day_title(number: int, day: Day) -> str:
    """Return when a day begins and ends."""
    return f"Day {number}, {day.entries[0].begin:%H:%M} to {day.end:%H:%M}"


def section_name(section: Section) -> str:
    """Return a section's heading without markup, and whether it is optional."""
    heading = prose.inline(section.heading).striptags()
    return heading if section.core else f"{heading} · optional"
