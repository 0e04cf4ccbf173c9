import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labkit.system.statistics import Ratio, ratio, ratios


def test_noise_common_to_both_speeds_leaves_the_ratio_significant():
    result = ratio([20, 10, 30], [10, 5, 15])
    assert result == pytest.approx((2, 2, 2))
    assert result.significant


def test_a_difference_within_the_noise_is_not_significant():
    result = ratio([10, 12, 9], [10, 10, 10])
    assert result.low < 1 < result.high
    assert not result.significant


def test_one_round_gives_no_interval():
    result = ratio([3], [2])
    assert result.value == 1.5
    assert math.isnan(result.low)
    assert not result.significant
    assert str(result) == "1.50"


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (Ratio(1.2, 1.1, 1.3), "faster"),
        (Ratio(0.8, 0.7, 0.9), "slower"),
        (Ratio(0.4, 0.1, 1.6), "not significant"),
        (Ratio(3.0), "one round only, so there is no interval"),
    ],
)
def test_a_verdict_agrees_with_the_interval(result, verdict):
    assert result.verdict == verdict


def test_two_speeds_give_students_paired_t():
    rng = np.random.default_rng(1)
    a, b = np.exp(rng.normal(0, 0.1, size=(2, 5)))
    logs = np.log(a / b)
    half = stats.t.ppf(0.975, 4) * logs.std(ddof=1) / math.sqrt(5)
    assert ratio(a, b) == pytest.approx(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))


def test_an_interval_depends_only_on_the_noise_of_its_own_pair():
    rng = np.random.default_rng(0)
    slow_rounds = rng.normal(0, 0.5, size=4)
    noise = {"a": 0.01, "b": 0.01, "noisy": 0.5, "c": 0.01}
    speeds = {name: np.exp(slow_rounds + rng.normal(0, spread, size=4)) for name, spread in noise.items()}
    result = ratios(speeds, "a")
    assert result == {name: ratio(speed, speeds["a"]) for name, speed in speeds.items()}
    assert result["noisy"].high / result["noisy"].low > 2
    assert result["b"].high / result["b"].low < 1.1


# --- Rounds in two modes: one launch at a third of the others ---

ONE_SLOW = [1.02, 0.98, 0.35, 1.01, 0.99, 0.97]


@pytest.mark.parametrize(
    ("rounds", "significant", "verdict"),
    [
        # Lab 05, section 7: the best settings won each round, and the interval contains 1.
        (
            [1.44, 1.49, 8.6, 9.7, 1.46],
            False,
            "not significant; round 3 at 5.77 of the median, round 4 at 6.51 of the ",
        ),
        ([1.44, 1.49, 8.6, 9.7, 1.46, 1.45], True, "faster"),
        ([1 / 1.44, 1 / 1.49, 1 / 8.6, 1 / 9.7, 1 / 1.46, 1 / 1.45], True, "slower"),
        (ONE_SLOW, False, "not significant; round 3 at 0.36 of the median, so by rank: slower in 4 of 6"),
        (
            [1.1 * speed for speed in ONE_SLOW],
            False,
            "not significant; round 3 at 0.36 of the median, so by rank: best in 5 of 6",
        ),
        ([1.1, 1.11, 3.0], False, "not significant; round 3 at 2.70 of the median, so by rank: best in 3 of 3"),
        (
            [1.0, 1.0, 0.3, 1.0, 1.0, 1.0, 1.0],
            False,
            "not significant; round 3 at 0.30 of the median, so by rank: slower",
        ),
    ],
)
def test_with_an_outlier_the_verdict_is_by_rank(rounds, significant, verdict):
    result = ratio(rounds, np.ones(len(rounds)))
    assert result.significant is significant
    assert result.verdict.startswith(verdict)


def test_if_ranks_decide_the_record_is_next_to_the_interval():
    result = ratio([1.44, 1.49, 8.6, 1.47, 1.46, 1.45], np.ones(6))
    assert result.low < 1 < result.high
    assert re.fullmatch(
        r"1\.96 \(0\.\d\d to \d\.\d\d; round 3 at 5\.87 of the median, so by rank: best in 6 of 6\)", str(result)
    )
    assert str(ratio([2.0, 2.1, 2.2], [1, 1, 1])).count(";") == 0


def test_a_verdict_contains_its_record_once():
    assert ratio([2.0, 2.1, 2.2], [1, 1, 1]).verdict_by_rounds == "faster, best in 3 of 3"
    assert ratio([0.5, 0.51, 0.52], [1, 1, 1]).verdict_by_rounds == "slower in 3 of 3"
    assert ratio([2.0], [1.0]).verdict_by_rounds == "one round only, so there is no interval"
    unclear = ratio([1.44, 0.9, 8.6, 1.01, 0.95, 1.1], np.ones(6))
    assert unclear.verdict_by_rounds.count(" of 6") == 1


@pytest.mark.parametrize(
    "rounds",
    [
        [1.0, 3.0],  # of two, neither is a majority
        [1.0, 1.0, 3.0, 3.0],
        [0.5, 1.0, 2.0],  # as far from each other as from the median: noise
        [1.0, 1.5, 1.0],  # 1.5× is not another mode
    ],
)
def test_without_a_majority_there_is_no_outlier(rounds):
    assert ratio(rounds, np.ones(len(rounds))).outliers == ""


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=12))
def test_swapping_the_speeds_swaps_the_verdict_but_another_unit_does_not(rounds):
    ones = np.ones(len(rounds))
    forward, reverse, scaled = ratio(rounds, ones), ratio(ones, rounds), ratio(np.multiply(rounds, 8), 8 * ones)
    assert (forward.won, forward.lost, forward.significant) == (reverse.lost, reverse.won, reverse.significant)
    assert (scaled.outliers, scaled.record, scaled.significant) == (
        forward.outliers,
        forward.record,
        forward.significant,
    )
    assert forward.won + forward.lost <= forward.rounds == len(rounds)
    if forward.significant:
        assert forward.faster is not reverse.faster
        assert {forward.verdict, reverse.verdict} == {"faster", "slower"}


@given(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=12, unique=True), st.data())
def test_one_round_at_a_tenth_is_named(rounds, data):
    place = data.draw(st.integers(0, len(rounds) - 1))
    rounds[place] /= 10
    assert re.match(f"round {place + 1} at 0[.]", ratio(rounds, np.ones(len(rounds))).outliers)
