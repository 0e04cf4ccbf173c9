"""Printing to a terminal: untrusted text, which can't move the cursor or change colours; tables; progress."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

# Control characters (C0 except tab and newline, DEL, C1), controls of writing direction, and surrogates.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_LINE = 600  # characters per line of an error


def sanitize(text: str) -> str:
    """Replace each control character in a text with `REPLACEMENT`."""
    return _CONTROLS.sub(REPLACEMENT, text)


def say(text: str) -> None:
    """Print an error or a warning, sanitized and with very long lines shortened in the middle."""
    lines = (
        line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} … {line[-MAX_LINE // 2 :]}"
        for line in sanitize(text).split("\n")
    )
    print("\n".join(lines), file=sys.stderr)


_seen: set[Hashable] = set()


def is_new(key: Hashable) -> bool:
    """Return whether this process asks for a key, such as a text to print once, for the first time."""
    before = len(_seen)
    _seen.add(key)
    return len(_seen) > before


def warn(text: str) -> None:
    """Print a warning; print the same text only once."""
    if is_new(text):
        say(f"Warning: {text}")


@contextlib.contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Redirect standard error, child processes included, to a new file that only its owner can read."""
    log.unlink(missing_ok=True)
    log.touch(mode=0o600, exist_ok=False)  # private before anything is written
    terminal = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


def console() -> "Console":
    """Return a console that prints untrusted tables and lines safely."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=sanitize(segment.text))

    return SafeConsole()


def plain_table(*columns: "Column", header: bool = False) -> "Table":
    """Return an empty table without rules, with two spaces between columns."""
    from rich.table import Table

    return Table(*columns, box=None, show_header=header, pad_edge=False, padding=(0, 2, 0, 0))


@contextlib.contextmanager
def progress(start: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a progress line: next to a spinner in a terminal, printed in a notebook.

    Without a terminal, it shows nothing.

    Parameters
    ----------
    start : str
        The first line next to the spinner.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_jupyter:
        yield lambda line: print(line, flush=True)
    elif sys.stderr.isatty():  # FORCE_COLOR only makes rich believe it
        with console.status(start) as status:
            yield status.update
    else:
        yield lambda line: None


def prepare_streams() -> None:
    """Print characters that the encoding of standard output and error lacks as `\\u2026`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not in tests
            stream.reconfigure(errors="backslashreplace")
