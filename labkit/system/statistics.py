"""Ratios of measured speeds, with their 95% confidence intervals."""

import math
from collections.abc import Mapping, Sequence
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

    @property
    def verdict(self) -> str:
        """What the interval says, in words, and no more than that."""
        if math.isnan(self.low):
            return "one round only, so there is no interval"
        if not self.significant:
            return "no difference beyond chance"
        return "faster" if self.value > 1 else "slower"

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
    return ratios({"measured": measured, "reference": reference}, "reference")["measured"]


def ratios(speeds: Mapping[str, Sequence[float]], reference: str) -> dict[str, Ratio]:
    """Return the ratio of each speed to one of them, which has 1; all measured in turns, in the same rounds.

    A round is slow for all alike: that is taken out of each speed's logarithm. What is left is noise, which is taken
    to be as large for each of them. Pooled over all, it is known from few rounds: with 6 speeds and 3 rounds, an
    interval is half as long as from one pair. This is the two-way analysis of variance without interaction, of
    which Student's paired t is the case of two.

    Parameters
    ----------
    speeds : mapping of str to sequence of float
        At least two, round by round, equally many of each.
    reference : str
        Which of them the others are compared with.
    """
    logs = np.log(np.array([*speeds.values()], float) / np.asarray(speeds[reference], float))
    kinds, rounds = logs.shape
    half = math.nan
    if rounds > 1:
        noise = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0) + logs.mean()
        degrees = (kinds - 1) * (rounds - 1)
        half = stats.t.ppf(0.975, degrees) * math.sqrt((noise**2).sum() / degrees * 2 / rounds)
    means = zip(speeds, logs.mean(axis=1), strict=True)
    found = {name: Ratio(*(math.exp(mean + shift) for shift in (0, -half, half))) for name, mean in means}
    return found | {reference: Ratio(1.0, 1.0, 1.0)}
