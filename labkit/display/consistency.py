"""Consistency checks that labs print next to their numbers: totals, limits, predictions, repeated measurements."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.measure.figures import Measured, with_unit

TOLERANCE = 0.10  # a breakdown further from its total is unreliable; a prediction further off is a miss
ABOVE = 1.03  # shares of a limit above this come with an explanation


class Total(NamedTuple):
    """The sum of a breakdown, compared with the total measured independently of it.

    Attributes
    ----------
    parts, whole : float
        The sum of the parts, and the total, in `unit`.
    unit : str
        Such as "ms".
    """

    parts: float
    whole: float
    unit: str = "ms"

    @property
    def reliable(self) -> bool:
        """Whether the two differ by at most 10%."""
        return abs(self.parts / self.whole - 1) <= TOLERANCE

    def __str__(self) -> str:
        """Return one line: the sum, the total, their ratio, and a warning if the breakdown is unreliable."""
        digits = max(0, 2 - math.floor(math.log10(self.whole)))  # three significant digits
        parts, whole = (f"{value:,.{digits}f} {self.unit}" for value in (self.parts, self.whole))
        verdict = "" if self.reliable else " The breakdown is unreliable: draw no conclusion from it."
        return f"The parts sum to {parts}, {self.parts / self.whole:.0%} of the {whole} measured.{verdict}"


def total(parts: Mapping[str, float] | Iterable[float], whole: float, unit: str = "ms") -> Total:
    """Return the sum of parts that do not overlap in time, compared with the total.

    Pass parts that may overlap through `exposed` first.
    """
    return Total(float(sum(parts.values() if isinstance(parts, Mapping) else parts)), whole, unit)


def exposed(spans: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, float]:
    """Return the exposed time of each part: when it runs and no earlier part in the mapping does.

    The exposed times sum to the time in which anything runs.

    Parameters
    ----------
    spans : mapping of str to sequence of (start, end)
        When each part ran, in any unit of time. Put the part that should hide the others, such as compute, first.
    """
    times = dict.fromkeys(spans, 0.0)
    covered: list[tuple[float, float]] = []
    for name, part_spans in spans.items():
        before = sum(end - start for start, end in covered)
        covered = _union([*covered, *part_spans])
        times[name] = sum(end - start for start, end in covered) - before
    return times


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge spans, so that they do not overlap."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


@dataclass(frozen=True)
class Limit:
    """The most this machine could do, with its interval: the last column of a closing table.

    Attributes
    ----------
    measured : Measured
        The limit. Where it was calculated from measured figures, its interval follows from theirs.
    above : str
        Why a figure could exceed it, such as "the tensors stay in cache"; printed when one does.
    lower_is_better : bool
        Whether the limit is a minimum, as for times and bytes.
    """

    measured: Measured
    above: str = "this machine was slower when the limit was measured. Measure it again: ./lab roofline --again"
    lower_is_better: bool = False

    def share(self, measured: Measured) -> Measured:
        """Return the share of the limit that a figure reaches, in percent, with the interval implied by both."""
        over, under = (self.measured, measured) if self.lower_is_better else (measured, self.measured)
        value, low, high = 100 * over.value / under.value, math.nan, math.nan
        if not math.isnan(measured.low):
            (over_low, over_high), (under_low, under_high) = (_ends(figure) for figure in (over, under))
            low, high = 100 * over_low / under_high, 100 * over_high / under_low
        return Measured(value, low, high, "%", digits=0)

    def describe(self, measured: Measured) -> str:
        """Return the limit and the share that a figure reaches; above 103%, also the reason."""
        share = self.share(measured)
        if math.isnan(share.value):
            return str(self.measured)
        text = f"{self.measured}; {share} of it"
        if share.value <= 100 * ABOVE:
            return text
        return f"{text}, but its interval includes 100%" if share.low <= 100 else f"{text}: {self.above}"


def _ends(figure: Measured) -> tuple[float, float]:
    """Return the ends of a figure's interval; the figure without one."""
    return (figure.value, figure.value) if math.isnan(figure.low) else (max(0.0, figure.low), figure.high)


class Prediction(NamedTuple):
    """A prediction, and the measured figure.

    Attributes
    ----------
    name : str
        The quantity, such as "ring, 4 nodes".
    predicted : float
        The prediction, in the unit of `measured`.
    measured : Measured
        The figure.
    """

    name: str
    predicted: float
    measured: Measured

    @property
    def error(self) -> float:
        """The relative error of the prediction: 0.1 when 10% too high."""
        return self.predicted / self.measured.value - 1

    @property
    def inside(self) -> bool:
        """Whether the prediction is inside the measured interval; False without an interval."""
        return self.measured.low <= self.predicted <= self.measured.high

    def __str__(self) -> str:
        """Return one line: the prediction, the figure, inside or outside, and the error."""
        predicted = with_unit(f"{self.predicted:,.{self.measured.digits}f}", self.measured.unit)
        place = "no interval" if math.isnan(self.measured.low) else "inside" if self.inside else "outside"
        return f"{self.name}: predicted {predicted}, measured {self.measured}: {place}, {_off(self.error)}"


def _off(error: float) -> str:
    return f"{abs(error):.0%} too {'high' if error > 0 else 'low'}" if abs(error) >= 0.005 else "less than 1% off"


def score(predictions: Sequence[Prediction]) -> str:
    """Return the number of predictions inside their intervals, where there are any, and within 10% of their figures."""
    close = f"{sum(abs(prediction.error) <= TOLERANCE for prediction in predictions)} of {len(predictions)} within 10%"
    if all(math.isnan(prediction.measured.low) for prediction in predictions):
        return close
    inside = sum(prediction.inside for prediction in predictions)
    return f"{inside} of {len(predictions)} inside the measured interval, {close}"


def repeated(what: str, earlier: tuple[str, Measured], later: tuple[str, Measured]) -> str:
    """Return one line about a quantity measured twice: both figures, and whether their intervals overlap.

    Parameters
    ----------
    what : str
        The quantity, such as "oneDNN vs Eigen".
    earlier, later : (section, Measured)
        Such as ("section 1", Measured(…)).
    """
    (first_section, first), (second_section, second) = earlier, later
    figures = f"{what}: {first} in {first_section}, {second} in {second_section}"
    if math.isnan(first.low) or math.isnan(second.low):
        return f"{figures}; no intervals, {second.value / first.value:.2f}×"
    if first.low <= second.high and second.low <= first.high:
        return f"{figures}; the intervals overlap"
    return f"{figures}; the intervals do not overlap"
