"""Run functions on all cores at the same time, and time them."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from labkit.system.machine import Machine, shares

ROUNDS = 5
Runs = Mapping[str, Callable[[], object]]


class Team:
    """A thread on each usable core; all threads start their runs at the same time.

    `prepare` is called on each thread's core with the thread's number, and returns its runs by name. So it is the first
    to touch the memory that the runs use.
    """

    def __init__(self, machine: Machine, prepare: Callable[[int], Runs]):
        self._cores = shares(machine, machine.usable_cores, 1)
        self._pinned = machine.quota is None  # with a quota, the kernel has to move threads to free CPUs
        self._barrier = threading.Barrier(len(self._cores), timeout=60)
        self._pool = ThreadPoolExecutor(len(self._cores))
        self._runs = self._on_each(prepare)

    def seconds(self, rounds: int = ROUNDS) -> dict[str, list[float]]:
        """Return the seconds of each run, from the first thread's start to the last one's end, round by round.

        The runs alternate, so that a slow phase of the machine affects all of them.
        """
        times = self._on_each(lambda place: [self._times(self._runs[place]) for _ in range(rounds)])
        return {
            name: [_span(thread[turn][name] for thread in times) for turn in range(rounds)] for name in self._runs[0]
        }

    def _on_each(self, work: Callable[[int], Any]) -> list[Any]:
        def pinned(place: int) -> Any:
            if self._pinned:
                os.sched_setaffinity(0, self._cores[place])  # this thread only
            self._barrier.wait()  # so that no thread runs twice
            return work(place)

        return list(self._pool.map(pinned, range(len(self._cores))))

    def _times(self, runs: Runs) -> dict[str, tuple[float, float]]:
        times = {}
        for name, run in runs.items():
            self._barrier.wait()
            start = time.perf_counter()
            run()
            times[name] = start, time.perf_counter()
        return times


def _span(times: Iterable[tuple[float, float]]) -> float:
    starts, ends = zip(*times, strict=True)
    return max(ends) - min(starts)
