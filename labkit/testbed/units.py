"""Parse and format rates as people write them: `100 Mbit/s`, `1gbit`, `2.5 Gbit/s`."""

import numbers
import re

from labkit.system.errors import LabError

MIN_RATE, MAX_RATE = 1e6, 1e11  # bit/s: a lower one takes many seconds to check; no machine carries a higher one
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_RATE = re.compile(r"([0-9.]+)\s*([kmg]?)(?:bits?(?:/s|ps)?|b/s|bps)", re.IGNORECASE)


def parse_rate(rate: object) -> float:
    """Return a rate in bit/s, from a number or a text.

    Raises
    ------
    LabError
        If it is not a rate, or out of range.
    """
    value = _bits_per_second(rate)
    if value is None:
        raise LabError(f"a rate must be like '100 Mbit/s' or '1 Gbit/s', not {rate!r}.")
    if not MIN_RATE <= value <= MAX_RATE:
        text = repr(rate) if isinstance(rate, str) else f"{rate} bit/s"
        raise LabError(f"a rate must be from {show_rate(MIN_RATE)} to {show_rate(MAX_RATE)}, not {text}.")
    return value


def _bits_per_second(rate: object) -> float | None:
    """Return the value of a number or a text; None for anything else."""
    if isinstance(rate, numbers.Real) and not isinstance(rate, bool):
        return float(rate)
    match = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    # A capital B is a byte, except in MBit. Mbps is megabytes in tc(8), but megabits to most people.
    if not match or re.search("B(?!it)", match[0]):
        return None
    try:
        return float(match[1]) * _PREFIXES[match[2].lower()]
    except ValueError:  # 1.2.3
        return None


def show_rate(rate: float, digits: int = 3) -> str:
    """Return a rate in bit/s as text, with `digits` significant digits."""
    rate = float(f"{rate:.{digits}g}")  # first, as 999.9 kbit/s may become 1 Mbit/s
    unit, name = (
        next((unit, name) for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")) if rate >= unit)
        if rate >= 1e3
        else (1.0, "bit/s")
    )
    return f"{rate / unit:.{digits}g} {name}"
