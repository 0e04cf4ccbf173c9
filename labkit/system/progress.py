"""A line of progress for whoever waits."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def progress(start: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress: beside a spinner in a terminal, printed in a notebook.

    In a pipe, it shows nothing.

    Parameters
    ----------
    start : str
        The line that the spinner starts with.
    """
    console = Console(stderr=True)
    if console.is_jupyter:
        yield lambda line: print(line, flush=True)
    else:
        with console.status(start) as status:
            yield status.update
