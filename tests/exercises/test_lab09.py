import inspect
import itertools
import math

import lab_cells
import numpy as np
import pytest
from labs import Student, ThreeWays

from labkit.exercises.lab09 import IMPORTS
from labkit.system.statistics import Ratio, ratio, ratios
from labkit_author import sources


class TestExercises(ThreeWays):
    lab = "09"
    on_ranks = frozenset({4, 5})

    @classmethod
    def make_student(cls, folder):
        """The lab up to its scripts: two modules from the solutions, and kmeans_helpers.py from the lab."""
        import daal4py as d4p  # and with it scikit-learn, which takes a second

        student = Student("09", {"np": np, "math": math, "d4p": d4p})
        (folder / "work").mkdir(exist_ok=True)
        pieces = [inspect.getsource(student.answer(number)) for number in (2, 3)]
        (folder / "work" / "pieces.py").write_text("\n".join([IMPORTS, *pieces]))
        (folder / "work" / "spmd.py").write_text((folder / student.answer(4)).read_text())
        cells = sources.read(sources.find("09")).cells
        helpers = next(cell.source for cell in cells if cell.source.startswith("%%writefile work/kmeans_helpers.py"))
        (folder / "work" / "kmeans_helpers.py").write_text(helpers.partition("\n")[2])
        return student


# What the lab says of its measurements, from invented ones of each kind.

NOISE = np.array([1.0, 1.03, 0.98, 1.02, 0.97])  # of five rounds, in which a width has its own order of them
WORDS = lab_cells.functions(
    "09",
    *("compare", "crowding", "times_as_fast", "judge", "advantage", "trend"),
    np=np,
    itertools=itertools,
    ratio=ratio,
    ratios=ratios,
)


def rounds(*values):
    """Return rounds of these values, with noise that is not the same in any two."""
    return [value * np.roll(NOISE, shift) for shift, value in enumerate(values)]


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ((1, 1.3, 1.6, 2), "rises with the width"),
        ((2, 1.6, 1.3, 1), "falls with the width"),
        ((1.4, 1.4, 1.4, 1.4), "not significant"),
        ((1, 1, 3, 1), "neither rises nor falls all the way"),  # one width that is far off
        ((1, 1, 1, 3), "rises with the width"),
    ],
)
def test_a_trend_is_one_beyond_chance(gains, words):
    by_width = dict(zip((3, 8, 32, 64), rounds(*gains), strict=True))
    assert words in WORDS["trend"](by_width)


def test_one_disturbed_round_makes_no_trend():
    by_width = dict(zip((3, 8, 32, 64), rounds(1.4, 1.4, 1.4, 1.4), strict=True))
    by_width[64][2] *= 5
    assert WORDS["trend"](by_width).startswith("not significant")
    assert WORDS["trend"]({3: [1.0], 64: [2.0]}).startswith("one round only, so there is no interval")


@pytest.mark.parametrize(
    ("speed", "words"),
    [(1.5, ": faster"), (0.7, ": slower"), (1.0, ": not significant")],
)
def test_settings_and_libraries_are_compared_beyond_chance(speed, words):
    one, other, third = rounds(1 / speed, 1, 1.2)
    fits = {"ranks": one, "threads": other, "more": third}
    assert words in WORDS["compare"](fits, "ranks", "threads")
    gain = WORDS["times_as_fast"](fits | {"long": [9.0]}, "ranks", "threads")
    assert words in WORDS["judge"](gain, 0.0)
    both = {3: 1 / one, 64: 1 / third}, {3: 1 / other, 64: 1 / third}
    assert WORDS["advantage"](*both, 3).verdict.startswith(words.removeprefix(": "))


def test_a_long_run_that_was_made_once_has_no_interval():
    fits = dict(zip(("a", "b"), rounds(1, 2), strict=True)) | {"long": [9.0]}
    assert WORDS["times_as_fast"](fits, "long", "a").verdict == "one round only, so there is no interval"
    assert WORDS["compare"]({"a": [1.0], "b": [2.0]}, "a", "b").endswith("so there is no interval")


@pytest.mark.parametrize(("decibels", "words"), [(0.04, "as good"), (-1.7, "1.7 dB worse"), (0.2, "0.2 dB better")])
def test_quality_is_said_with_the_speed(decibels, words):
    assert WORDS["judge"](Ratio(1.5, 1.4, 1.6), decibels) == f"1.50 (1.40 to 1.60) times as fast: faster; {words}"


@pytest.mark.parametrize(("cpus", "words"), [(4, "a CPU for each"), (3, "oversubscribed")])
def test_threads_are_counted_against_cpus(cpus, words):
    assert WORDS["crowding"]([2, 2], cpus) == f"4 threads on {cpus} CPUs: {words}"
