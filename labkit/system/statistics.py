"""Ratios of measured speeds, with their 95% confidence intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Ratio(NamedTuple):
    """A ratio of two speeds.

    Attributes
    ----------
    value : float
        How many times as fast.
    low, high : float
        The 95% confidence interval: of such intervals, 19 in 20 hold the true ratio. Not a number when there was
        only one round.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 1: one is faster, and that is not luck."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        """Return it as in `3.42 (3.31 to 3.53)`."""
        return f"{self.value:.2f}" + ("" if math.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})")


def ratio(measured: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Return the ratio of two speeds that were measured in turns.

    Lasting noise affects both speeds of a round alike, so each round gives one ratio, and their spread tells how
    certain the mean is: Student's t on their logarithms.

    Parameters
    ----------
    measured, reference : sequence of float
        The speeds of the same rounds, in the same unit.
    """
    logs = np.log(np.asarray(measured, float) / np.asarray(reference, float))
    if len(logs) == 1:
        return Ratio(math.exp(logs[0]))
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    return Ratio(*(math.exp(logs.mean() + shift) for shift in (0, -half, half)))
