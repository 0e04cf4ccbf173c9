"""Compare steps within this process: they run alternately, as configurations do in separate processes."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from labkit.bench.configurations import Comparison
from labkit.measure import alternate, per_second


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
    """Run steps alternately.

    The rounds share a process and its memory layout, so the ratios' intervals exclude differences between launches.

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
    variants = {name: per_second(step.run, step.images, turn_s) for name, step in steps.items()}
    speeds = alternate(variants, rounds, "images/s", where)
    results = {
        name: [
            {
                "images_per_second": speed,
                "gflop_per_image": steps[name].gflop_per_image,
                "gflops": speed * steps[name].gflop_per_image,
                "settings": {"use_fp16": steps[name].use_fp16},
            }
            for speed in measured.rounds
        ]
        for name, measured in speeds.items()
    }
    first = next(iter(speeds.values()))
    return Comparison(results, {}, first.contention[0], first.source)
