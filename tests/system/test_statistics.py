import math

import numpy as np
import pytest

from labkit.system.statistics import ratio


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


def test_nineteen_of_twenty_intervals_hold_the_true_ratio():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        noise = rng.normal(0, 0.1, size=(2, 4))
        found = ratio(2 * np.exp(noise[0]), np.exp(noise[1]))
        held += found.low < 2 < found.high
    assert 0.92 < held / 500 < 0.98
