"""Printing to a terminal: other people's words can't move the cursor, change colours, or turn a line around."""

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Controls of a terminal (C0 but for tab and newline, DEL, C1), of the direction of writing, and surrogates.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
INSTEAD = "\N{REPLACEMENT CHARACTER}"
MAX_LINE = 600  # the letters that a line of an error has at most


def harmless(text: str) -> str:
    """Return a text in which nothing acts on a terminal: `INSTEAD` stands for each control."""
    return _CONTROLS.sub(INSTEAD, text)


def say(text: str) -> None:
    """Print an error or a warning: harmless, and without the middle of lines that are very long."""
    lines = (
        line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} … {line[-MAX_LINE // 2 :]}"
        for line in harmless(text).split("\n")
    )
    print("\n".join(lines), file=sys.stderr)


def console() -> "Console":
    """Return a console on which tables and lines can be printed, whoever wrote their words."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class HarmlessConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=harmless(segment.text))

    return HarmlessConsole()


def prepare_streams() -> None:
    """Print letters that standard output and error lack as `\\u2026`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not a test's
            stream.reconfigure(errors="backslashreplace")
