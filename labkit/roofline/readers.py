"""Measure read bandwidth with several readers: the fastest is the limit for reading more than the caches hold.

The fastest reader depends on the machine: one stream per core can leave memory idle where a matmul, which reads
several, does not.
"""

import ctypes
import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labkit.roofline import together
from labkit.system import compiler, lacks
from labkit.system.machine import Machine

SOURCE = Path(__file__).with_suffix(".c")
MAXIMUM, FOUR_STREAMS, MATMUL = "NumPy's maximum", "four streams in C", "NumPy's x @ W"
COLUMNS = 4096  # of W
SETTLE_S = 0.2  # after a matmul, OpenBLAS threads spin and occupy the cores: for over 0.05 s on an EPYC


def by_core() -> dict[str, Callable[[np.ndarray], object]]:
    """Return the single-core readers by name; each reads a float32 array once."""
    readers: dict[str, Callable[[np.ndarray], object]] = {MAXIMUM: np.maximum.reduce}
    if not lacks.reason("compiler") and (path := compiler.library(SOURCE)):
        read = ctypes.CDLL(str(path)).read_floats
        read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_float
        readers[FOUR_STREAMS] = lambda array: read(array.ctypes.data, array.size)
    return readers


class Memory:
    """An array beyond the caches, of `size` bytes, and the speeds at which all usable cores read it."""

    def __init__(self, machine: Machine, size: float):
        rows = max(1, int(size) // 4 // COLUMNS // machine.usable_cores)
        self._matrix = np.empty((machine.usable_cores * rows, COLUMNS), np.float32)
        self._vector = np.ones(len(self._matrix), np.float32)
        self._by_core = by_core()

        def prepare(place: int) -> together.Runs:
            part = self._matrix[place * rows : (place + 1) * rows].reshape(-1)
            part.fill(1)  # first touch: on the thread's core, so in its memory
            return {name: functools.partial(run, part) for name, run in self._by_core.items()}

        self._team = together.Team(machine, prepare)

    def speeds(self, rounds: int) -> dict[str, list[float]]:
        """Return the GB/s of each reader, round by round, measured alternately."""
        time.sleep(SETTLE_S)
        return together.rounds_of(self._speed, [*self._by_core, MATMUL], rounds)

    def _speed(self, name: str) -> float:
        if name in self._by_core:
            return self._matrix.nbytes / self._team.seconds(name) / 1e9
        start = time.perf_counter()
        self._vector @ self._matrix
        speed = self._matrix.nbytes / (time.perf_counter() - start) / 1e9
        time.sleep(SETTLE_S)
        return speed

    def read(self) -> float:
        """Measure and return the GB/s of the fastest reader, each by its best of three."""
        return max(map(max, self.speeds(3).values()))
