"""Exercises of lab 05: the odds of random search, expected improvement, an honest gain, the safest settings."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.outcomes import expect
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import number

EXERCISES: dict[int, Reference] = {}

ODDS = "1 - math.comb(points - good, trials) / math.comb(points, trials)"
EXERCISES[1] = Reference(
    cases=[
        *((4, 1, 1), (4, 1, 2), (10, 3, 8), (20, 5, 0), (96, 5, 16), (672, 34, 60), (1_000_000, 50_000, 59)),
        Case((10_000, 100, 200), because="the numbers of draws overflow a float, but their ratio doesn't"),
    ],
    more=st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(0, n))),
    wrong={
        "a point could be drawn twice": {ODDS: "1 - (1 - good / points) ** trials"},
        "it were the chance that no point is good": {"1 - math.comb": "math.comb"},
        "it were the chance that all drawn points are good": {
            ODDS: "math.comb(good, trials) / math.comb(points, trials)"
        },
        "it were the expected number of good points": {ODDS: "trials * good / points"},
        "it were the chance of exactly one good point": {
            ODDS: "good * (math.comb(points - good, trials - 1) if trials else 0) / math.comb(points, trials)"
        },
        "it were in percent": {ODDS: f"100 * ({ODDS})"},
    },
    also=[
        {ODDS: "1 - math.prod(max(0, points - good - i) / (points - i) for i in range(trials))"},
        {ODDS: "1 - math.comb(points - trials, good) / math.comb(points, good)"},
    ],
    hints=(
        "It is easier to count the draws without any good point. How many are there, and how many draws in all?",
        "math.comb(points, trials) is the number of all draws. How many points are not good?",
        "return 1 - math.comb(points - good, trials) / math.comb(points, trials)",
    ),
    hint_for={"a point could be drawn twice": "The points are different: after each draw, one point less is left."},
)

MEAN, SPREAD = np.array([1.0, 2.0, 3.0, 2.5]), np.array([1.0, 0.1, 0.5, 2.0])
FIRST, SECOND = "(mean - best) * norm.cdf(z)", "spread * norm.pdf(z)"
EXERCISES[2] = Reference(
    cases=[(MEAN[:1], SPREAD[:1], 1.0), (MEAN, SPREAD, 2.0), (MEAN, SPREAD, 2.8), (-MEAN, 3 * SPREAD, -0.5)],
    more=st.tuples(
        st.lists(st.floats(-5, 5), min_size=3, max_size=3).map(np.array),
        st.lists(st.floats(0.1, 5), min_size=3, max_size=3).map(np.array),
        st.floats(-5, 5),
    ),
    returns=(Result(array=True, rel=1e-5),),
    case=lambda mean, spread, best: f"expected_improvement({mean.tolist()}, {spread.tolist()}, {best:g})",
    wrong={
        "z were mean - best, not divided by the spread": {" / spread": ""},
        "z had the wrong sign": {"(mean - best) / spread": "(best - mean) / spread"},
        "it were the probability of an improvement, not its size": {f"{FIRST} + {SECOND}": "norm.cdf(z)"},
        "the second term were missing": {f" + {SECOND}": ""},
        "the first term were missing": {f"{FIRST} + ": ""},
        "norm.cdf and norm.pdf were exchanged": {FIRST: "(mean - best) * norm.pdf(z)", SECOND: "spread * norm.cdf(z)"},
        "the second term lacked the spread": {"spread * norm": "norm"},
        "a point whose mean is below the best could not improve": {
            "(mean - best) * norm": "(mean > best) * (mean - best) * norm"
        },
        "only the mean counted": {f"{FIRST} + {SECOND}": "(mean > best) * (mean - best)"},
        "a smaller speed were better": {"z = (mean": "mean, best = -mean, -best\n    z = (mean"},
        "the mean were not reduced by the best": {"(mean - best) * norm": "mean * norm"},
    },
    also=[{f"{FIRST} + {SECOND}": "spread * (z * norm.cdf(z) + norm.pdf(z))"}],
    hints=(
        "The formula has two terms. Compute z first; it is an array, like mean and spread.",
        "norm.cdf is Φ, and norm.pdf is φ. Both take the array z.",
        "return (mean - best) * norm.cdf(z) + spread * norm.pdf(z)",
    ),
)

NOISE = 0.05  # the standard deviation of a measurement, relative to the speed


def _mean_gain(
    gain: Callable[..., Any], speeds: list[float], default: int, slower: float, noise: float, pairs: int
) -> Any:
    """Return the geometric mean of an answer's gains over pairs of rounds with noise."""
    rng = np.random.default_rng(0)
    logs: list[float] = []
    for _ in range(pairs):
        first, second = np.array(speeds) * np.exp(rng.normal(0, noise, (2, len(speeds))))
        factor = float(number(gain(first, second * slower, default), "the gain"))
        expect(factor > 0, f"the gain to be above 0; it is {factor:g}")
        logs.append(math.log(factor))
    return np.exp(np.mean(logs))


