"""One run of a command with some settings: its variables, flags and prefixes, and the metric that it prints."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.system import lease, processes
from labkit.system.errors import LabError
from labkit.tune.space import Knob

IMAGES_PER_SECOND = r"total images/sec: ([\d.]+)"  # what lab bench and tf_cnn_benchmarks print
FAILURE_LINES = 4  # the last ones of a failed run, which its failure quotes


@dataclass
class Command:
    """A command with knobs; called with settings, it runs and returns its metric.

    Attributes
    ----------
    argv : sequence of str
        The command and its arguments.
    knobs : mapping of str to Knob
        What can be set.
    metric : str
        The regular expression that finds the metric: its group, or all of it, where it matches last.
    env : mapping of str to object
        Variables that are set in any case.
    cwd : Path, optional
        The folder to run in.
    timeout : float
        Seconds after which a run is ended, and has failed.
    """

    argv: Sequence[str]
    knobs: Mapping[str, Knob]
    metric: str = IMAGES_PER_SECOND
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
        env = {**self.env, **self.variables(settings)}
        with lease.take():
            done = processes.run(self.full(settings), env, self.cwd, self.timeout)
        try:
            if done.failure:
                raise LabError(f"{done.failure}.")
            return read_metric(self.metric, done.lines)
        except LabError as error:
            last = ["Its last lines:", *done.lines[-FAILURE_LINES:]] if done.lines else ["It printed nothing."]
            raise LabError("\n  ".join([f"{error} {last[0]}", *last[1:]])) from error

    def full(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the command with the settings' prefixes and flags."""
        return [*self._words("prefix", settings), *self.argv, *self.flags(settings)]

    def flags(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the settings' flags."""
        return self._words("flag", settings)

    def variables(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings' variables."""
        return {self.knobs[name].env: str(value) for name, value in settings.items()
                if value is not None and self.knobs[name].env}  # fmt: skip

    def line(self, settings: Mapping[str, Any]) -> str:
        """Return what one types to run it, in its folder."""
        changed = {**self.env, **self.variables(settings)}
        variables = [f"{name}={shlex.quote(str(value))}" for name, value in changed.items()]
        return " ".join([*variables, shlex.join(self.full(settings)).replace(f"{self.cwd}/", "")])

    def _words(self, place: str, settings: Mapping[str, Any]) -> list[str]:
        return [
            word.replace("{value}", str(value))
            for name, value in settings.items()
            if value is not None
            for word in getattr(self.knobs[name], place).split()
        ]


def check_metric(pattern: str) -> None:
    """Check the regular expression of a metric.

    Raises
    ------
    LabError
        When it is not a regular expression, or has several groups.
    """
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise LabError(f"--metric {pattern!r} is not a regular expression: {error}.") from error
    if groups > 1:
        raise LabError(f"--metric {pattern!r} has {groups} groups: put brackets around the number alone.")


def read_metric(pattern: str, lines: Sequence[str]) -> float:
    """Return the number that a regular expression finds last in some lines.

    Raises
    ------
    LabError
        When it finds none.
    """
    wanted = re.compile(pattern)
    matches = [match[wanted.groups] for line in lines for match in wanted.finditer(line)]
    if not matches:
        raise LabError(f"it printed no line that matches {pattern!r} (--metric sets the pattern).")
    try:
        number = float(matches[-1].replace(",", ""))  # 1,234.5
    except (ValueError, AttributeError):  # no number; or a group that took no part
        number = math.nan
    if not math.isfinite(number):
        raise LabError(f"{pattern!r} matches {matches[-1]!r}, which is not a number.")
    return number


def format_metric(value: float) -> str:
    """Return a metric with at least four digits, large ones without an exponent: 13,580,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
