import itertools
import math
import os
import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from labs import Bench, ThreeWays, same, swap

from labkit import command
from labkit.errors import LabError
from labkit.paths import DATA
from labkit.tune.search import search


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"math": math, "np": np, "os": os, "re": re, "subprocess": subprocess}
    return Bench("05", names | {"command": command, "LabError": LabError})


BY_PRODUCT = swap(
    "return 1 - math.comb(points - good, trials) / math.comb(points, trials)",
    """missed = 1.0
    for drawn in range(trials):
        missed *= max(0, points - good - drawn) / (points - drawn)
    return 1 - missed""",
)
BY_SUBPROCESS = swap(
    "    done = command.run(argv, env=settings, timeout=timeout)\n",
    """    env = os.environ | {name: str(value) for name, value in settings.items()}
    try:
        out = subprocess.run(argv, env=env, timeout=timeout, capture_output=True, text=True, check=True).stdout
    except subprocess.SubprocessError as error:
        raise LabError(str(error)) from error
    figures = re.findall(r"^total images/sec: (\\S+)$", out, flags=re.M)
    if not figures:
        raise LabError("no figure")
    return float(figures[0])
""",
)
RAISES_OTHERS = swap(
    "    done = command.run(argv, env=settings, timeout=timeout)\n",
    """    env = os.environ | {name: str(value) for name, value in settings.items()}
    out = subprocess.run(argv, env=env, timeout=timeout, capture_output=True, text=True).stdout
    return float(re.search(r"total images/sec: (\\S+)", out).group(1))
""",
)


class TestExercises(ThreeWays):
    lab = "05"
    mistakes = [
        (
            1,
            swap(
                "1 - math.comb(points - good, trials) / math.comb(points, trials)",
                "1 - (1 - good / points) ** trials",
            ),
            "chance(4, 1, 2) to be 0.5; it is 0.4375, as if a point could be drawn twice",
        ),
        (1, swap("1 - math.comb", "math.comb"), "chance(4, 1, 1) to be 0.25; it is 0.75"),
        (1, swap("math.comb(points - good, trials)", "math.comb(good, trials)"), "chance(4, 1, 1) to be 0.25; it is"),
        (1, swap("return", "result ="), "to be a number; it is None"),
        (2, swap(".count(value) + 1", ".count(value)"), "to be 0.1429 / 0.2727 = 0.5238; it is 0."),
        (2, swap("in_good / in_rest", "in_rest / in_good"), "= 0.5238; it is 1.909"),
        (2, swap("in_good / in_rest", "in_good"), "it is 0.1429"),
        (2, swap("(len(rest) + len(values))", "len(rest)"), "to be 0.1429 / 0.2727 = 0.5238; it is"),
        (2, swap("rest.count(value) + 1", "rest.count(value)"), "= 0.5238; it is 0.7857"),
        (2, swap("return", "result ="), "to be a number; it is None"),
        (3, swap("second[winner]", "second.max()"), "point 1 wins the first round, with 120, and has 100"),
        (3, swap("np.argmax(first)", "np.argmax(second)"), "to be 1.2: point 1 wins the first round"),
        (3, swap("first[winner] / second[winner]", "second[winner] / first[winner]"), "it is 0.8333"),
        (3, swap("np.argmax(first)", "np.argmax(first / second)"), "it is 10"),
        (3, swap("first[winner] / second[winner]", "np.mean(first / second)"), "it is 0.99"),
        (3, swap("return", "result ="), "to be a number; it is None"),
        (4, swap("env=settings, ", ""), "raised LabError"),
        (4, swap("total images/sec", "images/sec"), "the total, 123.45, of a command that prints its steps"),
        (4, swap("return float(found.group(1))", "return found.group(1)"), "a float from a command"),
        (4, swap("if done.why:", "if False:"), "a LabError from a command that prints a total and then fails"),
        (4, swap('    raise LabError("it printed no total")', "    return math.nan"), "prints no total; it gave nan"),
        (4, swap("timeout=timeout", "timeout=25"), "not over after timeout=1 second; it gave 123.45"),
        (4, swap("    done =", "    os.environ.update((k, str(v)) for k, v in settings.items())\n    done ="), "alone"),
        (4, RAISES_OTHERS, "prints no total, which the search records; AttributeError was raised"),
    ]
    right = [
        (1, same),
        (1, BY_PRODUCT),
        (2, same),
        (
            2,
            swap(
                "return in_good / in_rest",
                "return np.divide(1 + sum(tried == value for tried in good), len(good + values)) / in_rest",
            ),
        ),
        (3, same),
        (3, swap("np.argmax(first)", "sorted(range(len(first)), key=lambda point: -first[point])[0]")),
        (4, same),
        (4, BY_SUBPROCESS),
    ]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """A planted mistake leaves its settings in the environment."""
    monkeypatch.setenv("LAB05_KNOB", "")
    monkeypatch.delenv("LAB05_KNOB")


@pytest.fixture(scope="module")
def grid():
    return pd.read_csv(DATA / "tuning-grid.csv", comment="#")


KNOBS = ["omp", "intra", "inter", "blocktime", "affinity"]


def test_the_grid_has_every_point_once(grid):
    points = [*itertools.product(*(grid[knob].unique() for knob in KNOBS))]
    assert [*grid[KNOBS].itertuples(index=False, name=None)] == points
    assert len(points) > 200


def test_the_grid_has_the_median_of_its_rounds(grid):
    rounds = grid.filter(regex=r"^round\d+$")
    assert rounds.shape[1] >= 2
    assert (rounds > 0).all(axis=None)
    assert np.abs(rounds.median(axis=1) - grid.images_s).max() <= 0.51  # written as whole numbers


def test_a_search_with_a_memory_leaves_random_search_behind_on_the_grid(grid):
    """What section 4 tells: the mean share of the best after a tenth of the space."""
    speed = grid.set_index(KNOBS).images_s.to_dict()
    space = {knob: grid[knob].unique().tolist() for knob in KNOBS}

    def share(sampler):
        found = [search(space, lambda at: speed[tuple(at.values())], 29, seed, sampler) for seed in range(8)]
        return np.mean([max(trial.value for trial in trials) for trials in found]) / max(speed.values())

    assert share("random") < share("tpe")
