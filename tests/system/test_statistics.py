import math
import re

import numpy as np
import pytest
from noisy_rounds import comparisons
from scipy import stats

from labkit.system.statistics import Ratio, caption, interval, ratio, ratios


def test_noise_that_falls_on_both_alike_leaves_the_ratio_sure():
    found = ratio([20, 10, 30], [10, 5, 15])
    assert found == pytest.approx((2, 2, 2))
    assert found.significant


def test_a_difference_within_the_noise_is_not_sure():
    found = ratio([10, 12, 9], [10, 10, 10])
    assert found.low < 1 < found.high
    assert not found.significant


def test_one_round_says_nothing_of_how_sure_it_is():
    found = ratio([3], [2])
    assert found.value == 1.5
    assert math.isnan(found.low)
    assert not found.significant
    assert str(found) == "1.50"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Ratio(1.2, 1.1, 1.3), "faster"),
        (Ratio(0.8, 0.7, 0.9), "slower"),
        (Ratio(0.4, 0.1, 1.6), "no difference beyond chance"),
        (Ratio(3.0), "one round only, so there is no interval"),
    ],
)
def test_a_verdict_says_what_the_interval_says(found, verdict):
    assert found.verdict == verdict


def coverage(cases, rounds, speeds):
    """Return how often the intervals hold the true ratio, by what the noise is and which speed is compared."""
    held = {}
    for noise, logs, others in comparisons(np.random.default_rng(rounds + 10 * speeds), cases, speeds, rounds):
        mean, half = interval(logs - logs[:, :1])
        for other in others:
            held[noise, other] = float((np.abs(mean[:, other]) < half[:, other]).mean())
    return held


@pytest.mark.parametrize("speeds", [2, 5, 8])
@pytest.mark.parametrize("rounds", [3, 8])
def test_95_percent_of_intervals_hold_the_true_ratio_whatever_the_noise(rounds, speeds):
    held = coverage(3000, rounds, speeds)
    assert len(held) == (8 if speeds == 2 else 16)
    assert {case: share for case, share in held.items() if not 0.93 < share < 0.97} == {}


@pytest.mark.slow
@pytest.mark.parametrize("speeds", [3, 4, 7])
@pytest.mark.parametrize("rounds", [2, 4, 6])
def test_over_many_cases_it_is_95_percent_to_half_a_percent(rounds, speeds):
    held = coverage(40_000, rounds, speeds)
    assert {case: share for case, share in held.items() if not 0.945 < share < 0.955} == {}


def test_of_two_it_is_students_paired_t():
    rng = np.random.default_rng(1)
    a, b = np.exp(rng.normal(0, 0.1, size=(2, 5)))
    logs = np.log(a / b)
    half = stats.t.ppf(0.975, 4) * logs.std(ddof=1) / math.sqrt(5)
    assert ratio(a, b) == pytest.approx(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))


def test_an_interval_has_the_noise_of_its_own_pair_whoever_else_is_compared():
    rng = np.random.default_rng(0)
    slow_rounds = rng.normal(0, 0.5, size=4)
    noise = {"a": 0.01, "b": 0.01, "noisy": 0.5, "c": 0.01}
    speeds = {name: np.exp(slow_rounds + rng.normal(0, each, size=4)) for name, each in noise.items()}
    found = ratios(speeds, "a")
    assert found == {name: ratio(each, speeds["a"]) for name, each in speeds.items()}
    assert found["noisy"].high / found["noisy"].low > 2
    assert found["b"].high / found["b"].low < 1.1


def test_one_round_of_many_says_nothing_of_how_sure_it_is():
    found = ratios({"a": [3], "b": [6], "c": [1]}, "a")
    assert found["a"] == (1, 1, 1)
    assert found["b"].value == pytest.approx(2)
    assert not any(one.significant for one in found.values())


UNSTEADY = [100.0, 130.0, 90.0]  # 20% about its mean
AGAIN = "measure again: the reference varied by 20% between rounds"


@pytest.mark.parametrize(
    ("measured", "reference", "verdict"),
    [
        ([100, 100, 100], UNSTEADY, f"no difference beyond chance; at most 69% either way; {AGAIN}"),
        (UNSTEADY, [100, 100, 100], "no difference beyond chance; at most 69% either way"),
        ([200, 260, 180], UNSTEADY, "faster"),
        ([100], [130], "one round only, so there is no interval"),
        ([100, 120, 95], [98, 118, 97], "no difference beyond chance; at most 6% either way"),  # 11%
    ],
)
def test_a_ratio_to_a_reference_that_varies_is_measured_again_before_it_is_no_difference(measured, reference, verdict):
    found = ratio(measured, reference)
    assert found.verdict == verdict
    assert found.doubt == (AGAIN if reference == UNSTEADY else "")
    assert ratios({"a": measured, "b": reference}, "b")["a"].doubt == found.doubt


def measured_rounds(rounds, mean, noise):
    """Return speeds whose logarithms have exactly this mean and this standard deviation."""
    logs = np.random.default_rng(rounds).normal(size=rounds)
    return np.exp(mean + noise * (logs - logs.mean()) / logs.std(ddof=1))


@pytest.mark.parametrize(("rounds", "mean", "noise"), [(3, 0.10, 0.1), (5, -0.06, 0.1), (5, 0.08, 0.1), (8, 0.05, 0.1)])
def test_what_is_undecided_says_how_many_more_rounds_would_do(rounds, mean, noise):
    found = ratio(measured_rounds(rounds, mean, noise), np.ones(rounds))
    more = int(re.search(r"; (\d+) more rounds? would do, should it stay at ", found.verdict)[1])
    assert ratio(measured_rounds(rounds + more, mean, noise), np.ones(rounds + more)).significant
    assert not ratio(measured_rounds(rounds + more - 1, mean, noise), np.ones(rounds + more - 1)).significant


@pytest.mark.parametrize(("mean", "noise"), [(0.0, 0.02), (0.001, 0.02), (-0.001, 0.02), (0.004, 0.004)])
def test_what_no_patience_would_decide_and_what_is_below_a_percent_says_how_little_it_is_at_most(mean, noise):
    speeds = measured_rounds(5, mean, noise)
    found = ratio(speeds, np.ones(5))
    most = max(found.high, 1 / found.low) - 1
    assert found.verdict == f"no difference beyond chance; at most {most:.0%} either way"
    assert ratio(np.ones(5), speeds).outlook == found.outlook


def test_what_is_decided_and_what_has_no_noise_needs_no_rounds():
    assert ratio([2, 2.1, 2.2], [1, 1, 1]).outlook == ""
    assert ratio([1, 1, 1], [1, 1, 1]).outlook == ""
    assert ratio([1], [2]).outlook == ""


def test_a_caption_says_where_the_intervals_come_from():
    assert caption(1) == "one round only, so there are no intervals"
    assert "over 3 rounds" in caption(3)
    assert "not pooled" in caption(3)
