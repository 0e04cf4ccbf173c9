"""Checks for lab 05: the odds of random search, TPE's score, an unbiased gain, an objective."""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, failure, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import NotYet, expect, hinting
from labkit.exercises.engine.values import as_number, describe, expect_equal, number
from labkit.system.errors import LabError

lab = Lab("05")


@lab.exercise(
    1,
    hints=(
        "It is easier to count the draws without any good point. How many are there, and how many draws in total?",
        "math.comb(n, k) is the number of ways to draw k of n. The total is math.comb(points, trials).",
        "1 - math.comb(points - good, trials) / math.comb(points, trials)",
    ),
)
def chance(answer: Callable[..., Any]) -> None:
    """Check spaces so small that drawing without replacement matters, and the lab's spaces."""

    def decide(points: int, good: int, trials: int) -> None:
        expected = 1 - math.comb(points - good, trials) / math.comb(points, trials)
        label = f"chance({points}, {good}, {trials})"
        result = call(answer, points, good, trials)
        replaced = 1 - (1 - good / points) ** trials  # drawing with replacement
        if math.isclose(as_number(result) or math.nan, replaced, rel_tol=1e-9) and not math.isclose(expected, replaced):
            raise NotYet(
                f"Expected {label} to be {expected:.4g}; it is {replaced:.4g}, as if a point could be drawn twice."
            )
        expect_equal(result, expected, label)

    for points, good, trials in ((4, 1, 1), (4, 1, 2), (10, 3, 8), (20, 5, 0), (288, 15, 14), (672, 34, 60)):
        decide(points, good, trials)
    decide(1_000_000, 50_000, 59)
    decide(10_000, 100, 200)  # the numbers of draws overflow a float; their ratio doesn't

    def decide_on_shares(points: int, good: int, trials: int) -> None:
        decide(points, min(good, points), min(trials, points))

    for_all(decide_on_shares, points=st.integers(1, 60), good=st.integers(0, 60), trials=st.integers(0, 60))


@lab.exercise(
    2,
    hints=(
        "There are two fractions of the same form, one for the good trials and one for the rest. Divide them.",
        "The first numerator is good.count(value) + 1. Since 1 is added for each value, the denominator is "
        "len(good) + len(values).",
        "(good.count(value) + 1) / (len(good) + len(values)) / ((rest.count(value) + 1) / (len(rest) + len(values)))",
    ),
)
def score(answer: Callable[..., Any]) -> None:
    """Check the ratio of the densities, for values that were tried often, once and never."""

    def decide(value: Any, values: list[Any], good: list[Any], rest: list[Any]) -> None:
        in_good = (good.count(value) + 1) / (len(good) + len(values))
        in_rest = (rest.count(value) + 1) / (len(rest) + len(values))
        label = f"score({value!r}, {values}, {good}, {rest})"
        expect_equal(
            call(answer, value, values, good, rest), in_good / in_rest, label, because=f"{in_good:.4g} / {in_rest:.4g}"
        )

    for values, good, rest in (
        ([1, 2, 3, 4], [2, 2, 2], [1, 1, 2, 3, 3, 3, 4]),
        (["none", "compact"], ["compact"], ["NONE".lower()] * 3),  # equal to the value, but different objects
        ([0, 1, 200], [], [200, 0]),
        ([1, 10, 100], [100, 10, 100], [1, 10]),
    ):
        for value in values:
            decide(value, values, good, rest)

    def decide_on_indices(values: list[Any], good: list[int], rest: list[int]) -> None:
        good, rest = ([values[index % len(values)] for index in indices] for indices in (good, rest))
        for value in values:
            decide(value, values, good, rest)

    indices = st.lists(st.integers(0, 5), max_size=12)
    for_all(
        decide_on_indices,
        values=st.sampled_from(([0, 1, 200], [1, 10, 100, 1000], ["none", "granularity=fine", "fine"], [2], [8, 1, 4])),
        good=indices,
        rest=indices,
    )


PAIRS = 150  # of rounds, for a mean with a standard error below a tenth of the possible bias
NOISE = 0.05  # the relative standard deviation of a measurement


