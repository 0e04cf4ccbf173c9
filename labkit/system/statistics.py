"""The first edition's ratios of measured speeds, which its labs import; `labkit.measure` replaces them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

OUTLIER = 0.6  # the share of the median, or its inverse, beyond which a round may belong to another mode
FAR = 4.0  # median distances from the median, 2.7 standard deviations: any nearer is noise


class _Interval(NamedTuple):
    value: float
    low: float = math.nan
    high: float = math.nan


class Ratio(_Interval):
    """A ratio of two speeds; a tuple of the first three attributes.

    Attributes
    ----------
    value : float
        The ratio of the first speed to the second.
    low, high : float
        The 95% confidence interval: 19 in 20 such intervals contain the true ratio. NaN if there was only one round.
    rounds, won, lost : int
        The number of rounds, and of those that the first speed won and lost; the rest are ties.
    outliers : str
        Rounds in a different mode from the rest, such as "round 3 at 0.38 of the median"; usually empty. With outliers
        the interval says little, and the verdict is by rank.
    """

    rounds = won = lost = 0
    outliers = ""

    @property
    def significant(self) -> bool:
        """Whether the difference is significant: the interval excludes 1; with outliers, by the sign test."""
        if self.outliers:  # six of six rounds, eight of nine, …
            return bool(2 * special.bdtr(min(self.won, self.lost), self.won + self.lost, 0.5) <= 0.05)
        return self.low > 1 or self.high < 1

    @property
    def record(self) -> str:
        """The first speed by rank, such as "best in 6 of 6" or "slower in 5 of 6"; empty for a single round."""
        word = "best" if self.won >= self.lost else "slower"
        return f"{word} in {max(self.won, self.lost)} of {self.rounds}" if self.rounds > 1 else ""

    @property
    def by_rank(self) -> str:
        """The outliers and the record that counts because of them; empty without outliers."""
        return f"{self.outliers}, so by rank: {self.record}" if self.outliers else ""

    @property
    def verdict(self) -> str:
        """The conclusion from the rounds: "faster", "slower", or why there is none yet."""
        if math.isnan(self.low):
            return "one round only, so there is no interval"
        if not self.significant:
            return "; ".join(filter(None, ["not significant", self.by_rank]))
        return "faster" if self.faster else "slower"

    @property
    def faster(self) -> bool:
        """Whether the first speed is higher: by rank with outliers, else by the mean."""
        return self.won > self.lost if self.outliers else self.value > 1

    @property
    def verdict_by_rounds(self) -> str:
        """The verdict and the record, such as "faster, best in 6 of 6" or "slower in 5 of 6"."""
        if self.record.startswith(self.verdict):
            return self.record
        return self.verdict if self.record in self.verdict else f"{self.verdict}, {self.record}"

    def __str__(self) -> str:
        """Return a text such as `3.42 (3.31 to 3.53)`, with the record if outliers make the rank decide."""
        if math.isnan(self.low):
            return f"{self.value:.2f}"
        by_rank = f"; {self.by_rank}" if self.outliers and self.significant else ""
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f}{by_rank})"


def ratio(measured: Sequence[float], reference: Sequence[float]) -> Ratio:
    """Return the ratio of two speeds that were measured alternately.

    Lasting noise affects both speeds of a round alike, so each round gives one ratio, and their spread gives the
    uncertainty of the mean: Student's t on their logarithms. If possible, a round is a separate launch: repetitions
    within a process share its memory layout and thread placement, while a relaunch is a new sample.

    Parameters
    ----------
    measured, reference : sequence of float
        The speeds of the same rounds, in the same unit.
    """
    return ratios({"measured": measured, "reference": reference}, "reference")["measured"]


def ratios(speeds: Mapping[str, Sequence[float]], reference: str) -> dict[str, Ratio]:
    """Return the ratio of each speed to a reference, whose own ratio is 1; all measured in the same rounds.

    Each is as from `ratio`: its interval comes from these two speeds only, whatever the noise of the others.

    Parameters
    ----------
    speeds : mapping of str to sequence of float
        The speeds round by round, the same number for each name.
    reference : str
        The name of the reference speed.
    """
    logs = np.log(np.array([*speeds.values()], float) / np.asarray(speeds[reference], float))
    mean, half = interval(logs)
    ends = np.exp([mean, mean - half, mean + half]).T.tolist()
    results = {name: Ratio(*values) for name, values in zip(speeds, ends, strict=True)} | {
        reference: Ratio(1.0, 1.0, 1.0)
    }
    for result, log in zip(results.values(), logs, strict=True):
        result.rounds, result.won, result.lost = len(log), int((log > 0).sum()), int((log < 0).sum())
        result.outliers = _outliers(log)
    return results


def _outliers(logs: np.ndarray) -> str:
    """Return the rounds that are far from the median, both absolutely and relative to the other rounds."""
    distances = logs - np.median(logs)
    far = np.flatnonzero(np.abs(distances) > max(-math.log(OUTLIER), FAR * np.median(np.abs(distances))))
    return ", ".join(f"round {index + 1} at {math.exp(distances[index]):.2f} of the median" for index in far)


def interval(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means over the last axis, the rounds, and half the widths of their 95% confidence intervals."""
    rounds, mean = logs.shape[-1], logs.mean(axis=-1)
    if rounds == 1:
        return mean, np.full_like(mean, math.nan)
    return mean, special.stdtrit(rounds - 1, 0.975) * logs.std(axis=-1, ddof=1) / math.sqrt(rounds)
