"""Are the answers to lab 05 right: the chance of random search, TPE's score, a winner's flattery, and an objective?"""

import math
import os
import sys
from collections.abc import Callable

import numpy as np

from labkit.errors import LabError
from labkit.exercises.answers import call
from labkit.exercises.core import Lab
from labkit.exercises.values import is_number
from labkit.exercises.verdicts import NotYet, expect

lab = Lab("05")


@lab.exercise(
    1,
    hints=(
        "It is easier to count the draws without any good point. How many are there, and how many draws in all?",
        "math.comb(n, k) is the number of ways to draw k of n. All draws: math.comb(points, trials).",
        "1 - math.comb(points - good, trials) / math.comb(points, trials)",
    ),
)
def chance(answer) -> None:
    """Counted: on spaces so small that drawing without putting back shows, and on seed-sized ones."""
    for points, good, trials in ((4, 1, 1), (4, 1, 2), (10, 3, 8), (20, 5, 0), (288, 15, 14), (672, 34, 60)):
        right = 1 - math.comb(points - good, trials) / math.comb(points, trials)
        got = call(answer, points, good, trials)
        asked = f"chance({points}, {good}, {trials})"
        expect(is_number(got), f"{asked} to be a number; it is {got!r}")
        put_back = 1 - (1 - good / points) ** trials
        expect(
            np.isclose(right, put_back) or not np.isclose(got, put_back, rtol=1e-6),
            f"{asked} to be {right:.4g}; it is {got:.4g}, as if a point could be drawn twice",
        )
        expect(np.isclose(got, right, rtol=1e-6, atol=1e-12), f"{asked} to be {right:.4g}; it is {got:.4g}")


@lab.exercise(
    2,
    hints=(
        "Two fractions of the same form, one for the good trials and one for the rest. The score divides them.",
        "good.count(value) + 1 is the first one's numerator. Since one was added for each value, its denominator is "
        "len(good) + len(values).",
        "(good.count(value) + 1) / (len(good) + len(values)) / ((rest.count(value) + 1) / (len(rest) + len(values)))",
    ),
)
def score(answer) -> None:
    """The ratio of both densities, for values that were tried often, once, and never."""
    tried = (
        ([1, 2, 3, 4], [2, 2, 2], [1, 1, 2, 3, 3, 3, 4]),
        (["none", "compact"], ["compact"], ["none", "none", "none"]),
        ([0, 1, 200], [], [200, 0]),
    )
    for values, good, rest in tried:
        for value in values:
            in_good = (good.count(value) + 1) / (len(good) + len(values))
            in_rest = (rest.count(value) + 1) / (len(rest) + len(values))
            got = call(answer, value, list(values), list(good), list(rest))
            asked = f"score({value!r}, {values}, {good}, {rest})"
            expect(is_number(got), f"{asked} to be a number; it is {got!r}")
            expect(
                np.isclose(got, in_good / in_rest),
                f"{asked} to be {in_good:.4g} / {in_rest:.4g} = {in_good / in_rest:.4g}; it is {got:.4g}",
            )


@lab.exercise(
    3,
    hints=(
        "Only the first round decides which point wins. The second is there to ask that same point again.",
        "np.argmax(first) is the winner's place. What did each of the two rounds say there?",
        "winner = np.argmax(first), and then first[winner] / second[winner]",
    ),
)
def flattery(answer) -> None:
    """The winner of the first round, by itself in the second; which may well have another winner."""
    rounds = (
        ([100.0, 120.0, 90.0], [105.0, 100.0, 110.0]),
        ([200.0, 100.0, 160.0], [160.0, 100.0, 400.0]),
        ([50.0], [40.0]),
        ([10.0, 30.0, 20.0], [1.0, 40.0, 20.0]),
    )
    for first, second in rounds:
        winner = int(np.argmax(first))
        right = first[winner] / second[winner]
        got = call(answer, np.array(first), np.array(second))
        asked = f"flattery(np.array({first}), np.array({second}))"
        expect(is_number(got), f"{asked} to be a number; it is {got!r}")
        expect(
            np.isclose(got, right),
            f"{asked} to be {right:.4g}: point {winner} wins the first round, with {first[winner]:g}, and has "
            f"{second[winner]:g} in the second; it is {got:.4g}",
        )


# Commands as the search will meet them: they print steps and a total, or fail in one of three ways.
STEPS = "print('1\\timages/sec: 999.0 +/- 0.0'); print('10\\timages/sec: 888.0 +/- 0.0');"
TOTAL = "print('total images/sec: 123.45'); print('-' * 64)"
KNOB = "import os; assert 'PATH' in os.environ; print('total images/sec:', 10 * int(os.environ['LAB05_KNOB']))"


@lab.exercise(
    4,
    hints=(
        "command.run(argv, env=settings, timeout=timeout) runs it. What it gives back has .lines and .why.",
        're.search(r"total images/sec: ([\\d.]+)", line) finds the figure in a line; .group(1) is its text. And '
        "when .why is not empty, the command failed, whatever it printed.",
        "Raise LabError(done.why) when done.why; go through done.lines and return float(found.group(1)) at the first "
        "that matches; after the loop, raise a LabError that there was no figure.",
    ),
)
def throughput(answer) -> None:
    """The figure of a command that works, under the settings given; a LabError from one that does not."""
    got = call(answer, _python(STEPS + TOTAL), {})
    expect(isinstance(got, float), f"a float from a command that prints 'total images/sec: 123.45'; it gave {got!r}")
    expect(got == 123.45, f"the total, 123.45, of a command that prints its steps' speeds first; it gave {got}")
    for value in (3, 7):
        got = call(answer, _python(KNOB), {"LAB05_KNOB": value})
        expect(
            got == 10 * value,
            f"the command to run with LAB05_KNOB={value} in its environment, and to print {10 * value}; it gave {got}",
        )
    expect("LAB05_KNOB" not in os.environ, "the settings to be the command's alone; they are in the notebook's too")
    _expect_failure(answer, "import time;" + STEPS, "prints no total")
    _expect_failure(answer, f"{STEPS} {TOTAL}; raise SystemExit(3)", "prints a total and then fails (exit status 3)")
    # An answer that waits for longer than it was told to gets a figure in the end.
    _expect_failure(answer, f"import time; time.sleep(6); {TOTAL}", "is not over after timeout=1 second", timeout=1)


def _expect_failure(answer: Callable, script: str, what: str, timeout: float = 30) -> None:
    try:
        got = answer(_python(script), {}, timeout=timeout)
    except LabError:
        return
    except Exception as error:
        raise NotYet(
            f"Expected a LabError from a command that {what}, which the search records; {type(error).__name__} was "
            f"raised: {error}."
        ) from error
    raise NotYet(f"Expected a LabError from a command that {what}; it gave {got!r}.")


def _python(script: str) -> list[str]:
    return [sys.executable, "-c", script]
