"""Run functions on all cores at the same time, and time them alternately."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from labkit.measure.alternation import in_rounds
from labkit.system.machine import Machine, shares

ROUNDS = 6  # the fewest that give an interval
Runs = Mapping[str, Callable[[], object]]


class Team:
    """A thread on each usable core; all threads start a run at the same time.

    `prepare` is called on each thread's core with the thread's number, and returns its runs by name. So it is the first
    to touch the memory that the runs use.
    """

    def __init__(self, machine: Machine, prepare: Callable[[int], Runs]):
        self._cores = shares(machine, machine.usable_cores, 1)
        self._pinned = machine.quota is None  # with a quota, the kernel has to move threads to free CPUs
        self._barrier = threading.Barrier(len(self._cores), timeout=60)
        self._pool = ThreadPoolExecutor(len(self._cores))
        self._runs = self._on_each(prepare)

    def seconds(self, name: str) -> float:
        """Run `name` on all cores at the same time; return the seconds from the first start to the last end."""
        spans: list[tuple[float, float]] = self._on_each(lambda place: _span(self._runs[place][name]))
        return max(end for _, end in spans) - min(start for start, _ in spans)

    def _on_each(self, work: Callable[[int], Any]) -> list[Any]:
        def pinned(place: int) -> Any:
            if self._pinned:
                os.sched_setaffinity(0, self._cores[place])  # this thread only
            self._barrier.wait()  # so that no thread runs twice
            return work(place)

        return list(self._pool.map(pinned, range(len(self._cores))))


def _span(run: Callable[[], object]) -> tuple[float, float]:
    start = time.perf_counter()
    run()
    return start, time.perf_counter()


def rounds_of(measure: Callable[[str], float], names: Iterable[str], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Measure alternately, and return the figures of each name, round by round."""
    figures: dict[str, list[float]] = {}
    for _, name in in_rounds(names, rounds):
        figures.setdefault(name, []).append(measure(name))
    return figures
