"""Imports of large libraries, without what takes half of their time and serves nobody here."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec


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


class _NoEstimators:
    """Tells Keras that there is no scikit-learn, and nobody else."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "sklearn":
            asking = sys._getframe(1)
            while asking.f_back and asking.f_globals["__name__"].startswith("importlib."):
                asking = asking.f_back
            if asking.f_globals["__name__"].startswith("keras.src.wrappers."):
                raise ModuleNotFoundError("Keras does without it here", name=name)
        return None


def lighten_keras() -> None:
    """Have Keras, and so TensorFlow, imported without scikit-learn, in this process from here on.

    Scikit-learn takes a second, a quarter of TensorFlow's import on each rank. Keras imports it, where there is one,
    for wrappers that make a scikit-learn estimator of a model.
    """
    sys.meta_path.insert(0, _NoEstimators())
