"""Runs on all cores at the same time."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from labkit.system.machine import Machine, shares

ROUNDS = 5


def seconds(machine: Machine, prepare: Callable[[], Mapping[str, Callable[[], object]]]) -> dict[str, list[float]]:
    """Return the seconds of each run, from the first thread's start to the last one's end, round by round.

    Parameters
    ----------
    machine : Machine
        A thread runs on each of its usable cores.
    prepare : callable
        Called in each thread, which so touches first what its runs use; returns them by name.
    """
    threads = machine.usable_cores
    barrier = threading.Barrier(threads, timeout=60)

    def work(cpus: Iterable[int]) -> dict[str, list[tuple[float, float]]]:
        if machine.quota is None:  # else the kernel has to move it to a CPU that is free
            os.sched_setaffinity(0, cpus)  # of this thread alone
        return {name: [timed(run) for _ in range(ROUNDS)] for name, run in prepare().items()}

    def timed(run: Callable[[], object]) -> tuple[float, float]:
        barrier.wait()
        start = time.perf_counter()
        run()
        return start, time.perf_counter()

    with ThreadPoolExecutor(threads) as pool:
        times = list(pool.map(work, shares(machine, threads, 1)))
    return {name: list(map(_span, zip(*(one[name] for one in times), strict=True))) for name in times[0]}


def _span(times: Iterable[tuple[float, float]]) -> float:
    starts, ends = zip(*times, strict=True)
    return max(ends) - min(starts)