@lab.exercise(
    3,
    hints=(
        "The winner was chosen for its speed in some measurement, so that measurement is biased. Which other "
        "measurement of it do you have?",
        "Let one round choose the point. Judge it, and the default, only by the other round.",
        "winner = np.argmax(first), and then second[winner] / second[default]",
    ),
)
def gain(answer: Callable[..., Any]) -> None:
    """Check that the mean over many pairs of rounds is unbiased, and exact where noise is negligible."""

    def factor(first: np.ndarray, second: np.ndarray, default: int) -> float:
        label = "gain of two rounds" if len(first) > 5 else f"gain({_as_code(first, second)}, {default})"
        result = number(call(answer, first, second, default), label)
        expect(result > 0 and math.isfinite(result), f"{label} to be a factor above 0; it is {result:g}")
        return float(result)

    def decide(speeds: list[float], default: int, slower: float = 1.0) -> None:
        first = np.array(speeds)
        second = first * slower
        result, expected = factor(first, second, default), max(speeds) / speeds[default]
        reason = f"the fastest point has {max(speeds):g} and the default {speeds[default]:g} in the first round"
        if slower != 1:
            reason += f", and in the second round every speed is {slower:g}× the first round's"
        label = f"gain({_as_code(first, second)}, {default})"
        expect_equal(result, expected, label, because=reason)

    for slower in (1.0, 0.8, 1.25):
        decide([100.0, 120.0, 90.0], 0, slower)
        decide([50.0, 100.0, 200.0, 160.0], 1, slower)
        decide([100.0, 120.0], 1, slower)
        decide([100.0, 103.0, 98.0], 0, slower)  # a small gain counts too
    decide([50.0], 0)

    def mean(truth: np.ndarray, default: int, noise: float, slower: float = 1.0, pairs: int = PAIRS) -> float:
        rng = np.random.default_rng(0)
        logs = []
        for _ in range(pairs):
            first, second = (truth * np.exp(rng.normal(0, noise, (2, len(truth))))).round(1)
            logs.append(math.log(factor(first, second * slower, default)))
        return math.exp(sum(logs) / len(logs))

    level = np.full(40, 1000.0)
    one_better = level.copy()
    one_better[7] = 1300.0
    biased = "It includes the winner's luck: the round that chose the point must not judge it too"
    for default, slower in ((0, 1.0), (3, 0.8)):
        average = mean(level, default, NOISE, slower)
        expect(
            abs(average - 1) < 0.02,
            f"gain to be 1 on average when all {len(level)} points are equally fast; over {PAIRS} pairs of rounds it "
            f"is {average:.3f}. " + (biased if average > 1 else "It corrects too much"),
        )
        average = mean(one_better, default, 0.2 * NOISE, slower)
        expect(
            abs(average / 1.3 - 1) < 0.02,
            f"gain to be 1.3 on average when one point is 1.3× faster than all others, and noise is small; over "
            f"{PAIRS} pairs of rounds it is {average:.3f}",
        )
    # With few points, the same one often wins both rounds, which exposes a gain that counts only then or only if large.
    few, pairs = np.full(3, 1000.0), 4 * PAIRS
    average = mean(few, 0, 2 * NOISE, pairs=pairs)
    expect(
        abs(average - 1) < 0.02,
        f"gain to be 1 on average when all {len(few)} points are equally fast; over {pairs} pairs of rounds it is "
        f"{average:.3f}. Does a measurement count only when it is {'good' if average > 1 else 'bad'}?",
    )


def _as_code(first: np.ndarray, second: np.ndarray) -> str:
    """Return two rounds as a student would write them in code."""
    return ", ".join(f"np.array({speeds.tolist()})" for speeds in (first, second))


# Commands like the search's, as shell scripts: they print steps and a total, or fail.
STEPS = r"for n in 1 10 20 30 40 50 60 70; do printf '%d\timages/sec: 9%d.0 +/- 0.0\n' $n $n; done; "
TOTAL = "echo ----; echo total images/sec: 123.40; echo ----; "
KNOB = "LAB05_KNOB"
BY_KNOB = f"echo total images/sec: ${{{KNOB}:-0}}.25"  # and nothing else
TIMEOUTS_S = (0.5, 5, 30)  # for a command that takes longer; the next one if a busy machine hasn't printed by then


RUN_HINT, METRIC_HINT, FAILURE_HINT = (
    "processes.run(argv, env=settings, timeout=timeout) runs it. Its result has .lines and .failure.",
    're.search(r"total images/sec: ([\\d.]+)", line) finds the metric in a line; .group(1) is its text. If '
    ".failure is not empty, the command failed, whatever it printed.",
    "If done.failure, raise LabError(done.failure); go through done.lines and return float(match.group(1)) at the "
    "first match; after the loop, raise a LabError that says the metric is missing.",
)