def _rounds(speeds: list[float], default: int, slower: float, noise: float, pairs: int) -> str:
    """Return a case of exercise 3 in words."""
    points = f"all {len(speeds)} points are equally fast" if len({*speeds}) == 1 else f"the images/s are {speeds[:4]}"
    points += f" and {len(speeds) - 4} more" * (len(speeds) > 4 and len({*speeds}) > 1)
    machine = f", and the second round has {slower:g}× the speed" if slower != 1 else ""
    luck = f", on average over {pairs} pairs of rounds with {noise:.0%} of luck" if noise else ", without luck"
    return f"the gain if {points}, with the default at place {default}{machine}{luck}"


LEVEL = [1000.0] * 40
EXERCISES[3] = Reference(
    cases=[
        *(([100.0, 120.0, 90.0], 0, slower, 0.0, 1) for slower in (1.0, 0.8, 1.25)),
        *(([50.0, 100.0, 200.0, 160.0], 1, 1.0, 0.0, 1), ([100.0, 120.0], 1, 1.0, 0.0, 1)),
        *((LEVEL, 0, 1.0, NOISE, 300), (LEVEL, 3, 0.8, NOISE, 300), ([1000.0] * 3, 0, 1.0, 2 * NOISE, 1200)),
        ([1300.0, *LEVEL], 5, 0.8, NOISE / 5, 300),
    ],
    use=_mean_gain,
    case=_rounds,
    returns=(Result(rel=0.02),),
    wrong={
        "the round that chose the point also judged it": {"second[winner] / second": "first[winner] / first"},
        "the mean of both rounds chose the point and judged it": lambda first, second, default: (
            (max(first * second) / (first * second)[default]) ** 0.5
        ),
        "the default were judged in another round than the point": {"/ second": "/ first"},
        "a gain below 1 were not possible": {
            "second[winner] / second[default]": "max(1, second[winner] / second[default])"
        },
        "it were the default's speed divided by the point's": {
            "second[winner] / second[default]": "second[default] / second[winner]"
        },
        "the difference of the speeds were asked for": {"second[winner] / second": "second[winner] - second"},
    },
    also=[
        {"first)": "second)", "second[winner] / second": "first[winner] / first"},
        lambda first, second, default: np.sqrt(
            second[first.argmax()] / second[default] * first[second.argmax()] / first[default]
        ),
    ],
    hints=(
        "The point was chosen for its speed in some round, so this speed includes luck. Which other one do you have?",
        "Let one round choose the point. Judge it, and the default, by the other round only.",
        "winner = np.argmax(first), and then second[winner] / second[default]",
    ),
)

STEADY = {"default": [10.0, 12.0, 11.0], "wild": [16.0, 11.5, 15.0], "steady": [10.8, 13.0, 11.9]}
BOUND = 'min(a / b for a, b in zip(speeds, rounds["default"]))'
EXERCISES[4] = Reference(
    cases=[
        ({"a": [11.0, 11.1], "default": [10.0, 10.0], "b": [12.0, 10.5]},),
        (STEADY,),
        ({"default": [10.0, 10.0, 10.0], "lucky": [15.0, 14.0, 9.9]},),
        ({"default": [10.0, 20.0], "slow round": [11.0, 19.0], "fast round": [10.4, 21.0]},),
        ({"default": [20.0, 10.0], "a": [21.0, 11.0], "b": [20.8, 13.0]},),
        ({"default": [10.0] * 6, "x": [13.0, 13.0, 13.0, 13.0, 13.0, 10.2], "y": [11.0] * 6},),
        ({"default": [3.0], "other": [2.0]},),
    ],
    wrong={
        "the usual round decided, not the worst": lambda rounds: max(rounds, key=lambda name: np.median(rounds[name])),
        "the best round decided": {BOUND: BOUND.replace("min", "max")},
        "the slowest rounds were compared, whether or not they are the same": {BOUND: "min(speeds)"},
        "the default could not win": {
            "for name, speeds in rounds.items()": 'for name, speeds in rounds.items() if name != "default"'
        },
    },
    also=[
        lambda rounds: max(rounds, key=lambda name: np.min(np.divide(rounds[name], rounds["default"]))),
        {"for name, speeds in rounds.items()": "for name, speeds in sorted(rounds.items())"},
    ],
    hints=(
        "The default's own ratios are all 1. What does this make its lower bound?",
        'zip(speeds, rounds["default"]) pairs the images/s of a round. The bound is the min of their ratios.',
        "Collect the bounds in a dictionary, and return max(bounds, key=bounds.get).",
    ),
)
