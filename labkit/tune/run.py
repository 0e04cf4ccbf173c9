"""`lab tune`: search for a command's best settings, confirm them and write them to a folder."""

import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from labkit.display import plots
from labkit.measure import Measured, alternate, compare
from labkit.measure.comparison import Speedup
from labkit.system import files, load
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.tune import report, space
from labkit.tune.config import IMAGES_PER_SECOND, TuneConfig
from labkit.tune.search import Settings, Trial, best, search, size
from labkit.tune.trial import Command, check_metric, format_metric

# The default command of `lab tune`: few steps, as there are many trials.
BENCH_FLAGS = ("-m", "labkit.bench", "--num_batches=10")
DEFAULT_TRIALS = 40
FINALISTS = 3  # the best trials that are measured again
TIMEOUT_FACTOR = 10  # of the default's time; large, as larger batches legitimately take longer
MIN_TIMEOUT_S = 60.0
TRIALS = "trials.jsonl"  # what is searched, then a line for each trial
CONFIRMATION = "confirmation.json"  # metrics of the best trials and the default settings, by round
DEFAULT = "default"


@dataclass(frozen=True)
class Confirmation:
    """The default settings and the best trials, measured again.

    Attributes
    ----------
    settings : dict of str to dict
        The settings of the default and of each of these trials, by name: "default", "trial 7".
    promised : dict of str to float
        Their metrics in the search.
    metrics : dict of str to Measured
        Their metrics in the fresh rounds.
    speedups : dict of str to Speedup
        The speed of each of these trials relative to the default.
    """

    settings: dict[str, Settings]
    promised: dict[str, float]
    metrics: dict[str, Measured]
    speedups: dict[str, Speedup]

    @property
    def chosen(self) -> str:
        """The name of the trial whose speed-up has the largest lower bound; "default" if no bound is above 1."""
        name = max(self.speedups, key=lambda name: lower_bound(self.speedups[name]))
        return name if lower_bound(self.speedups[name]) > 1 else DEFAULT


def lower_bound(speedup: Speedup) -> float:
    """Return the lower end of a speed-up's interval; with too few rounds for one, the smallest ratio."""
    return min(speedup.rounds) if math.isnan(speedup.low) else speedup.low


def tune(argv: Sequence[str], config: TuneConfig, console: Console) -> Confirmation | None:
    """Search, confirm, and write the results to a folder.

    Parameters
    ----------
    argv : sequence of str
        The command; if empty, `lab bench`.
    config : TuneConfig
        The rest of the command line.
    console : Console
        Where to print progress.

    Returns
    -------
    Confirmation or None
        None if only the default settings were measured in full.

    Raises
    ------
    LabError
        If an option is invalid, or the command fails with the default settings.
    KeyboardInterrupt
        If interrupted; the trials are kept, and the results so far are written.
    """
    command, knobs_file = _command(list(argv), config)
    command = replace(command, knobs=space.read(config.knobs or knobs_file, usable_machine()))
    points, default = space.space_of(command.knobs), dict.fromkeys(command.knobs)
    out = config.out or Path("work") / f"tune-{_name(argv)}"
    trials = config.trials or (size(points) if config.minutes else DEFAULT_TRIALS)
    completed = _resume(out, command, config)

    report_line = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    report_line(f"Tuning   {command.line(default)}")
    for name, knob in command.knobs.items():
        values = ", ".join(str(value) for value in knob.values if value is not None)
        report_line(f"  {name:12} {knob.env or knob.flag or knob.prefix}: {values}")
    budget = f"{config.minutes:g} minutes" if config.minutes else f"{trials} trials"
    report_line(f"{size(points):,} points; {budget}, each measured {config.repeats}×; results in {out}/")
    if completed:
        report_line(f"Resuming after {len(completed)} trials.")
    try:
        _search(command, default, trials, completed, out, config, report_line)
    except KeyboardInterrupt:
        if completed:
            _write(out, command, completed, config, "not confirmed: the search was interrupted", report_line)
        report_line(f"Interrupted; {len(completed)} trials are saved. The same command resumes.")
        raise
    finalists = _finalists(completed, default, config)
    if len(finalists) == 1:
        _write(out, command, completed, config, "no other settings were measured in full", report_line)
        report_line("No other settings were measured in full: keep the default.")
        return None
    _write(out, command, completed, config, "not confirmed yet", report_line)
    return _confirm(out, command, finalists, config, report_line)


