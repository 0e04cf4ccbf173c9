from itertools import pairwise

import pytest

from labkit.train.schedule import learning_rate, peak_rate


def rates(steps=1000, warmup=100.0, peak=0.8, cosine=True):
    return [learning_rate(step, steps, warmup, peak, cosine) for step in range(steps)]


def test_the_peak_is_linear_in_the_global_batch():
    assert peak_rate(0.256, 256) == pytest.approx(0.256)
    assert peak_rate(0.256, 16 * 256) == pytest.approx(16 * 0.256)


def test_the_warm_up_is_linear_from_zero_to_the_peak():
    schedule = rates()
    assert schedule[0] == 0
    assert schedule[50] == pytest.approx(0.4)
    assert schedule[100] == max(schedule) == 0.8
    assert {round(b - a, 12) for a, b in pairwise(schedule[:101])} == {0.008}


def test_the_cosine_falls_monotonically_through_half_the_peak_to_zero():
    schedule = rates()
    assert all(a > b for a, b in pairwise(schedule[100:]))
    assert schedule[550] == pytest.approx(0.4)
    assert 0 < schedule[-1] < 1e-5


def test_step_decay_divides_by_10_at_a_third_two_thirds_and_eight_ninths():
    schedule = rates(steps=900, warmup=0, cosine=False)
    for step, rate in ((0, 0.8), (299, 0.8), (300, 0.08), (599, 0.08), (600, 0.008), (799, 0.008), (800, 0.0008)):
        assert schedule[step] == pytest.approx(rate)


@pytest.mark.parametrize("cosine", [True, False])
def test_a_run_may_end_during_warm_up_or_have_none(cosine):
    assert rates(steps=10, warmup=100.0, cosine=cosine)[-1] == pytest.approx(0.8 * 9 / 100)
    assert rates(steps=10, warmup=0.0, cosine=cosine)[0] == 0.8
    assert rates(steps=10, warmup=10.0, cosine=cosine)[-1] == pytest.approx(0.8 * 9 / 10)
