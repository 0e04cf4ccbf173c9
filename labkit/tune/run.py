"""`lab tune`: from a command to its best settings, searched for, confirmed and written to a folder."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy.exc import SQLAlchemyError

from labkit.bench import configurations, flags
from labkit.display import plots
from labkit.system import files, load, paths
from labkit.system.errors import LabError
from labkit.tune import metrics, report, space
from labkit.tune.metrics import IMAGES_PER_SECOND, format_metric
from labkit.tune.search import SamplerName, Settings, Space, Trial, best, search, size, trials_of
from labkit.tune.trial import Command

# What `lab tune` tunes without a command: few steps, since there are many trials.
BENCH_COMMAND = ("lab", "bench", "--num_batches=10")
DEFAULT_TRIALS = 40
TIMEOUT_FACTOR = 10  # a run may take that many times as long as the default's; larger batches rightly take longer
MIN_TIMEOUT_S = 60.0
CONFIRMATION = "confirmation.json"  # the metrics of best and default settings in its rounds


@dataclass(frozen=True)
class TuneConfig:
    """The options of `lab tune`, as its help explains them.

    Attributes
    ----------
    knobs : Path or None
        The file of knobs; by default `knobs.toml` beside this module.
    out : Path or None
        The folder to write to; by default `work/tune-NAME`.
    trials, minutes : number or None
        The budget; with neither, `DEFAULT_TRIALS` trials.
    repeats : int
        Runs of each point.
    rounds : int
        Of the confirmation.
    timeout : float or None
        Seconds for one run; by default `TIMEOUT_FACTOR` times what the default settings take.
    metric : str or None
        The regular expression that finds the metric; by default `IMAGES_PER_SECOND`.
    json_field : str or None
        Or: the field of the JSON that the command prints.
    minimize : bool
        Whether a small metric is good.
    openmp : bool
        Whether the command runs an OpenMP build.
    """

    knobs: Path | None = None
    out: Path | None = None
    trials: int | None = None
    minutes: float | None = None
    repeats: int = 3
    rounds: int = 5
    timeout: float | None = None
    metric: str | None = None
    json_field: str | None = None
    minimize: bool = False
    openmp: bool = False
    sampler: SamplerName = "gp"
    seed: int = 0


def tune(argv: Sequence[str], config: TuneConfig, console: Console) -> report.Confirmation | None:
    """Search, confirm, and write what came of it to a folder.

    Parameters
    ----------
    argv : sequence of str
        The command; without one, `lab bench` in the OpenMP environment when that is there.
    config : TuneConfig
        The rest of the command line.
    console : Console
        Where to print how it goes.

    Returns
    -------
    Confirmation or None
        None when the default settings were the best.

    Raises
    ------
    LabError
        When something makes no sense, or the command fails with the default settings.
    KeyboardInterrupt
        When interrupted; the trials are kept, and what came of them so far is written.
    """
    _check(config)
    command, host = _command(list(argv), config)
    knobs, left_out = space.read(config.knobs or space.DEFAULT_KNOBS, host)
    command = replace(command, knobs=knobs)
    points, default = space.space_of(knobs), space.default_settings(knobs)
    out = config.out or Path("work") / f"tune-{_name(argv)}"
    trials = config.trials or (size(points) if config.minutes else DEFAULT_TRIALS)
    study = _study(out, command, config)

    report_line = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    report_line(f"Tuning   {command.line(default)}")
    for name, knob in knobs.items():
        report_line(f"  {name:12} {_span(knob)}")
    for name, why in left_out.items():
        report_line(f"  {name:12} left out: {why}")
    report_line(f"{size(points):,} points; {_budget(trials, config)}, each measured {config.repeats}×, kept in {out}/")
    try:
        with _stored(out):
            if before := len(trials_of(study)):
                report_line(f"Going on after the {before} trials that are there already.")
            ended = _search(command, points, default, trials, study, config, console)
    except KeyboardInterrupt:
        if ended := trials_of(study):
            _write(out, command, ended, config, "not confirmed: the search was interrupted", report_line)
        report_line(f"Interrupted. {len(ended)} trials are kept: the same command goes on from there.")
        raise
    found = _best(ended, config)
    if found.settings == default:
        _write(out, command, ended, config, "the default settings were the best", report_line)
        report_line("Nothing was faster than the default settings: keep them.")
        return None
    _write(out, command, ended, config, "not confirmed yet", report_line)
    report_line(f"Confirming: best against default, in turns, {config.rounds} rounds")

    def on_measurement(number: int, which: str, metric: float) -> None:
        report_line(f"  round {number} of {config.rounds}  {which:8} {format_metric(metric):>12}")

    try:
        confirmation = report.confirm(command, found.settings, default, config.rounds, config.minimize, on_measurement)
    except KeyboardInterrupt:
        report_line("Interrupted. The trials are kept, and the same command confirms anew.")
        raise
    except LabError as error:
        raise LabError(f"the confirmation failed: {error}") from error
    doubts = [str(confirmation.others)] if confirmation.others.busy else []
    files.write(out / "best.env", report.env_file(command, found.settings, ". ".join([str(confirmation), *doubts])))
    rounds = {"best": confirmation.measured, "default": confirmation.reference}
    files.write(out / CONFIRMATION, json.dumps(rounds))
    report_line(str(confirmation), style="bold")
    for doubt in doubts:
        report_line(doubt)
    report_line(f"To use them: source {out}/best.env" if confirmation.gained else "Keep the default settings.")
    return confirmation


def _check(config: TuneConfig) -> None:
    if config.trials is not None and config.trials < 1:
        raise LabError(f"--trials {config.trials} leaves nothing to do: give 1 or more.")
    if config.minutes is not None and not 0 < config.minutes < math.inf:
        raise LabError(f"--minutes {config.minutes:g} is no time to search in: give a number above 0.")
    if config.timeout is not None and not 0 < config.timeout < math.inf:
        raise LabError(f"--timeout {config.timeout:g} is no time to wait: give a number above 0.")


def _command(argv: list[str], config: TuneConfig) -> tuple[Command, space.Host]:
    """Return the command, its knobs still unknown, and the host that they have to act on."""
    read_metric = metrics.reader(config.metric, config.json_field)
    if not argv:
        argv = [*BENCH_COMMAND, *(["--config=openmp"] if not configurations.known()["openmp"].missing else [])]
    timeout = config.timeout or Command.timeout
    if Path(argv[0]).name != "lab" or argv[1:2] != ["bench"]:
        return Command(argv, {}, read_metric, timeout=timeout), space.inspect_host(openmp=config.openmp)
    wanted = flags.parse(argv[2:])
    names = wanted.configurations
    if len(names) > 1 or names == ("all",):
        raise LabError(f"--config {','.join(names)}: tune one configuration at a time.")
    plain = configurations.Configuration("the default")
    configuration = next(iter(configurations.choose(names).values())) if names else plain
    if configuration.missing:
        raise LabError(f"--config {names[0]} cannot run: {configuration.missing}.")
    arguments = [*configuration.flags, *flags.as_flags(wanted)]
    if any(argument.startswith(("--num_intra", "--num_inter")) for argument in arguments):
        raise LabError(
            "the command sets the threads, which are knobs: leave that out. Configurations to tune: onednn, openmp."
        )
    full = [*configuration.prefix, str(configuration.python), "-m", "labkit.bench", *arguments]
    host = space.inspect_host(openmp=configuration.python == configurations.OPENMP or config.openmp, bench=True)
    return Command(full, {}, read_metric, dict(configuration.env), paths.ROOT, timeout), host


def _name(argv: Sequence[str]) -> str:
    """Return a short name for a command: its script's, or its program's."""
    if not argv:
        return "bench"
    scripts = [Path(part).stem for part in argv if Path(part).suffix in (".py", ".sh")]
    return (scripts or ["bench" if argv[1:2] == ["bench"] else Path(argv[0]).name])[0]


def _study(out: Path, command: Command, config: TuneConfig) -> optuna.Study:
    """Open the folder's study, or begin one.

    Raises
    ------
    LabError
        When it is of something else, or damaged.
    """
    what: dict[str, Any] = {
        "command": command.line({}),
        "knobs": {name: [*knob.values] for name, knob in command.knobs.items()},
        "metric": config.json_field or config.metric or IMAGES_PER_SECOND,
        "direction": "minimize" if config.minimize else "maximize",
        "repeats": config.repeats,
    }
    with files.writing(out, "name another folder with --out"), _stored(out):
        out.mkdir(parents=True, exist_ok=True)
        study = optuna.create_study(
            study_name="tune",
            storage=f"sqlite:///{out.resolve()}/study.db",
            direction="minimize" if config.minimize else "maximize",
            load_if_exists=True,
        )
        kept = study.user_attrs.get("what")
        if kept is None:
            study.set_user_attr("what", what)
    what = json.loads(json.dumps(what))
    if kept not in (None, what):
        other = ", ".join(key for key in what if kept.get(key) != what[key])
        raise LabError(
            f"{out} holds a search that differs in {other}. Begin anew with --out {_free(out)}, or delete that folder."
        )
    return study


@contextlib.contextmanager
def _stored(out: Path) -> Iterator[None]:
    """Raise LabError when the study can't be read or written: damaged, a full disk, a folder that is read-only."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        why = str(error.__cause__ or error).partition("\n")[0]
        raise LabError(
            f"{out}/study.db cannot be used: {why}. Free some space if its disk is full, or name another folder with "
            "--out; the trials that are in it stay."
        ) from error


