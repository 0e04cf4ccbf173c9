"""The results of a search: its confirmation, the tables and files that it leaves, and its pictures.

`optuna.visualization.matplotlib` (5.0) leaves out the default settings and the trials that were pruned or failed, and
switches all of matplotlib to another style.
"""

import csv
import io
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import optuna
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.display import plots
from labkit.system import files, load
from labkit.system.errors import LabError
from labkit.system.statistics import RANK_ROUNDS, Ratio, ratio
from labkit.tune.search import Settings, Space, Trial, as_study, best
from labkit.tune.trial import IMAGES_PER_SECOND, Command, format_metric


class Confirmation(NamedTuple):
    """The best settings vs the default ones, measured again, alternately, after the search chose them.

    Attributes
    ----------
    ratio : Ratio
        The best ones' speed divided by the default's.
    measured, reference : list of float
        The metric of the best and of the default settings, round by round.
    others : load.Others
        Other work on the cores meanwhile.
    """

    ratio: Ratio
    measured: list[float]
    reference: list[float]
    others: load.Others = load.Others()

    @property
    def gained(self) -> bool:
        """Whether the best settings are faster, and that is not chance."""
        return self.ratio.significant and self.ratio.faster

    def __str__(self) -> str:
        """Return the verdict: the ratio with its 95% interval, the rounds won, and what they allow to conclude."""
        record = "" if self.ratio.outliers else f", {self.ratio.record} fresh rounds"  # else the ratio has it
        times = f"{self.ratio} times the default's speed{record}: {self.ratio.verdict}"
        return f"confirmed: {times}" if self.gained else f"not confirmed: {times}"


def confirm(
    objective: Callable[[Settings], float],
    found: Settings,
    default: Settings,
    rounds: int = RANK_ROUNDS,
    minimize: bool = False,
    on_measurement: Callable[[int, str, float], None] = lambda number, which, metric: None,
) -> Confirmation:
    """Measure the best settings vs the default ones, alternately.

    The best of many trials was also the luckiest: its metric in the search is too good, and only fresh rounds count.

    Parameters
    ----------
    objective : callable
        Takes the settings and returns the metric.
    found, default : dict
        The settings to compare.
    rounds : int
        Fresh rounds. The settings that run first alternate.
    minimize : bool
        Whether a small metric is good.
    on_measurement : callable
        Is given the round, "best" or "default", and the metric.
    """
    metrics: dict[str, list[float]] = {"best": [], "default": []}
    with load.combine() as others:
        for number in range(1, rounds + 1):
            turns = [("best", found), ("default", default)]
            for which, settings in turns if number % 2 else turns[::-1]:
                metric = objective(settings)
                if metric <= 0:
                    raise LabError(f"a metric of {metric:g} has no ratio: print one that is above 0.")
                metrics[which].append(metric)
                on_measurement(number, which, metric)
    one, other = metrics["best"], metrics["default"]
    speeds = ([1 / seconds for seconds in each] if minimize else each for each in (one, other))
    return Confirmation(ratio(*speeds), one, other, others)


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as in `intra=2 omp=2`, without the knobs that are left alone."""
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in settings.items() if value is not None) or (
        "every knob left alone"
    )


def env_file(command: Command, settings: Settings, verdict: str) -> str:
    """Return a file that bash can source, with the variables of some settings; the rest of them is in its comments."""
    changed = command.variables(settings)
    lines = [
        "# Found by lab tune. In bash: source this file, then run the command.",
        f"# {verdict}",
        *(f"# {knob.env}: {knob.text}" for knob in command.knobs.values() if knob.env in changed and knob.text),
        *(f"export {name}={shlex.quote(value)}" for name, value in changed.items()),
        *(f"# flags: {shlex.join(flags)}" for flags in [command.flags(settings)] if flags),
        f"# all in one line: {command.line(settings)}",
    ]
    return "\n".join(lines) + "\n"


def write_trials(trials: Sequence[Trial], file: Path) -> None:
    """Write a table of all trials, CSV."""
    out = io.StringIO(newline="")
    table = csv.writer(out)
    names = list(trials[0].settings)
    table.writerow(["trial", *names, "metric", "state", "seconds", "repeats", "others", "failure"])
    for number, trial in enumerate(trials, 1):
        metric = "" if trial.state == "failed" else trial.value
        repeats = " ".join(map(str, trial.values))
        others = "" if trial.others is None else round(trial.others, 3)
        row = [*trial.settings.values(), metric, trial.state, round(trial.seconds, 1), repeats, others, trial.failure]
        table.writerow([number, *row])
    files.write(file, out.getvalue())


def importance(space: Space, trials: Sequence[Trial], seed: int = 0) -> dict[str, float]:
    """Return each knob's share of the metric's variance, most important first; nothing when trials can't show it.

    Optuna's fANOVA: Hutter et al. 2014, "An Efficient Approach for Assessing Hyperparameter Importance".
    """
    measured = [trial for trial in trials if trial.state != "failed"]
    if len(measured) < 4 or len({trial.value for trial in measured}) < 2:
        return {}
    study = as_study(space, measured)
    return optuna.importance.get_param_importances(
        study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=seed)
    )


def unit_of(pattern: str) -> str:
    """Return what a metric's regular expression has before its number, as an axis label."""
    if pattern == IMAGES_PER_SECOND:
        return "images/s"
    name = pattern.partition("(")[0].strip(" :=")
    return name if re.fullmatch(r"\w[\w /%-]*", name) else "metric, as the command prints it"


def draw_search(trials: Sequence[Trial], unit: str, minimize: bool = False) -> tuple[Figure, str]:
    """Draw each trial's metric and the best so far; return the picture and its alternative text."""
    plots.use_style()
    figure, axes = plt.subplots()
    styles = {"done": (plots.BLUE, "o", "measured"), "pruned": (plots.ORANGE, "v", "pruned: far behind the best")}
    for state, (colour, marker, label) in styles.items():
        points = [(number, trial.value) for number, trial in enumerate(trials, 1) if trial.state == state]
        if points:
            axes.plot(*zip(*points, strict=True), linestyle="none", color=colour, marker=marker, label=label)
    numbers = range(1, len(trials) + 1)
    so_far = [found.value if (found := best(trials[:number], minimize)) else math.nan for number in numbers]
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
    axes.yaxis.set_major_formatter(lambda value, place: format_metric(value))
    axes.legend(fontsize=11, loc="center left", bbox_to_anchor=(1, 0.5))
    found = best(trials, minimize) or trials[0]
    alt = (
        f"{len(trials)} trials: {sum(trial.state == 'pruned' for trial in trials)} pruned, {len(failed)} failed. "
        f"The default settings, trial 1, gave {format_metric(trials[0].value)}; "
        f"the best, trial {trials.index(found) + 1}, {format_metric(found.value)} ({format_settings(found.settings)})."
    )
    return figure, alt


def draw_importance(shares: Mapping[str, float]) -> tuple[Figure, str]:
    """Draw each knob's importance as bars; return the picture and its alternative text."""
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
