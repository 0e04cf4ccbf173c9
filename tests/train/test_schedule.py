from itertools import pairwise

import pytest

from labkit.train.schedule import learning_rate, peak_rate


def rates(steps=1000, warmup=100.0, peak=0.8, cosine=True):
    return [learning_rate(step, steps, warmup, peak, cosine) for step in range(steps)]


def test_the_peak_is_linear_in_the_global_batch():
    assert peak_rate(0.256, 256) == pytest.approx(0.256)
    assert peak_rate(0.256, 16 * 256) == pytest.approx(16 * 0.256)


def test_the_warm_up_is_a_straight_line_from_nothing_to_the_peak():
    found = rates()
    assert found[0] == 0
    assert found[50] == pytest.approx(0.4)
    assert found[100] == max(found) == 0.8
    assert {round(b - a, 12) for a, b in pairwise(found[:101])} == {0.008}


def test_the_cosine_falls_all_the_way_and_passes_the_middle_at_half():
    found = rates()
    assert all(a > b for a, b in pairwise(found[100:]))
    assert found[550] == pytest.approx(0.4)
    assert 0 < found[-1] < 1e-5


def test_the_steps_fall_to_a_tenth_at_a_third_two_thirds_and_eight_ninths():
    found = rates(steps=900, warmup=0, cosine=False)
    for step, rate in ((0, 0.8), (299, 0.8), (300, 0.08), (599, 0.08), (600, 0.008), (799, 0.008), (800, 0.0008)):
        assert found[step] == pytest.approx(rate)


@pytest.mark.parametrize("cosine", [True, False])
def test_a_run_may_end_within_its_warm_up_or_have_none(cosine):
    assert rates(steps=10, warmup=100.0, cosine=cosine)[-1] == pytest.approx(0.8 * 9 / 100)
    assert rates(steps=10, warmup=0.0, cosine=cosine)[0] == 0.8
    assert rates(steps=10, warmup=10.0, cosine=cosine)[-1] == pytest.approx(0.8 * 9 / 10)
