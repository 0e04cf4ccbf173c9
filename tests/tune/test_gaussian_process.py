import itertools

import numpy as np

from labkit.tune.gaussian_process import most_promising


def propose(tried, metrics, candidates, ordered, seed=0):
    found = most_promising(
        np.array(tried, float),
        np.array(metrics, float),
        np.array(candidates, float),
        ordered,
        np.random.default_rng(seed),
    )
    return candidates[found]


def test_it_goes_on_where_it_rises():
    rising = [(place,) for place in range(0, 10)]
    for seed in range(5):
        assert propose(rising, range(10), [(place,) for place in (10, 11, 30)], [True], seed) in [(10,), (11,)]


def test_it_learns_which_knob_matters():
    points = [*itertools.product(range(4), range(6))]
    tried = points[::2]
    metrics = [{0: 1.0, 1: 9.0, 2: 2.0, 3: 1.0}[first] for first, _ in tried]
    left = [point for point in points if point not in tried]
    for ordered in ([True, True], [False, False]):
        assert propose(tried, metrics, left, ordered)[0] == 1


def test_equal_metrics_and_a_single_point_are_no_obstacle():
    assert propose([(0,), (5,)], [3, 3], [(1,), (9,)], [True]) in [(1,), (9,)]
    assert propose([(0, 0)], [3], [(1, 0), (0, 1)], [True, False]) in [(1, 0), (0, 1)]
