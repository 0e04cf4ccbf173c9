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

from labkit.display.measured import Measured
from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.paths import DATA
from labkit.system.statistics import Ratio, ratio
from labkit.tune.search import search
from labkit_author import sources
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
def test_settings_left_in_the_environment_are_removed(student, line, capsys):
    environ, before = os.environ, dict(os.environ)
    run = "    done = processes.run("
    student.check(4, student.answer(4, Change(before=run, after=f"    {line}\n{run}")))
    assert "LAB05_KNOB changed in the notebook's environment too" in capsys.readouterr().out
    assert os.environ is environ
    assert dict(environ) == before
    student.check(4, student.answer(4))
    assert "Exercise 4 · passed." in capsys.readouterr().out


DEFAULT = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0]


NOT_SHOWN, KEEP, USE = "A gain is not shown.", "Keep the default: ", "Use these settings."


@pytest.mark.parametrize(
    ("best", "promised", "parts"),
    [
        ([120.0, 121.0, 119.5, 120.0, 119.0, 120.5], 1.2, [": faster, best in 6 of 6.", USE]),
        ([120.0, 121.0, 119.5, 120.0, 119.0, 120.5], 1.5, [": faster, ", "above the interval", USE]),
        ([160.0, 162.0, 158.0, 900.0, 150.0, 155.0], 1.6, [": faster, best in 6 of 6.", USE]),  # two modes, by rank
        ([80.0, 81.0, 80.0, 79.0, 79.5, 80.5], 1.1, [": slower in 6 of 6.", "above the interval", KEEP]),
        ([100.1, 101.2, 99.1, 100.2, 99.6, 100.0], 1.0, [": not significant, ", KEEP]),
        ([120.0, 90.0, 101.0, 95.0, 104.0, 98.0], 1.1, [": not significant, ", NOT_SHOWN]),
        (None, 1.2, ["That is not confirmed: nothing was measured again."]),
    ],
)
def test_conclusion_about_the_gain_follows_from_the_rounds(best, promised, parts, capsys):
    tell = lab_cells.functions("05", "tell_gain")["tell_gain"]
    tell(promised, best and ratio(best, DEFAULT[: len(best)]))
    out = capsys.readouterr().out
    assert out.startswith(f"When chosen, it was {promised:.2f} times the default.")
    assert all(part in out for part in parts)
    for conclusion in ("above the interval", USE, KEEP, NOT_SHOWN):
        assert (conclusion in out) == any(conclusion in part for part in parts)


def test_promise_that_rounds_to_the_end_of_the_interval_is_not_above_it(capsys):
    lab_cells.functions("05", "tell_gain")["tell_gain"](1.613, Ratio(1.25, 0.97, 1.611))
    assert "above the interval" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("default", "text"),
    [
        ([6500.0, 4100.0, 6600.0, 3900.0, 6300.0], "not slow but unstable: its fastest launch reached 100%"),
        ([4500.0, 3100.0, 5100.0, 3900.0, 4300.0], "both slow and unstable: its fastest launch reached 77%"),
        ([5500.0, 5550.0, 5600.0, 5450.0, 5500.0], "The default is stable, as section 5's guess says"),
    ],
)
def test_unstable_and_slow_defaults_are_distinguished(default, text, capsys):
    tell = lab_cells.functions("05", "tell_stability", np=np)["tell_stability"]
    tell(default, [6600.0, 6650.0, 6550.0, 6700.0, 6600.0])
    assert text in capsys.readouterr().out


def test_default_as_variable_as_the_best_is_inconclusive(capsys):
    noisy = [5500.0, 6100.0, 4900.0, 5800.0, 5200.0, 5500.0]
    lab_cells.functions("05", "tell_stability", np=np)["tell_stability"](noisy, noisy[::-1])
    assert "vary too much to test section 5's guess" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Measured(95.0, 94.0, 96.0, "%"), "one got closer to the best than other"),
        (Measured(80.0, 79.0, 81.0, "%"), "other got closer to the best than one"),
        (Measured(91.0, 88.0, 94.0, "%"), "30 searches don't show whether one or other gets closer"),
    ],
)
def test_searches_are_ranked_if_their_intervals_are_disjoint(interval, text):
    found_at = {"one": interval, "other": Measured(90.0, 88.0, 92.0, "%")}
    compare = lab_cells.functions("05", "compare_searches", found_at=found_at, SEEDS=30)["compare_searches"]
    assert compare("one", "other") == text


@pytest.fixture(scope="module")
def landscape():
    """Return the variables of section 2's cell: the grid's points, its knobs, their space and the rounds."""
    cell = next(cell for cell in sources.read(sources.find("05")).cells if cell.source.startswith("GRID = "))
    names = {"DATA": DATA, "pd": pd}
    exec(cell.source, names)
    return names


def test_grid_has_every_point_once_and_the_median_of_its_rounds(landscape):
    grid, knobs, space, rounds = (landscape[name] for name in ("grid", "KNOBS", "space", "rounds"))
    assert [*grid[knobs].itertuples(index=False, name=None)] == [*itertools.product(*space.values())]
    assert len(grid) > 90
    assert len(rounds) >= 2
    assert (rounds > 0).all()
    assert np.abs(np.median(rounds, axis=0) - grid.images_s).max() <= 0.51  # written as integers


def test_default_of_the_openmp_grid_is_unstable():
    """Section 5's example: two launches with the same settings, far apart."""
    grid = pd.read_csv(DATA / "tuning-grid.csv", comment="#")
    default = grid.query("omp == 2 and intra == 2 and inter == 2 and blocktime == 200 and affinity == 'none'")
    assert len(default) == 1
    first, second = default[["round1", "round2"]].iloc[0]
    assert max(first, second) > 1.5 * min(first, second)


@pytest.mark.slow
def test_gaussian_process_search_beats_random_search_on_the_grid(landscape):
    """Section 4: the mean share of the best after a tenth of the space."""
    speed = landscape["grid"].set_index(landscape["KNOBS"]).images_s.to_dict()

    def share(sampler):
        searches = [
            search(landscape["space"], lambda point: speed[tuple(point.values())], 10, seed, sampler)
            for seed in range(20)
        ]
        return np.mean([max(trial.value for trial in trials) for trials in searches]) / max(speed.values())

    assert share("random") < share("gp")
