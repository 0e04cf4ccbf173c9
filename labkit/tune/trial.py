"""Run a command with given settings (variables, flags, prefixes) and read the metric it prints."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.system import load, processes
from labkit.system.errors import LabError
from labkit.tune.config import IMAGES_PER_SECOND
from labkit.tune.space import Knob

FAILURE_LINES = 4  # number of last lines quoted from a failed run


@dataclass
class Command:
    """A command with knobs; calling it with settings runs it and returns its metric.

    Attributes
    ----------
    argv : sequence of str
        The command and its arguments.
    knobs : mapping of str to Knob
        The settings that can vary.
    metric : str
        The regular expression for the metric: its group, or the whole match, at the last match.
    timeout : float
        Seconds after which a run is killed and counts as failed.
    """

    argv: Sequence[str]
    knobs: Mapping[str, Knob]
    metric: str = IMAGES_PER_SECOND
    timeout: float = 1800.0

    def __call__(self, settings: Mapping[str, Any]) -> float:
        """Run it once.

        Raises
        ------
        LabError
            If it crashes, times out or prints no metric; includes its last lines.
        """
        with load.watch(show=False):
            completed = processes.run(self.full(settings), self.variables(settings), timeout=self.timeout)
        try:
            if completed.failure:
                raise LabError(f"{completed.failure}.")
            return read_metric(self.metric, completed.lines)
        except LabError as error:
            tail = completed.lines[-FAILURE_LINES:]
            details = ["Its last lines:", *tail] if tail else ["It printed nothing."]
            raise LabError("\n  ".join([f"{error} {details[0]}", *details[1:]])) from error

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
        """Return the shell command line that runs it."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables(settings).items()]
        return " ".join([*variables, shlex.join(self.full(settings))])

    def _words(self, place: str, settings: Mapping[str, Any]) -> list[str]:
        return [
            word.replace("{value}", str(value))
            for name, value in settings.items()
            if value is not None
            for word in getattr(self.knobs[name], place).split()
        ]


def check_metric(pattern: str) -> None:
    """Check the regular expression for a metric.

    Raises
    ------
    LabError
        If it is not a regular expression, or has several groups.
    """
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise LabError(f"--metric {pattern!r} is not a regular expression: {error}.") from error
    if groups > 1:
        raise LabError(f"--metric {pattern!r} has {groups} groups: put parentheses around the number only.")


def read_metric(pattern: str, lines: Sequence[str]) -> float:
    """Return the number in the last match of a regular expression.

    Raises
    ------
    LabError
        If there is none.
    """
    regex = re.compile(pattern)
    matches = [match[regex.groups] for line in lines for match in regex.finditer(line)]
    if not matches:
        raise LabError(f"it printed no line that matches {pattern!r} (--metric sets the pattern).")
    try:
        number = float(matches[-1].replace(",", ""))  # 1,234.5
    except (ValueError, AttributeError):  # not a number, or an unmatched group
        number = math.nan
    if not math.isfinite(number):
        raise LabError(f"{pattern!r} matches {matches[-1]!r}, which is not a number.")
    return number


def format_metric(value: float) -> str:
    """Format a metric with at least four digits and without exponents for large values: 13,580,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