def _free(out: Path) -> Path:
    """Return the first folder of that name and a number that is not there."""
    number = 2
    while (other := out.with_name(f"{out.name}-{number}")).exists():
        number += 1
    return other


def _budget(trials: int, config: TuneConfig) -> str:
    count = "" if config.minutes and not config.trials else f"{trials} trials"
    return " or ".join(filter(None, [count, f"{config.minutes:g} minutes" if config.minutes else ""]))


def _span(knob: space.Knob) -> str:
    """Return what a knob may be, and where its value goes."""
    values = [str(value) for value in knob.values if value is not None]
    if len(values) > 12:
        values = [*values[:3], "…", values[-1]]
    return f"{knob.env or knob.flag or knob.prefix}: {', '.join(values)}"


def _search(
    command: Command,
    points: Space,
    default: Settings,
    trials: int,
    study: optuna.Study,
    config: TuneConfig,
    console: Console,
) -> list[Trial]:
    """Search with a progress bar, and a line for each trial."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    best_so_far = TextColumn("{task.fields[best]}", markup=False)
    total = min(trials, size(points))
    with Progress(*columns, TimeElapsedColumn(), best_so_far, console=console) as progress:
        kept = trials_of(study)
        task = progress.add_task("searching", total=total, completed=len(kept), best="")

        def show(so_far: list[Trial]) -> None:
            found = best(so_far, config.minimize)
            text = f"best {format_metric(found.value)}: {report.format_settings(found.settings)}" if found else ""
            progress.update(task, completed=len(so_far), best=text)

        def on_trial(trial: Trial, so_far: list[Trial]) -> None:
            _limit_time(command, trial, default, config)
            metric = "failed" if trial.state == "failed" else format_metric(trial.value)
            state = f"  ({trial.state})" if trial.state == "pruned" else ""
            state += f"  {load.BUSY_MARK}: other work took {trial.others:.0%} of the cores" if trial.busy else ""
            line = f"{len(so_far):4}  {metric:>12}  {report.format_settings(trial.settings)}{state}"
            notes = "".join(f"\n{'':6}{part}" for part in trial.failure.splitlines())
            if len(so_far) == 1:
                once = trial.seconds / len(trial.values)
                minutes = total * config.repeats * once / 60
                notes += f"\n{'':6}a run takes {once:.1f} s; all trials: up to {minutes:.1f} minutes"
            progress.console.print(line + notes, highlight=False, markup=False, soft_wrap=True)
            show(so_far)

        for trial in kept:
            _limit_time(command, trial, default, config)
        show(kept)
        try:
            return search(
                points,
                command,
                trials,
                seed=config.seed,
                sampler=config.sampler,
                minimize=config.minimize,
                default=default,
                repeats=config.repeats,
                minutes=config.minutes or math.inf,
                on_trial=on_trial,
                study=study,
            )
        except LabError as error:
            raise LabError(f"the command fails as it stands, before any knob is turned: {error}") from error


def _limit_time(command: Command, trial: Trial, default: Settings, config: TuneConfig) -> None:
    """Limit the time of a run by the default's, once that is known and `--timeout` does not say."""
    if trial.settings == default and not config.timeout:
        command.timeout = max(MIN_TIMEOUT_S, TIMEOUT_FACTOR * trial.seconds / len(trial.values))


