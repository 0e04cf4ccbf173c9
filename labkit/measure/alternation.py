"""Measure variants alternately, so that a slow phase of the machine affects all of them."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from labkit.measure.figures import Measured, Source, summarize
from labkit.system import load
from labkit.system.errors import LabError
from labkit.system.terminal import progress
from labkit.system.words import plural

WARM_UP = 2  # calls that are not timed: the first builds a graph, the second still allocates memory
SHOW_PROGRESS_S, ANNOUNCE_S = 5, 20
MAX_NAMES = 100  # characters of the variants' names in a line
_ONE_AT_A_TIME = threading.Lock()  # a measurement waits for the one in the background


def alternate(
    variants: Mapping[str, Callable[[], float]],
    rounds: int,
    unit: str = "",
    where: str = "",
    on_progress: Callable[[str], object] | None = None,
) -> dict[str, Measured]:
    """Measure variants alternately, and return the figure of each.

    The order is reversed in every other round. Nine rounds are a good choice where a round takes under 3 s, six
    otherwise; with fewer, figures have no interval. Figures of one call are compared round by round (`compare`).

    Parameters
    ----------
    variants : mapping of str to callable
        Each measures once and returns a positive figure; see `per_second`.
    rounds : int
        Measurements of each variant.
    unit : str
        The unit of the figures, such as "images/s" or "ms".
    where : str
        The name of this measurement, such as "section 3": the part to run again if other work used the cores.
    on_progress : callable, optional
        Called with each line about the progress, which is then not shown.

    Raises
    ------
    LabError
        If a figure is not positive.
    """
    what = ", ".join(variants)
    results: dict[str, list[float]] = {name: [] for name in variants}
    shown = contextlib.nullcontext(on_progress) if on_progress else progress(f"Measuring {what[:MAX_NAMES]} …")
    with _ONE_AT_A_TIME, load.watch(where, show=on_progress is None) as contention, shown as report:
        source = Source.now(f"{where}: {what}" if where else what)
        total, began = rounds * len(variants), time.monotonic()
        for done, (number, name) in enumerate(in_rounds(variants, rounds), 1):
            results[name].append(positive(name, variants[name]()))
            expected_s = (time.monotonic() - began) / done * total
            if done == 1 and expected_s > ANNOUNCE_S:
                report(f"{what if len(what) < MAX_NAMES else plural(total, 'measurement')}: about {expected_s:.0f} s")
            elif done % len(variants) == 0 and expected_s > SHOW_PROGRESS_S:
                report(f"round {number} of {rounds}, about {expected_s * (1 - done / total):.0f} s left")
    return {name: summarize(figures, unit, source, (contention,)) for name, figures in results.items()}


def in_rounds(names: Iterable[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield the number of each round, from 1, with each name; the order is reversed in every other round."""
    order = list(names)
    for number in range(1, rounds + 1):
        yield from ((number, name) for name in order)
        order.reverse()


def positive(name: str, figure: float) -> float:
    """Return a figure.

    Raises
    ------
    LabError
        If it is not a positive number, so that it has no ratio to others.
    """
    if not 0 < figure < math.inf:
        raise LabError(f"{name}: a figure must be a positive number, not {figure:g}.")
    return figure


def per_second(run: Callable[[], object], work: float = 1, at_least_s: float = 0.3) -> Callable[[], float]:
    """Return a variant for `alternate`: the work per second of `run`, which is called now to warm up.

    Parameters
    ----------
    run : callable
        Does some work, and returns when it is done.
    work : float
        The work of one call, such as 32 images.
    at_least_s : float
        The duration of a measurement, in s: a shorter `run` is repeated.
    """
    for _ in range(WARM_UP):
        one_s = _duration(run, 1)
    calls = max(1, math.ceil(at_least_s / one_s))
    return lambda: calls * work / _duration(run, calls)


def _duration(run: Callable[[], object], calls: int) -> float:
    """Return the seconds that the calls take."""
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - began
