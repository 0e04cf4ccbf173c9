import math

import numpy as np
import pytest
from scipy import stats

from labkit.system.statistics import Ratio, ratio, ratios


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


def test_nineteen_of_twenty_intervals_hold_the_true_ratio():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        noise = rng.normal(0, 0.1, size=(2, 4))
        found = ratio(2 * np.exp(noise[0]), np.exp(noise[1]))
        held += found.low < 2 < found.high
    assert 0.92 < held / 500 < 0.98


def test_of_two_it_is_students_paired_t():
    rng = np.random.default_rng(1)
    a, b = np.exp(rng.normal(0, 0.1, size=(2, 5)))
    logs = np.log(a / b)
    half = stats.t.ppf(0.975, 4) * logs.std(ddof=1) / math.sqrt(5)
    assert ratio(a, b) == pytest.approx(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))


def test_noise_is_pooled_over_all_speeds():
    rng = np.random.default_rng(0)
    held, shorter, n = 0, 0, 500
    for _ in range(n):
        slow_rounds = rng.normal(0, 0.5, size=3)
        speeds = {str(k): np.exp(math.log(k) + slow_rounds + rng.normal(0, 0.05, size=3)) for k in range(1, 7)}
        pooled, alone = ratios(speeds, "1")["3"], ratio(speeds["3"], speeds["1"])
        assert pooled.value == pytest.approx(alone.value)
        held += pooled.low < 3 < pooled.high
        shorter += pooled.high / pooled.low < alone.high / alone.low
    assert 0.92 < held / n < 0.98
    assert shorter / n > 0.75


def test_one_round_of_many_says_nothing_of_how_sure_it_is():
    found = ratios({"a": [3], "b": [6], "c": [1]}, "a")
    assert found["a"] == (1, 1, 1)
    assert found["b"].value == pytest.approx(2)
    assert not any(one.significant for one in found.values())
