"""A progress line during long operations."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def progress(start: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a progress line: next to a spinner in a terminal, printed in a notebook.

    Without a terminal, it shows nothing.

    Parameters
    ----------
    start : str
        The first line next to the spinner.
    """
    console = Console(stderr=True)
    if console.is_jupyter:
        yield lambda line: print(line, flush=True)
    else:
        with console.status(start) as status:
            yield status.update