def _finalists(trials: Sequence[Trial], default: Settings, config: TuneConfig) -> dict[str, Trial]:
    """Return the default and the best other trials, best first, by name."""
    others = {
        f"trial {number}": trial
        for number, trial in enumerate(trials, 1)
        if trial.state == "done" and trial.settings != default
    }
    ranked = sorted(others, key=lambda name: others[name].value, reverse=not config.minimize)
    return {DEFAULT: trials[0]} | {name: others[name] for name in ranked[:FINALISTS]}


def _confirm(
    out: Path, command: Command, finalists: dict[str, Trial], config: TuneConfig, report_line: Callable[..., None]
) -> Confirmation:
    """Measure the best trials and the default again, alternately, and write the settings to use and the verdict.

    The best of many trials was also the luckiest, so only fresh rounds count, and the settings to use are those with
    the largest lower bound: a high median of unstable launches doesn't win.
    """
    n = len(finalists) - 1
    report_line(f"Confirming: default vs the best {n} of the other trials, alternating, {config.rounds} fresh rounds")

    def measure(name: str, settings: Settings) -> float:
        metric = command(settings)
        report_line(f"  {name:10} {format_metric(metric):>12}")
        return metric

    settings = {name: trial.settings for name, trial in finalists.items()}
    try:
        metrics = alternate({name: partial(measure, name, settings[name]) for name in finalists}, config.rounds)
    except LabError as error:
        raise LabError(f"the confirmation failed: {error}") from error
    speedups = {name: compare(metrics[name], metrics[DEFAULT], config.minimize) for name in [*finalists][1:]}
    promised = {name: trial.value for name, trial in finalists.items()}
    confirmation = Confirmation(settings, promised, metrics, speedups)
    lines = [_launches(DEFAULT, metrics[DEFAULT])]
    lines += [f"{_launches(name, metrics[name])}; {speedup}" for name, speedup in speedups.items()]
    chosen = confirmation.chosen
    if chosen == DEFAULT:
        verdict = "not confirmed: no lower bound is above 1, so these are the default settings"
    else:
        bound = lower_bound(speedups[chosen])
        verdict = f"confirmed: {chosen} has the largest lower bound, {bound:.2f}× the default's speed"
    lines += [verdict, *(str(others) for others in metrics[DEFAULT].contention if others.busy)]
    files.write(out / "best.env", report.env_file(command, settings[chosen], *lines))
    files.write(out / CONFIRMATION, json.dumps({name: metric.rounds for name, metric in metrics.items()}))
    for line in lines:
        report_line(line)
    report_line(
        "Keep the default settings." if chosen == DEFAULT else f"To use it: source {shlex.quote(f'{out}/best.env')}"
    )
    return confirmation


def _launches(name: str, metric: Measured) -> str:
    """Return the range of a finalist's launches."""
    low, high = min(metric.rounds), max(metric.rounds)
    return f"{name}: launches from {format_metric(low)} to {format_metric(high)}, {high / low - 1:.0%} apart"


def _command(argv: list[str], config: TuneConfig) -> tuple[Command, Path]:
    """Return the command, still without knobs, and its default knobs file."""
    check_metric(config.metric)
    for option, value in (("--trials", config.trials), ("--minutes", config.minutes)):
        if value is not None and not 0 < value < math.inf:
            raise LabError(f"{option} must be positive, not {value:g}.")
    if argv:
        return Command(argv, {}, config.metric), space.DEFAULT_KNOBS
    return Command([sys.executable, *BENCH_FLAGS], {}, config.metric), space.BENCH_KNOBS


def _name(argv: Sequence[str]) -> str:
    """Return a short name for a command: the name of its script or program."""
    if not argv:
        return "bench"
    return next((Path(part).stem for part in argv if Path(part).suffix in (".py", ".sh")), Path(argv[0]).name)


