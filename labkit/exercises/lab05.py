"""Checks of lab 05: the chance of random search, TPE's score, an honest gain, an objective."""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.answers import call, failure, for_all
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import NotYet, expect, hinting
from labkit.exercises.values import as_number, describe, number, same
from labkit.system.errors import LabError

lab = Lab("05")


@lab.exercise(
    1,
    hints=(
        "It is easier to count the draws without any good point. How many are there, and how many draws in all?",
        "math.comb(n, k) is the number of ways to draw k of n. All draws: math.comb(points, trials).",
        "1 - math.comb(points - good, trials) / math.comb(points, trials)",
    ),
)
def chance(answer: Callable[..., Any]) -> None:
    """Right on spaces so small that drawing without replacement matters, and on those of the lab."""

    def decide(points: int, good: int, trials: int) -> None:
        right = 1 - math.comb(points - good, trials) / math.comb(points, trials)
        called = f"chance({points}, {good}, {trials})"
        got = call(answer, points, good, trials)
        put_back = 1 - (1 - good / points) ** trials
        if math.isclose(as_number(got) or math.nan, put_back, rel_tol=1e-9) and not math.isclose(right, put_back):
            raise NotYet(
                f"Expected {called} to be {right:.4g}; it is {put_back:.4g}, as if a point could be drawn twice."
            )
        same(got, right, called)

    for points, good, trials in ((4, 1, 1), (4, 1, 2), (10, 3, 8), (20, 5, 0), (288, 15, 14), (672, 34, 60)):
        decide(points, good, trials)
    decide(1_000_000, 50_000, 59)
    decide(10_000, 100, 200)  # the numbers of draws are too large for a float, their ratio is not

    def decide_on_shares(points: int, good: int, trials: int) -> None:
        decide(points, min(good, points), min(trials, points))

    for_all(decide_on_shares, points=st.integers(1, 60), good=st.integers(0, 60), trials=st.integers(0, 60))


@lab.exercise(
    2,
    hints=(
        "Two fractions of the same form, one for the good trials and one for the rest. The score divides them.",
        "good.count(value) + 1 is the first one's numerator. Since one was added for each value, its denominator is "
        "len(good) + len(values).",
        "(good.count(value) + 1) / (len(good) + len(values)) / ((rest.count(value) + 1) / (len(rest) + len(values)))",
    ),
)
def score(answer: Callable[..., Any]) -> None:
    """The ratio of both densities, for values that were tried often, once, and never."""

    def decide(value: Any, values: list[Any], good: list[Any], rest: list[Any]) -> None:
        in_good = (good.count(value) + 1) / (len(good) + len(values))
        in_rest = (rest.count(value) + 1) / (len(rest) + len(values))
        called = f"score({value!r}, {values}, {good}, {rest})"
        same(
            call(answer, value, values, good, rest), in_good / in_rest, called, because=f"{in_good:.4g} / {in_rest:.4g}"
        )

    for values, good, rest in (
        ([1, 2, 3, 4], [2, 2, 2], [1, 1, 2, 3, 3, 3, 4]),
        (["none", "compact"], ["compact"], ["NONE".lower()] * 3),  # equal to the value, but other objects
        ([0, 1, 200], [], [200, 0]),
        ([1, 10, 100], [100, 10, 100], [1, 10]),
    ):
        for value in values:
            decide(value, values, good, rest)

    def decide_on_places(values: list[Any], good: list[int], rest: list[int]) -> None:
        good, rest = ([values[place % len(values)] for place in places] for places in (good, rest))
        for value in values:
            decide(value, values, good, rest)

    places = st.lists(st.integers(0, 5), max_size=12)
    for_all(
        decide_on_places,
        values=st.sampled_from(([0, 1, 200], [1, 10, 100, 1000], ["none", "granularity=fine", "fine"], [2], [8, 1, 4])),
        good=places,
        rest=places,
    )


PAIRS = 150  # of rounds, for a mean whose standard error is less than a tenth of what luck can add
LUCK = 0.05  # the standard deviation of a measurement, as a share


