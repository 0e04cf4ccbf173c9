"""One run of a command with some settings: its variables and flags, and the metric that it prints."""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.system import processes
from labkit.system.errors import LabError
from labkit.tune.space import Knob

IMAGES_PER_SECOND = r"total images/sec: ([\d.]+)"  # what lab bench and tf_cnn_benchmarks print
FAILURE_LINES = 4  # the last ones of a failed run, which its failure quotes

ReadMetric = Callable[[Sequence[str]], float]


@dataclass
class Command:
    """A command with knobs; called with settings, it runs and returns its metric.

    Attributes
    ----------
    argv : sequence of str
        The command and its arguments.
    knobs : mapping of str to Knob
        What can be set.
    read_metric : callable
        Takes the lines that it printed and returns the metric: `by_pattern(…)` or `by_field(…)`.
    env : mapping of str to object
        Variables that are set in any case.
    cwd : Path, optional
        The folder to run in.
    timeout : float
        Seconds after which a run is ended, and has failed.
    """

    argv: Sequence[str]
    knobs: Mapping[str, Knob]
    read_metric: ReadMetric
    env: Mapping[str, object] = field(default_factory=dict)
    cwd: Path | None = None
    timeout: float = 1800.0

    def __call__(self, settings: Mapping[str, Any]) -> float:
        """Run it once.

        Raises
        ------
        LabError
            When it crashes, is not over in time or prints no metric; with its last lines.
        """
        done = processes.run(self.full(settings), {**self.env, **self.variables(settings)}, self.cwd, self.timeout)
        try:
            if done.failure:
                raise LabError(f"{done.failure}.")
            return self.read_metric(done.lines)
        except LabError as error:
            last = ["Its last lines:", *done.lines[-FAILURE_LINES:]] if done.lines else ["It printed nothing."]
            raise LabError("\n  ".join([f"{error} {last[0]}", *last[1:]])) from error

    def full(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the command with the settings' prefixes and flags."""
        return [*self._parts("prefix", settings), *self.argv, *self.flags(settings)]

    def flags(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the settings' flags."""
        return self._parts("flag", settings)

    def variables(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings' variables."""
        return {self.knobs[name].env: str(value) for name, value in settings.items()
                if value is not None and self.knobs[name].env}  # fmt: skip

    def line(self, settings: Mapping[str, Any]) -> str:
        """Return what one types to run it, in its folder."""
        changed = {**self.env, **self.variables(settings)}
        variables = [f"{name}={shlex.quote(str(value))}" for name, value in changed.items()]
        return " ".join([*variables, shlex.join(self.full(settings)).replace(f"{self.cwd}/", "")])

    def _parts(self, place: str, settings: Mapping[str, Any]) -> list[str]:
        return [
            part
            for name, value in settings.items()
            if value is not None and (text := getattr(self.knobs[name], place))
            for part in shlex.split(text.replace("{value}", str(value)))
        ]


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
        found = _last_json(lines)
        if found is None:
            raise LabError("it printed no JSON object.")
        value: Any = found
        for name in path.split("."):
            try:
                value = value[int(name)] if isinstance(value, list) else value[name]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                known = ", ".join(value) if isinstance(value, dict) else "no fields"
                raise LabError(f"its JSON has no {path}: at {name} there are {known}.") from error
        return _number(value, path)

    return read_metric


def _last_json(lines: Sequence[str]) -> dict | None:
    """Return the last object that starts with a line's first bracket."""
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
