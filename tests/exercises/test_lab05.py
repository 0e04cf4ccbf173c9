import itertools
import math
import os
import re
import subprocess

import numpy as np
import pandas as pd
import pytest
from labs import ThreeWays

from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.paths import DATA
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
