import itertools

import numpy as np

from labkit.tune.gaussian_process import most_promising


def propose(tried, metrics, candidates, ordered, seed=0):
    index = most_promising(
        np.array(tried, float),
        np.array(metrics, float),
        np.array(candidates, float),
        ordered,
        np.random.default_rng(seed),
    )
    return candidates[index]


def test_it_follows_a_rising_metric():
    rising = [(x,) for x in range(0, 10)]
    for seed in range(5):
        assert propose(rising, range(10), [(x,) for x in (10, 11, 30)], [True], seed) in [(10,), (11,)]


def test_it_learns_which_knob_matters():
    points = [*itertools.product(range(4), range(6))]
    tried = points[::2]
    metrics = [{0: 1.0, 1: 9.0, 2: 2.0, 3: 1.0}[first] for first, _ in tried]
    untried = [point for point in points if point not in tried]
    for ordered in ([True, True], [False, False]):
        assert propose(tried, metrics, untried, ordered)[0] == 1


def test_it_handles_equal_metrics_and_a_single_point():
    assert propose([(0,), (5,)], [3, 3], [(1,), (9,)], [True]) in [(1,), (9,)]
    assert propose([(0, 0)], [3], [(1, 0), (0, 1)], [True, False]) in [(1, 0), (0, 1)]
