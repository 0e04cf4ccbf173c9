"""Import large libraries faster: with less garbage collection, and without optional dependencies."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec

RARE_GC = (50_000, 10, 10)  # the garbage collector's thresholds (gc.set_threshold); the defaults are 700, 10, 10


@contextlib.contextmanager
def gc_rare() -> Iterator[None]:
    """Collect garbage rarely in a program that imports large libraries and ends with the block.

    With Python's default thresholds, garbage collection takes a fifth of TensorFlow's import, and a second at the end.
    """
    gc.set_threshold(*RARE_GC)
    try:
        yield
    finally:
        gc.freeze()


OPTIONAL = ("sklearn", "matplotlib", "pandas", "IPython")  # Keras imports them if installed, but does not need them


class _HideFromKeras:
    """An import hook that hides `OPTIONAL` while Keras is being imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        keras = sys.modules.get("keras")
        if name in OPTIONAL and keras and getattr(keras.__spec__, "_initializing", False):
            raise ModuleNotFoundError("hidden from Keras here", name=name)
        return None


def lighten_keras() -> None:
    """Keep `OPTIONAL` out of this process's later imports of Keras, and so of TensorFlow.

    They take more than a second, a third of TensorFlow's import on each rank: docs/contribute/upstream.md.
    """
    sys.meta_path.insert(0, _HideFromKeras())
