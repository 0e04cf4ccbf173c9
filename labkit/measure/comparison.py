"""Comparisons of figures: the ratio of two speeds, with its interval and a verdict, and the share of a limit."""

import math
from dataclasses import dataclass

from labkit.measure.figures import Measured, decimals, summarize
from labkit.system.errors import LabError

TIMES = ("ns", "µs", "ms", "s", "min", "h")  # units in which less is faster
MAX_SHARE = 103  # percent; beyond, the limit was measured too low
NOT_VALID = "⚠ limit not valid"


@dataclass(frozen=True)
class Speedup(Measured):
    """The ratio of two speeds, such as `1.81× (1.68 to 1.95): faster`."""

    unit: str = "×"

    @property
    def verdict(self) -> str:
        """The conclusion from the interval: "faster", "slower", or the largest difference that it leaves possible."""
        if math.isnan(self.low):
            return "undecided"
        if self.low > 1:
            return "faster"
        if self.high < 1:
            return "slower"
        at_most = math.ceil(round(100 * (max(self.high, 1 / self.low) - 1), 6))
        return f"no difference shown (at most ±{at_most}%)"

    def __str__(self) -> str:
        """Return the ratio and the verdict."""
        return f"{super().__str__()}: {self.verdict}"


def compare(a: Measured, b: Measured, less_is_faster: bool | None = None) -> Speedup:
    """Return the speed of `a` relative to that of `b`.

    Figures of one `alternate` give a ratio in each round, in which lasting noise cancels. The result is the median of
    these ratios with its interval. Other figures give the quotient of their values, from the smallest to the largest
    that their intervals allow. A note, such as "recorded", is kept.

    Parameters
    ----------
    a, b : Measured
        The figures, in the same unit.
    less_is_faster : bool, optional
        Whether a smaller figure is better; by default where the unit is one of time.

    Raises
    ------
    LabError
        If their units differ.
    """
    if a.unit != b.unit:
        raise LabError(f"figures in {a.unit or 'no unit'!r} and {b.unit or 'no unit'!r} can't be compared.")
    if a.unit in TIMES if less_is_faster is None else less_is_faster:
        a, b = b, a
    contention = (*a.contention, *(others for others in b.contention if others not in a.contention))
    if a.rounds and a.source and a.source == b.source:
        ratio = summarize([x / y for x, y in zip(a.rounds, b.rounds, strict=True)], "×", a.source, contention)
    else:
        ratio = Measured(a.value / b.value, a.low / b.high, a.high / b.low, "×", contention=contention)
    digits = 2 if 0.1 <= ratio.value < 10 else decimals(ratio.value)
    while not ratio.low <= 1 <= ratio.high and 1 in (round(ratio.low, digits), round(ratio.high, digits)):
        digits += 1  # "0.84× (0.79 to 1.00): slower" would contradict itself
    return Speedup(**{**vars(ratio), "digits": digits, "note": a.note or b.note})


def share(figure: Measured, limit: Measured) -> Measured:
    """Return the share of a limit that a figure reaches, in percent; above 103%, the note is "⚠ limit not valid".

    Measure a limit that varies, as memory bandwidth does, in the same `alternate` as the figure.
    """
    ratio = compare(figure, limit)
    value, low, high, *rounds = (100 * part for part in (ratio.value, ratio.low, ratio.high, *ratio.rounds))
    note = NOT_VALID if value > MAX_SHARE else ratio.note
    figures = {"value": value, "low": low, "high": high, "digits": decimals(value, 2), "rounds": tuple(rounds)}
    return Measured(**{**vars(ratio), **figures, "unit": "%", "note": note})
