"""Rates and delays as people write them: `100 Mbit/s`, `1gbit`, `2.5 Gbit/s`; `1 ms`, `200 us`."""

import numbers
import re

from labkit.system.errors import LabError

MIN_RATE, MAX_RATE = 1e6, 1e11  # bit/s: below, its check alone would take many seconds; above, no machine carries it
MAX_DELAY = 1.0  # seconds
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_RATE = re.compile(r"([0-9.]+)\s*([kmg]?)(?:bits?(?:/s|ps)?|b/s|bps)", re.IGNORECASE)
_DELAY = re.compile(r"([0-9.]+)\s*(s|ms|us|µs|μs)")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}  # the sign micro, and the letter my


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
    if value == 0:
        raise LabError("nothing passes at a rate of 0. To pull a cable, and to plug it in again: cut and mend.")
    if not MIN_RATE <= value <= MAX_RATE:
        text = repr(rate) if isinstance(rate, str) else f"{rate} bit/s"
        raise LabError(f"a rate is from {show_rate(MIN_RATE)} to {show_rate(MAX_RATE)}, not {text}.")
    return value


def _bits_per_second(rate: object) -> float | None:
    """Return the value of a number or a text; None of anything else."""
    if isinstance(rate, numbers.Real) and not isinstance(rate, bool):
        return float(rate)
    match = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    number = _number(match[1]) if match else None
    # A capital B is a byte, but for MBit: tc(8) takes Mbps for megabytes, most people take it for megabits.
    if not match or number is None or re.search("B(?!it)", match[0]):
        return None
    return number * _PREFIXES[match[2].lower()]


def parse_delay(text: object) -> float:
    """Return a delay in seconds.

    Raises
    ------
    LabError
        When it is no delay, or one of more than a second.
    """
    match = _DELAY.fullmatch(text.strip()) if isinstance(text, str) else None
    number = _number(match[1]) if match else None
    if not match or number is None or number * _SECONDS[match[2]] > MAX_DELAY:
        raise LabError(f"a delay is written like '1 ms' or '200 us', and is 1 s at most, not {text!r}.")
    return number * _SECONDS[match[2]]


def show_rate(rate: float, digits: int = 3) -> str:
    """Return a rate in bit/s as it is written, in so many significant digits."""
    rate = float(f"{rate:.{digits}g}")  # first, as it may make 1 Mbit/s of 999.9 kbit/s
    unit, name = (
        next((unit, name) for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")) if rate >= unit)
        if rate >= 1e3
        else (1.0, "bit/s")
    )
    return f"{rate / unit:.{digits}g} {name}"


def show_delay(seconds: float) -> str:
    """Return a delay as it is written, to the nanosecond."""
    return f"{f'{1e3 * seconds:.6f}'.rstrip('0').rstrip('.')} ms"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # 1.2.3
        return None
