"""Compare steps within this process: they run alternately, as configurations do in separate processes."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from labkit.bench.configurations import Comparison
from labkit.system import load

WARM_UP = 2  # calls that are not timed: the first builds the graph, the second still allocates memory


class Step(NamedTuple):
    """A step to measure.

    Attributes
    ----------
    run : callable
        Runs one step, and returns when it is complete.
    images : int
        The images that it processes.
    gflop_per_image : float
        Operations in convolutions and matmuls.
    use_fp16 : bool
        Whether it computes in bfloat16.
    """

    run: Callable[[], Any]
    images: int = 1
    gflop_per_image: float = 0.0
    use_fp16: bool = False


def compare_steps(steps: Mapping[str, Step], rounds: int, where: str = "", turn_s: float = 0.3) -> Comparison:
    """Run steps alternately, and print the progress.

    The rounds share a process and its memory layout, so the ratios' intervals exclude differences between launches
    (`labkit.system.statistics.ratio`).

    Parameters
    ----------
    steps : mapping of str to Step
        The steps by name.
    rounds : int
        Measurements of each step.
    where : str
        The name of this comparison, such as "section 3".
    turn_s : float
        The minimum duration of a measurement, in s: short steps are repeated.
    """
    calls = {}
    for name, step in steps.items():
        print(f"warming up: {name}", flush=True)
        for _ in range(WARM_UP):
            seconds = _time(step, 1)
        calls[name] = max(1, math.ceil(turn_s / seconds))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in steps}
    with load.watch(where) as others:
        for number in range(1, rounds + 1):
            print(f"round {number} of {rounds}", flush=True)
            for name, step in steps.items():
                speed = calls[name] * step.images / _time(step, calls[name])
                results[name].append(
                    {
                        "images_per_second": speed,
                        "gflop_per_image": step.gflop_per_image,
                        "gflops": speed * step.gflop_per_image,
                        "settings": {"use_fp16": step.use_fp16},
                    }
                )
    return Comparison(results, {}, others)


def _time(step: Step, calls: int) -> float:
    """Return the seconds that the calls take."""
    began = time.perf_counter()
    for _ in range(calls):
        step.run()
    return time.perf_counter() - began
