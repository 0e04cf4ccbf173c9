"""Rates as people write them: `100 Mbit/s`, `1gbit`, `2.5 Gbit/s`."""

import numbers
import re

from labkit.system.errors import LabError

MIN_RATE, MAX_RATE = 1e6, 1e11  # bit/s: below, its check alone would take many seconds; above, no machine carries it
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_RATE = re.compile(r"([0-9.]+)\s*([kmg]?)(?:bits?(?:/s|ps)?|b/s|bps)", re.IGNORECASE)


def parse_rate(rate: object) -> float:
    """Return a rate in bit/s, which is given as a number or as a text.

    Raises
    ------
    LabError
        When it is no rate, or one that no wire here can have.
    """
    value = _bits_per_second(rate)
    if value is None:
        raise LabError(f"a rate is written like '100 Mbit/s' or '1 Gbit/s', not {rate!r}.")
    if not MIN_RATE <= value <= MAX_RATE:
        text = repr(rate) if isinstance(rate, str) else f"{rate} bit/s"
        raise LabError(f"a rate is from {show_rate(MIN_RATE)} to {show_rate(MAX_RATE)}, not {text}.")
    return value


def _bits_per_second(rate: object) -> float | None:
    """Return the value of a number or a text; None of anything else."""
    if isinstance(rate, numbers.Real) and not isinstance(rate, bool):
        return float(rate)
    match = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    # A capital B is a byte, but for MBit: tc(8) takes Mbps for megabytes, most people take it for megabits.
    if not match or re.search("B(?!it)", match[0]):
        return None
    try:
        return float(match[1]) * _PREFIXES[match[2].lower()]
    except ValueError:  # 1.2.3
        return None


def show_rate(rate: float, digits: int = 3) -> str:
    """Return a rate in bit/s as it is written, in so many significant digits."""
    rate = float(f"{rate:.{digits}g}")  # first, as it may make 1 Mbit/s of 999.9 kbit/s
    unit, name = (
        next((unit, name) for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")) if rate >= unit)
        if rate >= 1e3
        else (1.0, "bit/s")
    )
    return f"{rate / unit:.{digits}g} {name}"
