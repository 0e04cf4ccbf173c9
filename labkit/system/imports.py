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


# Libraries that Keras can do without, each with the part of Keras that asks for it.
LEFT_OUT = {"sklearn": "keras.src.wrappers.", "matplotlib": "keras.src.visualization."}


class _NotForKeras:
    """An import hook: for parts of Keras, and nobody else, libraries that they can do without are not there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if asks := LEFT_OUT.get(name):
            asking = sys._getframe(1)
            while asking.f_back and asking.f_globals["__name__"].startswith("importlib."):
                asking = asking.f_back
            if asking.f_globals["__name__"].startswith(asks):
                raise ModuleNotFoundError("Keras does without it here", name=name)
        return None


def lighten_keras() -> None:
    """Keep scikit-learn and Matplotlib out of this process's import of Keras, and so of TensorFlow, from now on.

    They take more than a second, a third of TensorFlow's import on each rank. Keras imports them, where they are
    there, for wrappers that make a scikit-learn estimator of a model, and for pictures of a set's images:
    docs/upstream.md.
    """
    sys.meta_path.insert(0, _NotForKeras())
