import itertools
import math
import os
import re
import subprocess

import lab_cells
import numpy as np
import pandas as pd
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.paths import DATA
from labkit.system.statistics import Ratio, ratio
from labkit.tune.search import search


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"math": math, "np": np, "os": os, "re": re, "subprocess": subprocess}
    return Student("05", names | {"processes": processes, "LabError": LabError})


BY_PRODUCT = swap(
    "return 1 - math.comb(points - good, trials) / math.comb(points, trials)",
    """missed = 1.0
    for drawn in range(trials):
        missed *= max(0, points - good - drawn) / (points - drawn)
    return 1 - missed""",
)
BY_SUBPROCESS = swap(
    "    done = processes.run(argv, env=settings, timeout=timeout)\n",
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
BY_FRACTION = swap(
    "return 1 - math.comb(points - good, trials) / math.comb(points, trials)",
    """from fractions import Fraction
    return 1 - Fraction(math.comb(points - good, trials), math.comb(points, trials))""",
)
HONEST = """\
    winner = np.argmax(first)  # one round chooses, the other one judges
    return second[winner] / second[default]
"""
BOTH_WAYS = swap(
    HONEST,
    """\
    factors = [judge[np.argmax(choose)] / judge[default] for choose, judge in ((first, second), (second, first))]
    return np.sqrt(factors[0] * factors[1])
""",
)
MEAN_OF_BOTH_WAYS = swap(
    HONEST,
    """\
    one, other = first[np.argmax(second)] / first[default], second[np.argmax(first)] / second[default]
    return np.array((one + other) / 2)
""",
)
SECOND_CHOOSES = swap(HONEST, "    return first[list(second).index(max(second))] / first[default]\n")
WINNER_OF_MEANS = swap(HONEST, "    both = first * second\n    return (both.max() / both[default]) ** 0.5\n")
THE_WORSE_ROUND = swap(
    HONEST,
    """\
    worse = np.minimum(first / first.mean(), second / second.mean())
    return worse.max() / worse[default]
""",
)
SHRUNK = swap(HONEST, "    return 1.0\n")
ONLY_A_WINNER_OF_BOTH = swap(
    HONEST,
    """\
    agree = np.argmax(first) == np.argmax(second)
    return second.max() / second[default] if agree else 1.0
""",
)
ONLY_IF_LARGE = swap(
    HONEST,
    """\
    factor = second[np.argmax(first)] / second[default]
    return factor if factor > 1.1 else 1.0
""",
)
LAST_FIGURE = swap(
    "    for line in done.lines:\n",
    """    if not any("total" in line for line in done.lines):
        raise LabError("it printed no total")
    for line in reversed(done.lines):
        line = line.replace("images", "total images").replace("total total", "total")
""",
)
UNTIL_THEN = swap("if done.failure:", "if done.status:")
RUN = "    done = processes.run(argv, env=settings, timeout=timeout)\n"
LEAKS = swap(RUN, "    os.environ.update((k, str(v)) for k, v in settings.items())\n" + RUN)
REPLACES_ENVIRONMENT = swap(RUN, "    os.environ = {**os.environ, **{k: str(v) for k, v in settings.items()}}\n" + RUN)
SETS_AND_RESTORES = swap(
    RUN,
    """    before = {name: os.environ.get(name) for name in settings}
    os.environ.update((name, str(value)) for name, value in settings.items())
    try:
        done = processes.run(argv, timeout=timeout)
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
""",
)
RAISES_OTHERS = swap(
    "    done = processes.run(argv, env=settings, timeout=timeout)\n",
    """    env = os.environ | {name: str(value) for name, value in settings.items()}
    out = subprocess.run(argv, env=env, timeout=timeout, capture_output=True, text=True).stdout
    return float(re.search(r"total images/sec: (\\S+)", out).group(1))
""",
)


class TestExercises(ThreeWays):
    lab = "05"
    slow = frozenset({4})  # it runs commands
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
        (
            1,
            swap(
                "math.comb(points - good, trials) / math.comb(points, trials)",
                "float(math.comb(points - good, trials)) / float(math.comb(points, trials))",
            ),
            "The check called chance(10000, 100, 200)",
        ),
        (1, swap("return", "result ="), "to be a number; it is None: does it return?"),
        (2, swap(".count(value) + 1", ".count(value)"), "to be 0.5238 (0.1429 / 0.2727); it is 0"),
        (2, swap("in_good / in_rest", "in_rest / in_good"), "to be 0.5238 (0.1429 / 0.2727); it is 1.909"),
        (2, swap("in_good / in_rest", "in_good"), "it is 0.1429"),
        (2, swap("(len(rest) + len(values))", "len(rest)"), "to be 0.5238 (0.1429 / 0.2727); it is"),
        (2, swap("rest.count(value) + 1", "rest.count(value)"), "(0.1429 / 0.2727); it is 0.7857"),
        (2, swap("return", "result ="), "to be a number; it is None"),
        (
            2,
            swap("    in_good =", "    good.sort()\n    in_good ="),
            "Expected good to stay as it was; score changed it",
        ),
        (
            2,
            swap("good.count(value)", "str(good).count(str(value))"),
            "score(1, [1, 10, 100], [100, 10, 100], [1, 10]) to be",
        ),
        (3, swap("np.argmax(first)", "np.argmax(second)"), "1 on average when all of 40 points are equally fast"),
        (3, swap("second[winner] / second[default]", "first.max() / first[default]"), "the luck of the winner"),
        (3, WINNER_OF_MEANS, "what chose the point must not judge it too"),
        (3, THE_WORSE_ROUND, "what chose the point must not judge it too"),
        (3, swap("/ second[default]", "/ first[default]"), "the machine is 0.8 times as fast for all"),
        (3, swap("second[winner] / second[default]", "second[default] / second[winner]"), "to be 1.2 (the fastest"),
        (3, SHRUNK, "to be 1.2 (the fastest point has 120 and the default 100 in the first round); it is 1"),
        (3, ONLY_A_WINNER_OF_BOTH, "1 on average when all of 3 points are equally fast"),
        (3, ONLY_IF_LARGE, "to be 1.03 (the fastest point has 103"),
        (3, swap("np.argmax(first)", "first == first.max()"), "to be a number; it is an array of shape (1,)"),
        (
            3,
            swap("    winner =", "    first.sort()\n    winner ="),
            "Expected first to stay as it was; gain changed it",
        ),
        (3, swap("return", "result ="), "to be a number; it is None"),
        (4, swap("env=settings, ", ""), "to be 3.25 (the settings say 3); it is 0.25"),
        (4, swap("total images/sec", "images/sec"), "to be 123.4; it is 91"),
        (
            4,
            swap("in done.lines", "in done.lines[-2:]"),
            "its total before its steps to be 123.4; LabError: it printed no",
        ),
        (4, swap("in done.lines", "in done.lines[:-1]"), "the variable LAB05_KNOB to be 3.25; LabError: it printed no"),
        (4, LAST_FIGURE, "of a command that prints its total before its steps to be 123.4; it is 970"),
        (4, UNTIL_THEN, "a LabError from a command that prints a total and is not over after timeout=0.5 seconds"),
        (4, swap("total images/sec", "images/sec"), "Hint 2 of 3"),
        (4, swap("if done.failure:", "if False:"), "Hint 3 of 3"),
        (
            4,
            swap("return float(found.group(1))", "return found.group(1)"),
            "to be a float; it is '123.40', of type str",
        ),
        (4, swap("if done.failure:", "if False:"), "a LabError from a command that prints a total and then fails"),
        (4, swap('    raise LabError("it printed no total")', "    return math.nan"), "prints no total; it gave nan"),
        (4, swap('    raise LabError("it printed no total")', "    return None"), "prints no total; it gave None."),
        (
            4,
            swap("LabError(done.failure)", 'LabError("it failed")'),
            "it says 'it failed' of a command that fails, and of one that is not over in time",
        ),
        (4, swap("timeout=timeout", "timeout=25"), "not over after timeout=0.5 seconds; it gave 123.4"),
        (4, LEAKS, "the settings to be the command's alone; LAB05_KNOB changed in the notebook's environment too"),
        (
            4,
            swap("env=settings", "env={**settings, **os.environ}"),
            "to be 7.25 (the settings say 7, the notebook has 5)",
        ),
        (
            4,
            swap("if done.failure:", "if done.status and done.status > 0:"),
            "prints a total and is then killed; it gave 123.4",
        ),
        (4, swap("LabError(done.failure)", "LabError"), "prints a total and then fails (exit status 3) to say why"),
        (4, swap("    done =", "    settings['A'] = 1\n    done ="), "Expected settings to stay as it was"),
        (4, RAISES_OTHERS, "prints no total, which the search records; AttributeError: 'NoneType'"),
    ]
    right = [
        (1, same),
        (1, BY_PRODUCT),
        (1, BY_FRACTION),
        (2, same),
        (
            2,
            swap(
                "return in_good / in_rest",
                "return np.divide(1 + sum(tried == value for tried in good), len(good + values)) / in_rest",
            ),
        ),
        (3, same),
        (3, BOTH_WAYS),
        (3, MEAN_OF_BOTH_WAYS),
        (3, SECOND_CHOOSES),
        (4, same),
        (4, BY_SUBPROCESS),
        (4, SETS_AND_RESTORES),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("edit", [LEAKS, REPLACES_ENVIRONMENT])
def test_settings_that_an_answer_leaves_in_the_environment_are_taken_away(student, edit, capsys):
    environ, before = os.environ, dict(os.environ)
    student.check(4, student.answer(4, edit))
    assert "LAB05_KNOB changed in the notebook's environment too" in capsys.readouterr().out
    assert os.environ is environ
    assert dict(environ) == before
    student.check(4, student.answer(4, same))
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
