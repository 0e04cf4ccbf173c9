"""Write a search's file of variables, and plot the search."""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.display import plots
from labkit.tune.search import Settings, Space, Trial, best, point_of
from labkit.tune.trial import Command, format_metric


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings as in `intra=2 omp=2`, without the unset knobs."""
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in settings.items() if value is not None) or (
        "all defaults"
    )


def env_file(command: Command, settings: Settings, *verdict: str) -> str:
    """Return a file for bash to source that sets the variables of some settings; comments contain the other ones."""
    variables = command.variables(settings)
    lines = [
        "# Found by lab tune. In bash: source this file, then run the command.",
        *(f"# {line}" for line in verdict),
        *(f"# {knob.env}: {knob.text}" for knob in command.knobs.values() if knob.env in variables and knob.text),
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        *(f"# flags: {shlex.join(flags)}" for flags in [command.flags(settings)] if flags),
        f"# in one line: {command.line(settings)}",
    ]
    return "\n".join(lines) + "\n"


def importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """Return each knob's share of the metric's variance, most important first; empty if there are too few trials.

    It is the share of the variance that a random forest explains with this knob.
    """
    from sklearn.ensemble import RandomForestRegressor  # takes a second, and only this needs it

    measured = [trial for trial in trials if trial.state != "failed"]
    if len(measured) < 4 or len({trial.value for trial in measured}) < 2:
        return {}
    points = [point_of(space, trial.settings) for trial in measured]
    forest = RandomForestRegressor(random_state=0).fit(points, [trial.value for trial in measured])
    shares = dict(zip(space, map(float, forest.feature_importances_), strict=True))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def draw_search(trials: Sequence[Trial], unit: str, minimize: bool = False) -> tuple[Figure, str]:
    """Plot each trial's metric and the best so far; return the figure and its alt text."""
    plots.use_style()
    figure, axes = plt.subplots()
    styles = {"done": (plots.BLUE, "o", "measured"), "pruned": (plots.ORANGE, "v", "pruned: far behind the best")}
    for state, (colour, marker, label) in styles.items():
        points = [(number, trial.value) for number, trial in enumerate(trials, 1) if trial.state == state]
        if points:
            axes.plot(*zip(*points, strict=True), linestyle="none", color=colour, marker=marker, label=label)
    numbers = range(1, len(trials) + 1)
    so_far = [leader.value if (leader := best(trials[:number], minimize)) else math.nan for number in numbers]
    axes.step(numbers, so_far, where="post", color=plots.GREEN, marker="none", label="best so far")
    axes.axhline(trials[0].value, color=plots.BLACK, marker="none", linestyle=":", linewidth=1.5, label="default")
    if all(trial.value >= 0 for trial in trials if trial.state != "failed"):
        axes.set_ylim(bottom=0)
    failed = [number for number, trial in enumerate(trials, 1) if trial.state == "failed"]
    if failed:
        low = axes.get_ylim()[0]
        axes.plot(failed, [low] * len(failed), "x", color=plots.VERMILION, label="failed", clip_on=False)
    axes.set(title="The search", xlabel="trial", ylabel=unit + " (lower is better)" * minimize)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(lambda value, position: format_metric(value))
    axes.legend(fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    leader = best(trials, minimize) or trials[0]
    alt = (
        f"{len(trials)} trials: {sum(trial.state == 'pruned' for trial in trials)} pruned, {len(failed)} failed. "
        f"Default settings (trial 1): {format_metric(trials[0].value)}; best (trial {trials.index(leader) + 1}): "
        f"{format_metric(leader.value)} ({format_settings(leader.settings)})."
    )
    return figure, alt


def draw_importance(shares: Mapping[str, float]) -> tuple[Figure, str]:
    """Plot each knob's importance as bars; return the figure and its alt text."""
    plots.use_style()
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.5 * len(shares)))
    names = list(shares)[::-1]
    axes.barh(names, [100 * shares[name] for name in names], color=plots.BLUE)
    axes.set(title="Which knobs mattered", xlabel="share of the metric's variance (%)", xlim=(0, 100))
    axes.grid(axis="y", visible=False)
    alt = "Each knob's share of the metric's variance: " + ", ".join(
        f"{name} {100 * share:.0f}%" for name, share in shares.items()
    )
    return figure, f"{alt}."
