"""One run of a command with some settings: its variables, flags and prefixes."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.tune import metrics
from labkit.tune.space import Knob


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
        Takes the lines that it printed and returns the metric: one of `labkit.system.metrics`.
    env : mapping of str to object
        Variables that are set in any case.
    cwd : Path, optional
        The folder to run in.
    timeout : float
        Seconds after which a run is ended, and has failed.
    """

    argv: Sequence[str]
    knobs: Mapping[str, Knob]
    read_metric: metrics.ReadMetric
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
        return metrics.measure(self.full(settings), self.read_metric, env, self.cwd, self.timeout)

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
