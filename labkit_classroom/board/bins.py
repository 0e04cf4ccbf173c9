"""Bins of a histogram of guesses: round, few, and open at both ends, so that a guess of 1e12 takes no other's room."""

import itertools
import math
from collections.abc import Sequence

MOST = 7  # bins between the two that are open
WIDE = 20.0  # times the least guess: beyond, each bin is some times as wide as the one before
FENCE = 1.5  # times the middle half's width: what is further out is in an open bin
SAME = 1e-9  # of a guess's size: closer ones are the same


def edges(values: Sequence[float]) -> list[float]:
    """Return the edges of bins, at least two, for five values or more: half of them lie between the first and the last.

    A bin holds its lower edge. What is below the first edge, or not below the last, is in an open bin: that is what
    lies far from the others, by Tukey's fences (Exploratory Data Analysis, 1977).
    """
    ordered = sorted(values)
    last = len(ordered) - 1
    first_quarter, third_quarter = ordered[math.ceil(last / 4)], ordered[math.floor(3 * last / 4)]
    reach = FENCE * (third_quarter - first_quarter)
    inside = [value for value in ordered if first_quarter - reach <= value <= third_quarter + reach]
    low, high = inside[0], inside[-1]
    if low > 0 and math.log(high) - math.log(low) >= math.log(WIDE):
        return _powers(low, high)
    size = max(abs(low), abs(high))
    step = _round(high - low if high - low > SAME * size else 1.25 * size or 5) if size >= 1e-300 else 1.0
    return [_plain(step * place) for place in range(math.floor(low / step), math.floor(high / step) + 2)]


def _round(span: float) -> float:
    """Return a round step of which some five make a span."""
    power = math.floor(math.log10(span / 5))
    return next(step for factor in (1, 2, 5, 10) if (step := float(f"{factor}e{power}")) >= span / 5 * (1 - SAME))


def _powers(low: float, high: float) -> list[float]:
    """Return edges of which each is some times the one before."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    for factors, stride in itertools.chain([((1, 2, 5), 1), ((1, 3), 1)], (((1,), stride) for stride in range(1, 999))):
        marks = [float(f"{factor}e{power}") for power in range(first, last + stride, stride) for factor in factors]
        found = [max((mark for mark in marks if mark <= low), default=marks[0])]
        found += [mark for mark in marks if found[0] < mark <= high]
        found += [mark for mark in marks if mark > high][:1]
        if len(found) <= MOST + 1:
            return found
    raise AssertionError("a stride of all powers has two edges")


def _plain(edge: float) -> float:
    """Return an edge without what adding up tenths leaves behind."""
    return float(f"{edge:.12g}")
