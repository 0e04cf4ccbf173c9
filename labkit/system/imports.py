"""Imports of large libraries, without the garbage collections that take a third of their time."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import within it what stays until the process ends.

    Of TensorFlow's import, a third of the computing is Python looking for garbage among what was imported, and so is a
    second at the process's end. What is imported is no garbage.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
