"""Imports of large libraries, without what takes half of their time and serves nobody here."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

SELDOM = (50_000, 10, 10)  # thresholds of the garbage collector (gc.set_threshold); Python's own are 700, 10, 10


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage during imports of modules that stay until the process ends.

    Of TensorFlow's import, a third of the computing is Python looking for garbage among what was imported, and so is a
    second at the process's end. What is imported is no garbage.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage seldom in a program that imports large libraries and ends with the block.

    With Python's own thresholds, looking for garbage takes a fifth of TensorFlow's import, and a second at the end.
    """
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.freeze()


LEFT_OUT = ("sklearn", "matplotlib")  # libraries that Keras imports where they are there, and can do without


class _NotForKeras:
    """An import hook: while Keras is imported, `LEFT_OUT` are not there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        keras = sys.modules.get("keras")
        if name in LEFT_OUT and keras and getattr(keras.__spec__, "_initializing", False):
            raise ModuleNotFoundError("Keras does without it here", name=name)
        return None


def lighten_keras() -> None:
    """Keep scikit-learn and Matplotlib out of this process's import of Keras, and so of TensorFlow, from now on.

    They take more than a second, a third of TensorFlow's import on each rank: docs/upstream.md.
    """
    sys.meta_path.insert(0, _NotForKeras())
