"""The metric of a command: a number in what it prints, found by a pattern or as a field of its JSON."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.system import lease, processes
from labkit.system.errors import LabError

IMAGES_PER_SECOND = r"total images/sec: ([\d.]+)"  # what lab bench and tf_cnn_benchmarks print
FAILURE_LINES = 4  # the last ones of a failed run, which its failure quotes

ReadMetric = Callable[[Sequence[str]], float]


def measure(
    argv: Sequence[str],
    read_metric: ReadMetric,
    env: Mapping[str, object] | None = None,
    cwd: Path | None = None,
    timeout: float = 600.0,
) -> float:
    """Run a command once, and return its metric.

    Parameters
    ----------
    argv, env, cwd, timeout
        As for `processes.run`.
    read_metric : callable
        Takes the lines that it printed and returns the metric: `reader(…)`, `by_pattern(…)` or `by_field(…)`.

    Raises
    ------
    LabError
        When it crashes, is not over in time or prints no metric; with its last lines.
    """
    with lease.take():
        done = processes.run(argv, env, cwd, timeout)
    try:
        if done.failure:
            raise LabError(f"{done.failure}.")
        return read_metric(done.lines)
    except LabError as error:
        last = ["Its last lines:", *done.lines[-FAILURE_LINES:]] if done.lines else ["It printed nothing."]
        raise LabError("\n  ".join([f"{error} {last[0]}", *last[1:]])) from error


def reader(metric: str | None, json_field: str | None) -> ReadMetric:
    """Return the reader of the metric that `--metric` or `--json-field` names; by default, `IMAGES_PER_SECOND`.

    Raises
    ------
    LabError
        When both are given, or the pattern makes no sense.
    """
    if metric and json_field:
        raise LabError("--metric and --json-field both say where the metric is: give one of them.")
    return by_field(json_field) if json_field else by_pattern(metric or IMAGES_PER_SECOND)


def unit(metric: str | None, json_field: str | None) -> str:
    """Return what the metric is called in tables and pictures."""
    return json_field or ("metric" if metric else "images/s")


def format_metric(value: float) -> str:
    """Return a metric with at least four digits, large ones without an exponent: 13,580,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def by_pattern(pattern: str) -> ReadMetric:
    """Return a reader of the metric that a regular expression finds: its group, where it matches last.

    Raises
    ------
    LabError
        When it is not a regular expression, or has several groups.
    """
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise LabError(f"--metric {pattern!r} is not a regular expression: {error}.") from error
    if wanted.groups > 1:
        raise LabError(f"--metric {pattern!r} has {wanted.groups} groups: put brackets around the number alone.")

    def read_metric(lines: Sequence[str]) -> float:
        found = [match for line in lines for match in wanted.finditer(line)]
        if not found:
            raise LabError(
                f"it printed no line that matches {pattern!r} (--metric, or --json-field, says what to look for)."
            )
        return _number(found[-1][wanted.groups], f"what {pattern!r} matches")

    return read_metric


def by_field(path: str) -> ReadMetric:
    """Return a reader of a field of the last JSON object that is printed: `speed`, or `results.0.speed`."""

    def read_metric(lines: Sequence[str]) -> float:
        value = _last_json(lines)
        if value is None:
            raise LabError("it printed no JSON object.")
        for name in path.split("."):
            try:
                value = value[int(name)] if isinstance(value, list) else value[name]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                known = ", ".join(value) if isinstance(value, dict) else "no fields"
                raise LabError(f"its JSON has no {path}: at {name} there are {known}.") from error
        return _number(value, path)

    return read_metric


def _last_json(lines: Sequence[str]) -> Any:
    """Return the last object that starts with a line's first bracket; None without one."""
    decoder = json.JSONDecoder()
    for number in reversed([number for number, line in enumerate(lines) if line.startswith("{")]):
        try:
            return decoder.raw_decode("\n".join(lines[number:]))[0]
        except json.JSONDecodeError:
            continue
    return None


def _number(text: Any, what: str) -> float:
    try:
        number = float(str(text).replace(",", ""))  # 1,234.5
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise LabError(f"{what} is {text!r}, and not a number.")
    return number
