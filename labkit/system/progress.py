"""How is whoever waits told what is being done?"""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console


@contextlib.contextmanager
def progress(start: str) -> Iterator[Callable[[str], None]]:
    """Return what shows a line of progress: beside a spinner in a terminal, printed in a notebook, nowhere in a pipe.

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