def _resume(out: Path, command: Command, config: TuneConfig) -> list[Trial]:
    """Return the trials of this search in the folder; if there is no search, begin it.

    Raises
    ------
    LabError
        If the folder has a different search, or its file is damaged.
    """
    request: dict[str, Any] = {
        "command": command.line({}),
        "knobs": {name: [*knob.values] for name, knob in command.knobs.items()},
        "metric": config.metric,
        "direction": "minimize" if config.minimize else "maximize",
        "repeats": config.repeats,
    }
    file = out / TRIALS
    with files.writing(out, "name another folder with --out"):
        out.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            files.write(file, json.dumps(request) + "\n")
    try:
        stored, *trials = map(json.loads, files.read(file).splitlines())
        changes = ", ".join(key for key in request if stored[key] != request[key])
        completed = [Trial(**trial | {"values": tuple(trial["values"])}) for trial in trials]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{file} is damaged ({error}): name another folder with --out, or delete it.") from error
    if changes:
        raise LabError(f"{out} has a search with different {changes}: name another folder with --out, or delete it.")
    return completed


def _search(
    command: Command,
    default: Settings,
    trials: int,
    completed: list[Trial],
    out: Path,
    config: TuneConfig,
    report_line: Callable[..., None],
) -> None:
    """Search, storing each trial, adding it to `completed`, and printing a line for it."""

    def on_trial(trial: Trial, so_far: list[Trial]) -> None:
        completed.append(trial)
        line = f"{json.dumps(trial._asdict())}\n"
        files.write(out / TRIALS, files.read(out / TRIALS) + line.encode())
        _limit_time(command, trial, default)
        metric = "failed" if trial.state == "failed" else format_metric(trial.value)
        state = f"  ({trial.state})" if trial.state == "pruned" else ""
        state += f"  {load.BUSY_MARK}: other work took {trial.others:.0%} of the cores" if trial.busy else ""
        failure = "".join(f"\n{'':6}{line}" for line in trial.failure.splitlines())
        report_line(f"{len(so_far):4}  {metric:>12}  {report.format_settings(trial.settings)}{state}{failure}")

    for trial in completed:
        _limit_time(command, trial, default)
    try:
        search(
            space.space_of(command.knobs),
            command,
            trials,
            minimize=config.minimize,
            default=default,
            repeats=config.repeats,
            minutes=config.minutes or math.inf,
            on_trial=on_trial,
            earlier=completed,
        )
    except files.NotWritten:
        raise
    except LabError as error:
        raise LabError(f"the command fails with its default settings: {error}") from error


def _limit_time(command: Command, trial: Trial, default: Settings) -> None:
    """Set the timeout of runs from the default's time, once known."""
    if trial.settings == default:
        command.timeout = max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * trial.seconds / len(trial.values))


def _write(
    out: Path, command: Command, trials: list[Trial], config: TuneConfig, verdict: str, report_line: Callable[..., None]
) -> None:
    """Write and print the results of the search."""
    leader, default = best(trials, config.minimize) or trials[0], trials[0]
    failed = sum(trial.state == "failed" for trial in trials)
    best_metric, default_metric = format_metric(leader.value), format_metric(default.value)
    report_line(f"Best of {len(trials)} trials ({failed} failed): {best_metric}; default: {default_metric}")
    report_line(f"  {command.line(leader.settings)}")
    if busy := sum(trial.busy for trial in trials):
        report_line(
            f"⚠ Other work used the cores during {busy} of them, so their metrics are unreliable (others in "
            f"{TRIALS}). Search again on a quiet machine, with another --out."
        )
    files.write(out / "best.env", report.env_file(command, leader.settings, verdict))
    (out / CONFIRMATION).unlink(missing_ok=True)  # from an earlier search
    report_line(f"{out}/best.env, {out}/{TRIALS}")
    unit = "images/s" if config.metric == IMAGES_PER_SECOND else "metric as printed"
    plots_by_name = {"search.png": report.draw_search(trials, unit, config.minimize)}
    if shares := report.importance(space.space_of(command.knobs), trials):
        plots_by_name["importance.png"] = report.draw_importance(shares)
    for name, (figure, alt) in plots_by_name.items():
        plots.save(figure, out / name)
        report_line(f"{out / name}: {alt}")