@lab.exercise(
    3,
    hints=(
        "The winner was chosen for its speed in some measurement, so that measurement is too good. Which other "
        "measurement of it do you have?",
        "Let one round choose the point. Judge it, and the default, by the other round alone.",
        "winner = np.argmax(first), and then second[winner] / second[default]",
    ),
)
def gain(answer: Callable[..., Any]) -> None:
    """Honest in the mean over many pairs of rounds, by whatever use of them; exact where luck is negligible."""

    def factor(first: np.ndarray, second: np.ndarray, default: int) -> float:
        called = "gain of two rounds" if len(first) > 5 else f"gain({_as_code(first, second)}, {default})"
        got = number(call(answer, first, second, default), called)
        expect(got > 0 and math.isfinite(got), f"{called} to be a factor above 0; it is {got:g}")
        return float(got)

    def decide(speeds: list[float], default: int, slower: float = 1.0) -> None:
        first = np.array(speeds)
        second = first * slower
        got, right = factor(first, second, default), max(speeds) / speeds[default]
        why = f"the fastest point has {max(speeds):g} and the default {speeds[default]:g} in the first round"
        if slower != 1:
            why += f", and in the second round every speed is {slower:g}× the first round's"
        called = f"gain({_as_code(first, second)}, {default})"
        same(got, right, called, because=why)

    for slower in (1.0, 0.8, 1.25):
        decide([100.0, 120.0, 90.0], 0, slower)
        decide([50.0, 100.0, 200.0, 160.0], 1, slower)
        decide([100.0, 120.0], 1, slower)
        decide([100.0, 103.0, 98.0], 0, slower)  # a small gain is one too
    decide([50.0], 0)

    def mean(truth: np.ndarray, default: int, luck: float, slower: float = 1.0, pairs: int = PAIRS) -> float:
        rng = np.random.default_rng(0)
        logs = []
        for _ in range(pairs):
            first, second = (truth * np.exp(rng.normal(0, luck, (2, len(truth))))).round(1)
            logs.append(math.log(factor(first, second * slower, default)))
        return math.exp(sum(logs) / len(logs))

    level = np.full(40, 1000.0)
    one_better = level.copy()
    one_better[7] = 1300.0
    lucky = "It has the luck of the winner in it: what chose the point must not judge it too"
    for default, slower in ((0, 1.0), (3, 0.8)):
        got = mean(level, default, LUCK, slower)
        expect(
            abs(got - 1) < 0.02,
            f"gain to be 1 on average when all of {len(level)} points are equally fast; over {PAIRS} pairs of rounds "
            f"it is {got:.3f}. " + (lucky if got > 1 else "It takes too much off"),
        )
        got = mean(one_better, default, 0.2 * LUCK, slower)
        expect(
            abs(got / 1.3 - 1) < 0.02,
            f"gain to be 1.3 on average when one point is 1.3× faster than all others, and luck is small; over "
            f"{PAIRS} pairs of rounds it is {got:.3f}",
        )
    # Of few points the same one often wins both rounds, and a gain that counts only then, or only when large, shows.
    few, pairs = np.full(3, 1000.0), 4 * PAIRS
    got = mean(few, 0, 2 * LUCK, pairs=pairs)
    expect(
        abs(got - 1) < 0.02,
        f"gain to be 1 on average when all of {len(few)} points are equally fast; over {pairs} pairs of rounds it is "
        f"{got:.3f}. Does a measurement count only when it is {'good' if got > 1 else 'bad'}?",
    )


def _as_code(first: np.ndarray, second: np.ndarray) -> str:
    """Return two rounds as a student would write them."""
    return ", ".join(f"np.array({speeds.tolist()})" for speeds in (first, second))


# Commands as the search will meet them, as scripts of a shell: they print steps and a total, or fail.
STEPS = r"for n in 1 10 20 30 40 50 60 70; do printf '%d\timages/sec: 9%d.0 +/- 0.0\n' $n $n; done; "
TOTAL = "echo ----; echo total images/sec: 123.40; echo ----; "
KNOB = "LAB05_KNOB"
BY_KNOB = f"echo total images/sec: ${{{KNOB}:-0}}.25"  # and nothing else
TIMEOUTS_S = (0.5, 5, 30)  # for a command that takes longer; the next one, where a busy machine has not printed by then


RUN_HINT, FIGURE_HINT, FAILURE_HINT = (
    "processes.run(argv, env=settings, timeout=timeout) runs it. What it gives back has .lines and .failure.",
    're.search(r"total images/sec: ([\\d.]+)", line) finds the figure in a line; .group(1) is its text. And '
    "when .failure is not empty, the command failed, whatever it printed.",
    "Raise LabError(done.failure) when done.failure; go through done.lines and return float(found.group(1)) at the "
    "first that matches; after the loop, raise a LabError that there was no figure.",
)