@lab.exercise(4, hints=(RUN_HINT, METRIC_HINT, FAILURE_HINT))
def throughput(answer: Callable[..., Any]) -> None:
    """Check for the metric of a command that works, with its settings, and a LabError from one that fails."""
    command = "a command that prints its steps' speeds and 'total images/sec: 123.40'"
    script = STEPS + TOTAL
    with hinting(METRIC_HINT):
        _expect_metric(answer, script, {}, 123.4, f"the metric of {command}")
        _expect_metric(
            answer, TOTAL + STEPS, {}, 123.4, "the metric of a command that prints its total before its steps"
        )
        _expect_metric(answer, f"sleep 2; {script}", {}, 123.4, f"the metric of {command} after 2 seconds", timeout=60)
    label = f"the metric of a command that prints the variable {KNOB}"
    with hinting(RUN_HINT), _restored_environment():
        _expect_metric(answer, BY_KNOB, {KNOB: 3}, 3.25, label, "3 in the settings")
        os.environ[KNOB] = "5"
        _expect_metric(answer, BY_KNOB, {KNOB: 7}, 7.25, label, "7 in the settings, 5 in the notebook")
        _expect_metric(answer, BY_KNOB, {}, 5.25, label, "not in the settings, 5 in the notebook")
    with hinting(FAILURE_HINT):
        _expect_failure(answer, STEPS, "prints no total")
        silent = _expect_failure(answer, "true", "prints nothing")
        crashed = _expect_failure(answer, f"{script} exit 3", "prints a total and then fails (exit status 3)")
        _expect_failure(answer, f"{script} kill -9 $$", "prints a total and is then killed")
    # An answer that ignores the timeout gets a metric in the end; so does one that uses the output until then.
    with hinting(RUN_HINT), tempfile.TemporaryDirectory() as folder:
        printed = Path(folder, "printed")
        for timeout in TIMEOUTS_S:
            symptom = f"prints a total and still runs after timeout={timeout:g} seconds"
            hung = _expect_failure(answer, f"{script} : >{printed}; sleep {timeout + 4}", symptom, timeout=timeout)
            if printed.exists():
                break
    with hinting(FAILURE_HINT):
        for symptom, reason in (("does not end in time", hung), ("prints nothing", silent)):
            expect(
                reason != crashed,
                f"the LabError to give the reason; it is {crashed!r} both if a command fails and if it {symptom}",
            )


def _run(answer: Callable[..., Any], script: str, settings: dict[str, Any], **options: Any) -> Any:
    """Call the answer with a command; raise `NotYet` if it changes the notebook's environment."""
    mistake = None
    with _restored_environment() as changed:
        try:
            result = call(answer, ["/bin/sh", "-c", script], settings, **options)
        except NotYet as error:
            mistake = error
    expect(
        not changed,
        f"the settings to affect only the command; {', '.join(changed[:3])} changed in the notebook's environment too, "
        "where it would affect later trials",
    )
    if mistake:
        raise mistake
    return result


@contextlib.contextmanager
def _restored_environment() -> Iterator[list[str]]:
    """Restore the environment at the end, and add the names of changed variables to the yielded list."""
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


def _expect_metric(
    answer: Callable[..., Any],
    script: str,
    settings: dict[str, Any],
    metric: float,
    label: str,
    because: str = "",
    **options: Any,
) -> None:
    """Raise `NotYet` unless the answer returns the metric that a command prints."""
    try:
        result = _run(answer, script, settings, **options)
    except NotYet as mistake:
        error = mistake.__cause__  # the answer's own error
        if not isinstance(error, LabError):
            raise
        raise NotYet(f"Expected {label} to be {metric}; {failure(error, answer)}.") from error
    expect(isinstance(result, float | np.floating), f"{label} to be a float; it is {describe(result)}")
    expect_equal(result, metric, label, because=because)


def _expect_failure(answer: Callable[..., Any], script: str, symptom: str, **options: Any) -> str:
    """Raise `NotYet` unless the answer raises a LabError with a reason; return the reason."""
    expectation = f"a LabError from a command that {symptom}"
    try:
        result = _run(answer, script, {}, **options)
    except NotYet as mistake:
        error = mistake.__cause__  # the answer's own error
        if error is None:
            raise
        if not isinstance(error, LabError):
            raise NotYet(f"Expected {expectation}, which the search records; {failure(error, answer)}.") from error
        expect(bool(str(error).strip()), f"{expectation} to give the reason; it is empty")
        return str(error)
    raise NotYet(f"Expected {expectation}; the answer returned {'None' if result is None else describe(result)}.")