def _best(trials: Sequence[Trial], config: TuneConfig) -> Trial:
    """Return the best trial; the default settings are the first, and a search whose first trial fails ends there."""
    found = best(trials, config.minimize)
    assert found
    return found


def _write(
    out: Path, command: Command, trials: list[Trial], config: TuneConfig, verdict: str, report_line: Callable[..., None]
) -> None:
    """Write what came of the search, and print it."""
    found, default = _best(trials, config), trials[0]
    failed = sum(trial.state == "failed" for trial in trials)
    best_metric, default_metric = format_metric(found.value), format_metric(default.value)
    report_line(f"Best of {len(trials)} trials ({failed} failed): {best_metric}; default: {default_metric}")
    report_line(f"  {command.line(found.settings)}")
    if busy := sum(trial.busy for trial in trials):
        report_line(
            f"⚠ Other work had the cores during {busy} of them, whose metrics are doubtful (others in trials.csv). "
            "Search again when the machine is quiet, with another --out."
        )
    files.write(out / "best.env", report.env_file(command, found.settings, verdict))
    (out / CONFIRMATION).unlink(missing_ok=True)  # of a search that ended before
    report.write_trials(trials, out / "trials.csv")
    report_line(f"{out}/best.env, {out}/trials.csv")
    unit = metrics.unit(config.metric, config.json_field)
    pictures = {"search.png": report.draw_search(trials, unit, config.minimize)}
    if shares := report.importance(space.space_of(command.knobs), trials, config.seed):
        pictures["importance.png"] = report.draw_importance(shares)
    for name, (figure, alt) in pictures.items():
        plots.save(figure, out / name)
        report_line(f"{out / name}: {alt}")