@lab.exercise(4, hints=(RUN_HINT, FIGURE_HINT, FAILURE_HINT))
def throughput(answer: Callable[..., Any]) -> None:
    """The figure of a command that works, under the settings given; a LabError from one that does not."""
    command = "a command that prints its steps' speeds and 'total images/sec: 123.40'"
    works = STEPS + TOTAL
    with hinting(FIGURE_HINT):
        _expect_figure(answer, works, {}, 123.4, f"the figure of {command}")
        _expect_figure(
            answer, TOTAL + STEPS, {}, 123.4, "the figure of a command that prints its total before its steps"
        )
        _expect_figure(answer, f"sleep 2; {works}", {}, 123.4, f"the figure of {command} after 2 seconds", timeout=60)
    prints = f"what a command prints of the variable {KNOB}"
    with hinting(RUN_HINT), _notebooks_environment():
        _expect_figure(answer, BY_KNOB, {KNOB: 3}, 3.25, prints, "the settings say 3")
        os.environ[KNOB] = "5"
        _expect_figure(answer, BY_KNOB, {KNOB: 7}, 7.25, prints, "the settings say 7, the notebook has 5")
        _expect_figure(answer, BY_KNOB, {}, 5.25, prints, "the settings say nothing, the notebook has 5")
    with hinting(FAILURE_HINT):
        _expect_failure(answer, STEPS, "prints no total")
        silent = _expect_failure(answer, "true", "prints nothing")
        crashed = _expect_failure(answer, f"{works} exit 3", "prints a total and then fails (exit status 3)")
        _expect_failure(answer, f"{works} kill -9 $$", "prints a total and is then killed")
    # An answer that ignores the timeout gets a figure in the end, and one that takes what was printed until then does.
    with hinting(RUN_HINT), tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        for timeout in TIMEOUTS_S:
            hangs = f"prints a total and still runs after timeout={timeout:g} seconds"
            script = f"{works} : >{printed}; sleep {timeout + 4}"
            hung = _expect_failure(answer, script, hangs, timeout=timeout)
            if printed.exists():
                break
    with hinting(FAILURE_HINT):
        for what, reason in (("does not end in time", hung), ("prints nothing", silent)):
            expect(
                reason != crashed,
                f"the LabError to say why; it says {crashed!r} about a command that fails, and about one that {what}",
            )


def _run(answer: Callable[..., Any], script: str, settings: dict[str, Any], **more: Any) -> Any:
    """Call the answer with a command; refuse it when it changes the notebook's environment."""
    failed = None
    with _notebooks_environment() as changed:
        try:
            got = call(answer, ["/bin/sh", "-c", script], settings, **more)
        except NotYet as error:
            failed = error
    expect(
        not changed,
        f"the settings to be the command's alone; {', '.join(changed[:3])} changed in the notebook's environment too, "
        "where each later trial would find it",
    )
    if failed:
        raise failed
    return got


@contextlib.contextmanager
def _notebooks_environment() -> Iterator[list[str]]:
    """Restore the environment at the end; the yielded list then names the variables that had changed."""
    environ, before = os.environ, dict(os.environ)
    changed: list[str] = []
    try:
        yield changed
    finally:
        after, os.environ = os.environ, environ  # an answer may have replaced it with another dict
        changed += sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        for name in changed:
            if name in before:
                environ[name] = before[name]
            else:
                environ.pop(name, None)


def _expect_figure(
    answer: Callable[..., Any],
    script: str,
    settings: dict[str, Any],
    figure: float,
    what: str,
    because: str = "",
    **more: Any,
) -> None:
    """Raise `NotYet` unless the answer returns the figure that a command prints."""
    try:
        got = _run(answer, script, settings, **more)
    except NotYet as refusal:
        error = refusal.__cause__  # what the answer raised
        if not isinstance(error, LabError):
            raise
        raise NotYet(f"Expected {what} to be {figure}; {failure(error, answer)}.") from error
    expect(isinstance(got, float | np.floating), f"{what} to be a float; it is {describe(got)}")
    same(got, figure, what, because=because)


def _expect_failure(answer: Callable[..., Any], script: str, what: str, **more: Any) -> str:
    """Raise `NotYet` unless the answer raises a LabError with a reason, and return that."""
    called = f"a LabError from a command that {what}"
    try:
        got = _run(answer, script, {}, **more)
    except NotYet as refusal:
        error = refusal.__cause__  # what the answer raised
        if error is None:
            raise
        if not isinstance(error, LabError):
            raise NotYet(f"Expected {called}, which the search records; {failure(error, answer)}.") from error
        expect(bool(str(error).strip()), f"{called} to say why; it says nothing")
        return str(error)
    raise NotYet(f"Expected {called}; it gave {'None' if got is None else describe(got)}.")
