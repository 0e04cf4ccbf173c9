"""Printing to a terminal: other people's words can't move the cursor, change colours, or turn a line around."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
    from rich.measure import Measurement

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


class _Harmless:
    """Rich's output without the controls that are in its texts; Rich's own stay."""

    def __init__(self, renderable: "ConsoleRenderable") -> None:
        self._renderable = renderable

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.cells import cell_len

        for segment in console.render(self._renderable, options):
            # The substitute is as wide as Rich takes the control for, mostly 0, so that a table's columns stay in line.
            text = _CONTROLS.sub(lambda control: INSTEAD * cell_len(control[0]), segment.text)
            yield segment if segment.control else segment._replace(text=text)

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement

        return Measurement.get(console, options, self._renderable)


class _Hook:
    def process_renderables(self, renderables: "Iterable[ConsoleRenderable]") -> "list[ConsoleRenderable]":
        return [_Harmless(renderable) for renderable in renderables]


def console() -> "Console":
    """Return a console on which tables and lines can be printed whoever wrote their words."""
    from rich.console import Console

    harmless_console = Console()
    harmless_console.push_render_hook(_Hook())  # type: ignore[arg-type]
    return harmless_console


def prepare_streams() -> None:
    """Make sure that standard input, output and error are open, and print letters that they lack as `\\u2026`."""
    for number in _closed():  # else the next file that is opened would get the output
        os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if number == 1:
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        if number == 2:
            sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a test's has it not
            stream.reconfigure(errors="backslashreplace")


def _closed() -> Iterator[int]:
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            yield number
