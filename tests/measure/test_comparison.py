import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.measure import Measured, Source, compare, share
from labkit.measure.figures import summarize
from labkit.system.errors import LabError

SPEEDS = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=12)


def pair(a, b, unit="images/s"):
    source = Source("a, b", "2026-11-28T10:00:00.000+00:00")
    return summarize(a, unit, source), summarize(b, unit, source)


def test_lasting_noise_cancels_round_by_round():
    ratio = compare(*pair([20, 10, 30, 15, 40, 25], [10, 5, 15, 7.5, 20, 12.5]))
    assert str(ratio) == "2.00× (2.00 to 2.00): faster"
    assert ratio.source.what == "a, b"


def test_figures_of_different_measurements_give_the_conservative_quotient():
    a, b = Measured(20, 18, 24, "images/s"), Measured(10, 8, 12, "images/s")
    assert str(compare(a, b)) == "2.00× (1.50 to 3.00): faster"
    assert compare(a, Measured(10, unit="images/s")).verdict == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.1, "faster"),
        (0.9, 0.99, "slower"),
        (0.99, 1.04, "no difference shown (at most ±4%)"),
        (0.8, 1.04, "no difference shown (at most ±25%)"),
        (1.0, 1.0, "no difference shown (at most ±0%)"),
        (0.997, 1.002, "no difference shown (at most ±1%)"),
        (math.nan, math.nan, "undecided"),
    ],
)
def test_the_verdict_follows_from_the_interval(low, high, verdict):
    assert compare(Measured(1, low, high), Measured(1, 1, 1)).verdict == verdict


@given(SPEEDS, st.data())
def test_swapping_the_figures_inverts_the_ratio(first, data):
    second = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=len(first), max_size=len(first)))
    a, b = pair(first, second)
    there, back = compare(a, b), compare(b, a)
    assert (there.value, there.low, there.high) == pytest.approx((1 / back.value, 1 / back.high, 1 / back.low))
    opposite = {"faster": "slower", "slower": "faster"}
    assert opposite.get(there.verdict, there.verdict) == back.verdict


def test_fewer_than_six_rounds_stay_undecided():
    assert str(compare(*pair([3.0, 2.0], [1.0, 1.0]))) == "2.45× (2 rounds: 3.00, 2.00): undecided"


def test_less_time_is_faster():
    assert compare(*pair([1.0] * 6, [2.0] * 6, "ms")).verdict == "faster"
    assert compare(*pair([1.0] * 6, [2.0] * 6, "loss")).verdict == "slower"
    assert compare(*pair([1.0] * 6, [2.0] * 6, "loss"), less_is_faster=True).verdict == "faster"


def test_a_bound_that_differs_from_1_is_not_printed_as_1():
    assert str(compare(Measured(0.84, 0.79, 0.9962), Measured(1, 1, 1))) == "0.840× (0.790 to 0.996): slower"


def test_different_units_are_refused():
    with pytest.raises(LabError, match=r"^figures in 'ms' and 'no unit' can't be compared\.$"):
        compare(Measured(1, unit="ms"), Measured(1))


def test_a_share_above_its_limit_is_not_valid():
    assert str(share(*pair([190.0] * 6, [200.0] * 6, "GFLOP/s"))) == "95% (95 to 95)"
    assert str(share(*pair([206.5] * 6, [200.0] * 6, "GFLOP/s"))) == "103% (103 to 103), ⚠ limit not valid"
    assert str(share(*pair([10.0] * 6, [8.0] * 6, "ms"))) == "80% (80 to 80)"
    assert str(share(*pair([0.02] * 6, [200.0] * 6, "GFLOP/s"))) == "0.010% (0.010 to 0.010)"


def test_what_was_recorded_stays_marked():
    here, elsewhere = Measured(100.0, unit="GFLOP/s"), Measured(50.0, unit="GFLOP/s", note="recorded")
    assert "recorded" in str(compare(here, elsewhere))
    assert share(elsewhere, here).note == "recorded"
