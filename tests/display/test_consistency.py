import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.display.consistency import ABOVE, Limit, Prediction, exposed, repeated, score, total
from labkit.display.measured import Measured

# --- Totals ---


@pytest.mark.parametrize(
    ("parts", "whole", "reliable", "text"),
    [
        # Lab 02, section 6: Eigen's operations in a step, whose time they cannot exceed.
        (
            {"convolutions": 12.4, "the rest": 6.5},
            13.9,
            False,
            "The parts sum to 18.9 ms, 136% of the 13.9 ms measured. The breakdown is unreliable: draw no conclusion "
            "from it.",
        ),
        ([3.0, 4.0], 7.65, True, "The parts sum to 7.00 ms, 92% of the 7.65 ms measured."),
        ([1200.0, 34.4], 1234.0, True, "The parts sum to 1,234 ms, 100% of the 1,234 ms measured."),
        ([], 0.05, False, "The parts sum to 0.0000 ms, 0% of the 0.0500 ms measured. The breakdown is unreliable"),
    ],
)
def test_a_breakdown_is_compared_with_its_total(parts, whole, reliable, text):
    breakdown = total(parts, whole)
    assert breakdown.reliable is reliable
    assert str(breakdown).startswith(text)


@given(st.floats(0.1, 1e6), st.floats(0.5, 1.5))
def test_a_breakdown_is_reliable_within_ten_percent(whole, share):
    breakdown = total([share * whole / 2] * 2, whole, "MB")
    if abs(abs(share - 1) - 0.1) > 1e-9:
        assert breakdown.reliable is (0.9 < share < 1.1)
    assert ("draw no conclusion" in str(breakdown)) is not breakdown.reliable


TIMES = st.integers(0, 50)
SPANS = st.lists(st.tuples(TIMES, TIMES).map(lambda pair: tuple(sorted(pair))), max_size=8)


def covered(spans):
    """Return the unit intervals that spans cover."""
    return {tick for start, end in spans for tick in range(start, end)}


@given(st.dictionaries(st.sampled_from(["computing", "sending", "copying", "idle"]), SPANS))
def test_exposed_times_sum_to_the_time_in_which_anything_runs(spans):
    times, before = exposed(spans), set()
    assert sum(times.values()) == len(covered(span for part_spans in spans.values() for span in part_spans))
    for name, part_spans in spans.items():
        assert times[name] == len(covered(part_spans) - before)
        before |= covered(part_spans)


def test_time_hidden_under_compute_is_not_exposed():
    spans = {"computing": [(0.0, 4.0), (5.0, 6.0)], "sending": [(1.0, 4.5), (1.0, 3.0)]}
    assert exposed(spans) == {"computing": 5.0, "sending": 0.5}


# --- Limits ---

PEAK = Measured(500, 480, 520, "GFLOP/s", digits=0)


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (Measured(250, 240, 260), "500 GFLOP/s (480 to 520); 50% (46 to 54) of it"),
        (Measured(250), "500 GFLOP/s (480 to 520); 50% of it"),
        (Measured(510, 505, 515), "500 GFLOP/s (480 to 520); 102% (97 to 107) of it"),
        (Measured(525, 500, 550), "500 GFLOP/s (480 to 520); 105% (96 to 115) of it, but its interval includes 100%"),
        (Measured(600, 590, 610), "500 GFLOP/s (480 to 520); 120% (113 to 127) of it: the tensors stay in cache"),
        (Measured(600), "500 GFLOP/s (480 to 520); 120% of it: the tensors stay in cache"),
        (Measured(math.nan), "500 GFLOP/s (480 to 520)"),
        (Measured(0, 0, 5), "500 GFLOP/s (480 to 520); 0% (0 to 1) of it"),
        (Measured(250, -10, 600), "500 GFLOP/s (480 to 520); 50% (0 to 125) of it"),
    ],
)
def test_shares_combine_both_intervals_and_are_explained_above_the_limit(measured, text):
    assert Limit(PEAK, above="the tensors stay in cache").describe(measured) == text


