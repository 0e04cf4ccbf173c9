"""Measured figures: value, confidence interval and unit, formatted the same everywhere."""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    """A measured figure, such as `1.81× (1.68 to 1.95)`; for a `statistics.Ratio`, use `Measured(*ratio, "×")`.

    Attributes
    ----------
    value : float
        The value in the unit: 87 for 87%.
    low, high : float
        Its 95% confidence interval; NaN if unknown.
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
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    unit: str = ""
    digits: int = 2
    of: str = ""
    note: str = ""
    signed: bool = False

    def __str__(self) -> str:
        """Return the figure as text; the unit follows the value only."""
        value, low, high = (f"{part:{'+' * self.signed},.{self.digits}f}" for part in (self.value, self.low, self.high))
        interval = "" if math.isnan(self.low) else f" ({low} to {high})"
        before, after = f"{self.of}: " if self.of else "", f", {self.note}" if self.note else ""
        return f"{before}{with_unit(value, self.unit)}{interval}{after}"

    def numbers(self) -> dict[str, Any] | None:
        """Return value, interval and unit for JSON; None if the value is not finite."""
        value, low, high = (round(float(part), self.digits) for part in (self.value, self.low, self.high))
        if not math.isfinite(value):
            return None
        interval = [low, high] if math.isfinite(low) and math.isfinite(high) else None
        return {"value": value, "interval": interval, "unit": self.unit}


def with_unit(number: str, unit: str) -> str:
    """Return a number as text with its unit: 2.1× and 87%, but 4.7 images/s."""
    return f"{number}{'' if unit in ('×', '%') else ' '}{unit}".rstrip()
