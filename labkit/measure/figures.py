"""Measured figures: value, interval, unit and origin, formatted the same everywhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from labkit.system.load import Contention

MAX_ERROR = 0.05  # the share of intervals that may miss the true median


class Source(NamedTuple):
    """The origin of a figure: figures with the same origin were measured in the same rounds.

    Attributes
    ----------
    what : str
        The measurement, such as "section 3: eager, graph".
    when : str
        Its start in ISO 8601, with milliseconds.
    """

    what: str
    when: str

    @classmethod
    def now(cls, what: str) -> "Source":
        """Return the source of a measurement that starts now."""
        return cls(what, datetime.now().astimezone().isoformat(timespec="milliseconds"))

    def __str__(self) -> str:
        """Return it in one line, to the second."""
        return f"{self.what}, {self.when[:19]}"


@dataclass(frozen=True)
class Measured:
    """A measured figure, such as `12.4 images/s (12.1 to 12.9)`.

    Attributes
    ----------
    value : float
        The value in the unit: 87 for 87%.
    low, high : float
        Its 95% interval; NaN if there is none.
    unit : str
        Such as "×", "%" or "images/s".
    digits : int
        Decimal places of value and interval, shown and stored.
    of : str
        The two sides of a ratio, such as "6.8 → 12.4 images/s"; printed before the figure.
    note : str
        A remark of a few words; printed after the figure.
    signed : bool
        Whether to show a plus sign, for differences.
    rounds : tuple of float
        The figure of each round, in order; empty if it was not measured in rounds.
    source : Source, optional
        What produced it, and when.
    contention : tuple of Contention
        Other work on the cores meanwhile; a closing table marks the figure if it was significant.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    unit: str = ""
    digits: int = 2
    of: str = ""
    note: str = ""
    signed: bool = False
    rounds: tuple[float, ...] = ()
    source: Source | None = None
    contention: tuple[Contention, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        """Return the figure as text; the unit follows the value only. Too few rounds for an interval are listed."""
        value, low, high, *points = (
            f"{part:{'+' * self.signed},.{self.digits}f}" for part in (self.value, self.low, self.high, *self.rounds)
        )
        if not math.isnan(self.low):
            interval = f" ({low} to {high})"
        else:
            interval = f" ({len(points)} rounds: {', '.join(points)})" if len(points) > 1 else ""
        before, after = f"{self.of}: " if self.of else "", f", {self.note}" if self.note else ""
        return f"{before}{with_unit(value, self.unit)}{interval}{after}"

    def numbers(self) -> dict[str, Any] | None:
        """Return value, interval, unit and, if known, source for JSON; None if the value is not finite."""
        value, low, high = (round(float(part), self.digits) for part in (self.value, self.low, self.high))
        if not math.isfinite(value):
            return None
        interval = [low, high] if math.isfinite(low) and math.isfinite(high) else None
        source = {"source": str(self.source)} if self.source else {}
        return {"value": value, "interval": interval, "unit": self.unit} | source


def summarize(
    rounds: Sequence[float], unit: str = "", source: Source | None = None, contention: tuple[Contention, ...] = ()
) -> Measured:
    """Return the figure of some rounds: the median, and its interval.

    The interval is between two rounds, equally far from the smallest and the largest, and contains the true median in
    at least 95% of cases, whatever the distribution. With 6 to 8 rounds, it is their range; with 9, the smallest and
    the largest are left out. With fewer than six rounds, there is no interval.

    Parameters
    ----------
    rounds : sequence of float
        The figure of each round; all positive.
    """
    ordered, n = sorted(map(float, rounds)), len(rounds)
    value = math.sqrt(ordered[(n - 1) // 2]) * math.sqrt(ordered[n // 2])  # so 1/x has the median 1/value
    value = ordered[n // 2] if n % 2 else value
    left_out, missed = -1, 1  # at either end; of 2**n equally likely orders, those whose interval misses
    while missed / 2**n <= MAX_ERROR / 2:
        left_out += 1
        missed += math.comb(n, left_out + 1)
    low, high = (ordered[left_out], ordered[n - 1 - left_out]) if left_out >= 0 else (math.nan, math.nan)
    return Measured(value, low, high, unit, decimals(value), rounds=tuple(rounds), source=source, contention=contention)


def decimals(value: float, digits: int = 3) -> int:
    """Return the decimal places that show a positive value with that many significant digits."""
    return max(0, digits - 1 - math.floor(math.log10(value)))


def with_unit(number: str, unit: str) -> str:
    """Return a number as text with its unit: 2.1× and 87%, but 4.7 images/s."""
    return f"{number}{'' if unit in ('×', '%') else ' '}{unit}".rstrip()
