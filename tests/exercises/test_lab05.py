import itertools
import math
import os
import re
import subprocess

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import ThreeWays

from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.paths import DATA
from labkit.system.statistics import Ratio, ratio
from labkit.tune.search import search
from labkit_author.mistakes import Change


class TestExercises(ThreeWays):
    lab = "05"
    names = {
        "LabError": LabError,
        "math": math,
        "np": np,
        "os": os,
        "processes": processes,
        "re": re,
        "subprocess": subprocess,
    }
    slow = frozenset({4})  # it runs commands


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "os.environ.update((k, str(v)) for k, v in settings.items())",
        "os.environ = {**os.environ, **{k: str(v) for k, v in settings.items()}}",
    ],
)
def test_settings_that_an_answer_leaves_in_the_environment_are_taken_away(student, line, capsys):
    environ, before = os.environ, dict(os.environ)
    run = "    done = processes.run("
    student.check(4, student.answer(4, Change(before=run, after=f"    {line}\n{run}")))
    assert "LAB05_KNOB changed in the notebook's environment too" in capsys.readouterr().out
    assert os.environ is environ
    assert dict(environ) == before
    student.check(4, student.answer(4))
    assert "Exercise 4 · passed." in capsys.readouterr().out


DEFAULT = [100.0, 101.0, 99.0, 100.5, 99.5]


NOT_SHOWN, KEEP, USE = "A gain is not shown.", "Keep the default: no more than", "Use these settings."


@pytest.mark.parametrize(
    ("best", "promised", "said"),
    [
        ([120.0, 121.0, 119.5, 120.0, 119.0], 1.2, ["times, faster.", USE]),
        ([120.0, 121.0, 119.5, 120.0, 119.0], 1.5, ["times, faster.", "above the interval", USE]),
        ([80.0, 81.0, 80.0, 79.0, 79.5], 1.1, ["times, slower.", "above the interval", KEEP]),
        ([100.1, 101.2, 99.1, 100.2, 99.6], 1.0, ["times, no difference beyond chance; ", KEEP]),
        ([120.0, 90.0, 101.0, 95.0, 104.0], 1.1, ["times, no difference beyond chance; ", NOT_SHOWN]),
        (None, 1.2, ["That is not confirmed: nothing was measured again."]),
    ],
)
def test_the_gain_is_told_as_the_rounds_show_it(best, promised, said, capsys):
    tell = lab_cells.functions("05", "tell_gain")["tell_gain"]
    tell(promised, best and ratio(best, DEFAULT[: len(best)]))
    told = capsys.readouterr().out
    assert told.startswith(f"The search promised {promised:.2f} times the default.")
    assert all(part in told for part in said)
    for part in ("above the interval", USE, KEEP, NOT_SHOWN):
        assert (part in told) == any(part in wanted for wanted in said)


def test_a_promise_that_prints_as_the_interval_s_end_is_not_above_it(capsys):
    lab_cells.functions("05", "tell_gain")["tell_gain"](1.613, Ratio(1.25, 0.97, 1.611))
    assert "above the interval" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("default", "said"),
    [
        ([6500.0, 4100.0, 6600.0, 3900.0, 6300.0], "not slow but unstable: its fastest launch came to 100%"),
        ([4500.0, 3100.0, 5100.0, 3900.0, 4300.0], "both slow and unstable: its fastest launch came to 77%"),
        ([5500.0, 5550.0, 5600.0, 5450.0, 5500.0], "don't show that the default's launches vary more"),
    ],
)
def test_an_unstable_default_is_told_from_a_slow_one(default, said, capsys):
    tell = lab_cells.functions("05", "tell_stability", np=np)["tell_stability"]
    tell(default, [6600.0, 6650.0, 6550.0, 6700.0, 6600.0])
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ([60.0, 61.0, 60.5, 59.0, 60.0], "slower: with it, the script is faster"),
        ([120.0, 121.0, 119.5, 120.0, 119.0], "faster: the script is better off without it"),
        ([120.0, 90.0, 101.0, 95.0, 104.0], "no difference beyond chance"),
        ([100.0], "one round only, so there is no interval"),
    ],
)
def test_a_knob_is_worth_what_the_rounds_show(without, said, capsys):
    tell = lab_cells.functions("05", "tell_worth")["tell_worth"]
    tell("chunk", ratio(without, DEFAULT[: len(without)]))
    assert f"times as fast: {said}" in capsys.readouterr().out


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


@pytest.mark.slow
def test_a_search_with_a_memory_leaves_random_search_behind_on_the_grid(grid):
    """What section 4 tells: the mean share of the best after a tenth of the space."""
    speed = grid.set_index(KNOBS).images_s.to_dict()
    space = {knob: grid[knob].unique().tolist() for knob in KNOBS}

    def share(sampler):
        found = [search(space, lambda at: speed[tuple(at.values())], 29, seed, sampler) for seed in range(8)]
        return np.mean([max(trial.value for trial in trials) for trials in found]) / max(speed.values())

    assert share("random") < share("gp")