def test_limits_of_times_and_bytes_are_minimums():
    limit = Limit(Measured(8, 7.5, 8.5, "ms", digits=1), lower_is_better=True)
    assert limit.describe(Measured(16, 15, 17, "ms")) == "8.0 ms (7.5 to 8.5); 50% (44 to 57) of it"
    assert "./lab roofline --again" in limit.describe(Measured(7, 6.9, 7.1, "ms"))


POSITIVE = st.floats(0.1, 1e4)
WIDTHS = st.tuples(st.floats(1, 3), st.floats(1, 3))


@given(POSITIVE, WIDTHS, POSITIVE, WIDTHS)
def test_a_shares_interval_has_all_that_both_intervals_allow(value, value_widths, peak, peak_widths):
    measured = Measured(value, value / value_widths[0], value * value_widths[1])
    limit = Measured(peak, peak / peak_widths[0], peak * peak_widths[1])
    share = Limit(limit).share(measured)
    assert share.value == pytest.approx(100 * value / peak)
    assert share.low == pytest.approx(share.value / value_widths[0] / peak_widths[1])
    assert share.high == pytest.approx(share.value * value_widths[1] * peak_widths[0])
    inverse = Limit(measured, lower_is_better=True).share(limit)
    assert (inverse.value, inverse.low, inverse.high) == pytest.approx((share.value, share.low, share.high))
    assert (": " in Limit(limit).describe(measured)) is (share.value > 100 * ABOVE and share.low > 100)


# --- Predictions ---


@pytest.mark.parametrize(
    ("predicted", "measured", "text"),
    [
        (3.5, Measured(3.2, 3.0, 3.6, "ms"), "predicted 3.50 ms, measured 3.20 ms (3.00 to 3.60): inside, 9% too high"),
        (6.4, Measured(2.57, 2.4, 2.7, "×"), "predicted 6.40×, measured 2.57× (2.40 to 2.70): outside, 149% too high"),
        (90, Measured(100, unit="MB", digits=0), "predicted 90 MB, measured 100 MB: no interval, 10% too low"),
        (10, Measured(10, 9, 11), "predicted 10.00, measured 10.00 (9.00 to 11.00): inside, less than 1% off"),
    ],
)
def test_a_prediction_reports_whether_it_is_inside_and_its_error(predicted, measured, text):
    assert str(Prediction("a ring", predicted, measured)) == f"a ring: {text}"


def test_predictions_are_counted():
    inside, near, off = (Prediction("", value, Measured(100, 98, 102)) for value in (101, 108, 150))
    assert score([inside, near, off]) == "1 of 3 inside the measured interval, 2 of 3 within 10%"
    assert score([Prediction("", 5, Measured(5))]) == "1 of 1 within 10%"


# --- Quantities measured twice ---


@pytest.mark.parametrize(
    ("later", "verdict"),
    [
        (Measured(1.43, 1.14, 1.80, "×"), "1.43× (1.14 to 1.80) in section 7; the intervals overlap"),
        (Measured(1.43, 1.30, 1.60, "×"), "1.43× (1.30 to 1.60) in section 7; the intervals do not overlap"),
        (Measured(2.5, 2.2, 2.9, "×"), "2.50× (2.20 to 2.90) in section 7; the intervals do not overlap"),
        (Measured(0.91, unit="×"), "0.91× in section 7; no intervals, 0.50×"),
    ],
)
def test_two_measurements_of_one_quantity_are_compared(later, verdict):
    text = repeated("oneDNN vs Eigen", ("section 1", Measured(1.82, 1.69, 1.96, "×")), ("section 7", later))
    assert text == f"oneDNN vs Eigen: 1.82× (1.69 to 1.96) in section 1, {verdict}"
