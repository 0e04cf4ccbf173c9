"""Rates are parsed as people write them, and nothing else is accepted."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_error import error_of

from labkit.testbed import units
from labkit.testbed.units import parse_rate, show_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        *((text, 1e8) for text in ("100 Mbit/s", "100Mbit/s", "  100 mbit  ", "100 Mbps", "100 Mb/s", "100 Mbits/s")),
        *((text, 1e8) for text in ("100 MBit/s", "100\u00a0Mbit/s")),
        ("1gbit", 1e9),
        ("1 Gbit/s", 1e9),
        ("2.5 Gbit/s", 2.5e9),
        (".5 Gbit/s", 5e8),
        ("1000 kbit/s", 1e6),
        ("1000000 bit/s", 1e6),
        ("100 Gbit/s", 1e11),
    ],
)
def test_rates_as_people_write_them(text, rate):
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("rate", [1e9, 10**9, np.float32(1e9), Fraction(10**10, 10)])
def test_a_number_is_in_bit_per_second(rate):
    value = parse_rate(rate)
    assert type(value) is float
    assert value == 1e9


@pytest.mark.parametrize(
    "rate",
    [
        *("", "fast", "100", "Mbit/s", "10G", "-1 Gbit/s", "1,5 Gbit/s", "1.2.3 Gbit/s", ". Gbit/s", "1 Gbit/h"),
        *("100 MB/s", "100 Mbyte/s", "1 GBps", "1 Tbit/s", "nan Gbit/s", "1e9 bit/s", "1 Gbit/s; reboot"),
        *(None, 1j, True, b"1 Gbit/s", ["1 Gbit/s"]),
    ],
)
def test_invalid_rates_are_refused(rate):
    assert error_of(parse_rate, rate) == f"a rate must be like '100 Mbit/s' or '1 Gbit/s', not {rate!r}."


@pytest.mark.parametrize("rate", ["0 bit/s", "1 kbit/s", "999 kbit/s", "101 Gbit/s", 0, -1e9, 1e12, math.nan, math.inf])
def test_rates_out_of_range_are_refused(rate):
    given_rate = repr(rate) if isinstance(rate, str) else f"{rate} bit/s"
    assert error_of(parse_rate, rate) == f"a rate must be from 1 Mbit/s to 100 Gbit/s, not {given_rate}."


@given(st.floats(units.MIN_RATE, units.MAX_RATE))
def test_a_formatted_rate_can_be_parsed(rate):
    assert parse_rate(show_rate(rate)) == pytest.approx(rate, rel=0.006)
    exact = show_rate(rate, digits=15)
    assert "e" not in exact.partition(" ")[0]
    assert parse_rate(exact) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (1e9, "1 Gbit/s"),
        (2.5e9, "2.5 Gbit/s"),
        (999.9e6, "1 Gbit/s"),
        (937.4e6, "937 Mbit/s"),
        (12_345, "12.3 kbit/s"),
        (0, "0 bit/s"),
    ],
)
def test_rates_are_formatted(rate, text):
    assert show_rate(rate) == text
