"""How does `lab tune` go, from a command to its best settings?"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy.exc import SQLAlchemyError

from labkit.bench import flags, setups
from labkit.system import files, load, paths
from labkit.system.errors import LabError
from labkit.tune import report, space
from labkit.tune.search import Trial, best, search, size, trials_of
from labkit.tune.trial import FIGURE, Command, Figure, by_field, by_pattern

# What `lab tune` alone tunes: few steps, for there are many trials.
BENCH = ("lab", "bench", "--num_batches=10")
TRIALS = 40
SLOWER = 10  # times the default's time is what a trial may take; larger batches take longer for no fault of theirs
LEAST = 60.0  # seconds that a trial may take in any case


@dataclass(frozen=True)
class Options:
    """What was asked of `lab tune`, beside the command; see its help.

    Attributes
    ----------
    trials, minutes : number or None
        The budget; with neither, `TRIALS` trials.
    timeout : float or None
        Seconds for one run; by default `SLOWER` times what the default settings take.
    """

    knobs: Path | None = None
    out: Path | None = None
    trials: int | None = None
    minutes: float | None = None
    repeats: int = 3
    rounds: int = 5
    timeout: float | None = None
    pattern: str | None = None
    json_field: str | None = None
    minimize: bool = False
    openmp: bool = False
    sampler: str = "tpe"
    seed: int = 0


def tune(argv: Sequence[str], asked: Options, console: Console) -> report.Confirmation | None:
    """Search, confirm, and write what came of it to a folder.

    Parameters
    ----------
    argv : sequence of str
        The command; without one, `lab bench` in the OpenMP environment when that is there.
    asked : Options
        The rest of the command line.
    console : Console
        Where to tell how it goes.

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
    _check(asked)
    run, here = _command(list(argv), asked)
    file = asked.knobs or space.DEFAULTS
    run.knobs, left_out = space.read(file, here)
    values, default = space.values(run.knobs), space.default(run.knobs)
    out = asked.out or Path("work") / f"tune-{_name(argv)}"
    trials = asked.trials or (size(values) if asked.minutes else TRIALS)
    study = _study(out, run, asked)

    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    say(f"Tuning   {run.line(default)}")
    for name, knob in run.knobs.items():
        say(f"  {name:12} {_span(knob)}")
    for name, why in left_out.items():
        say(f"  {name:12} left out: {why}")
    say(f"{size(values):,} points; {_budget(trials, asked)}, each measured {asked.repeats}×, kept in {out}/")
    try:
        with _stored(out):
            if before := len(trials_of(study)):
                say(f"Going on after the {before} trials that are there already.")
            ended = _search(run, values, default, trials, study, asked, console)
    except KeyboardInterrupt:
        if ended := trials_of(study):
            _write(out, run, ended, asked, "not confirmed: the search was interrupted", say)
        say(f"Interrupted. {len(ended)} trials are kept: the same command goes on from there.")
        raise
    found = best(ended, asked.minimize)
    if found.settings == default:
        _write(out, run, ended, asked, "the default settings were the best", say)
        say("Nothing was faster than the default settings: keep them.")
        return None
    _write(out, run, ended, asked, "not confirmed yet", say)
    say(f"Confirming: best against default, in turns, {asked.rounds} rounds")

    def hear(number: int, which: str, figure: float) -> None:
        say(f"  round {number} of {asked.rounds}  {which:8} {figure:12,.4g}")

    try:
        confirmation = report.confirm(run, found.settings, default, asked.rounds, asked.minimize, hear)
    except KeyboardInterrupt:
        say("Interrupted. The trials are kept, and the same command confirms anew.")
        raise
    except LabError as error:
        raise LabError(f"the confirmation failed: {error}") from error
    doubts = [str(confirmation.others)] if confirmation.others.busy else []
    files.write(out / "best.env", report.env_file(run, found.settings, ". ".join([str(confirmation), *doubts])))
    say(str(confirmation), style="bold")
    for doubt in doubts:
        say(doubt)
    say(f"To use them: source {out}/best.env" if confirmation.gained else "Keep the default settings.")
    return confirmation


def _check(asked: Options) -> None:
    if asked.trials is not None and asked.trials < 1:
        raise LabError(f"--trials {asked.trials} leaves nothing to do: give 1 or more.")
    if asked.minutes is not None and not 0 < asked.minutes < math.inf:
        raise LabError(f"--minutes {asked.minutes:g} is no time to search in: give a number above 0.")
    if asked.timeout is not None and not 0 < asked.timeout < math.inf:
        raise LabError(f"--timeout {asked.timeout:g} is no time to wait: give a number above 0.")
    if asked.pattern and asked.json_field:
        raise LabError("--figure and --json-field both say where the figure is: give one of them.")


def _command(argv: list[str], asked: Options) -> tuple[Command, space.Here]:
    """Return the command, its knobs still unknown, and what they have to act on."""
    figure: Figure = by_field(asked.json_field) if asked.json_field else by_pattern(asked.pattern or FIGURE)
    if not argv:
        argv = [*BENCH, *(["--setup=openmp"] if not setups.known()["openmp"].missing else [])]
    timeout = {"timeout": asked.timeout} if asked.timeout else {}
    if Path(argv[0]).name != "lab" or argv[1:2] != ["bench"]:
        return Command(argv, {}, figure, **timeout), space.look(openmp=asked.openmp)
    wanted = flags.parse(argv[2:])
    names = wanted.setup or []
    if len(names) > 1 or names == ["all"]:
        raise LabError(f"--setup {','.join(names)}: tune one set-up at a time.")
    setup = next(iter(setups.choose(names).values())) if names else setups.Setup("as it comes")
    if setup.missing:
        raise LabError(f"--setup {names[0]} cannot run: {setup.missing}.")
    arguments = [*setup.flags, *flags.given(wanted, but=("setup", "rounds"))]
    if any(argument.startswith(("--num_intra", "--num_inter")) for argument in arguments):
        raise LabError(
            "the command sets the threads, which are knobs: leave that out. Of set-ups, tune onednn or openmp."
        )
    full = [*setup.prefix, str(setup.python), "-m", "labkit.bench", *arguments]
    here = space.look(openmp=setup.python == setups.OPENMP or asked.openmp, bench=True)
    return Command(full, {}, figure, dict(setup.env), paths.ROOT, **timeout), here


def _name(argv: Sequence[str]) -> str:
    """Return a short name for a command: its script's, or its program's."""
    if not argv:
        return "bench"
    scripts = [Path(part).stem for part in argv if Path(part).suffix in (".py", ".sh")]
    return (scripts or ["bench" if argv[1:2] == ["bench"] else Path(argv[0]).name])[0]


def _study(out: Path, run: Command, asked: Options) -> optuna.Study:
    """Open the folder's study, or begin one.

    Raises
    ------
    LabError
        When it is of something else, or damaged.
    """
    what = {
        "command": run.line({}),
        "knobs": {name: [*knob.values] for name, knob in run.knobs.items()},
        "figure": asked.json_field or asked.pattern or FIGURE,
        "direction": "minimize" if asked.minimize else "maximize",
        "repeats": asked.repeats,
    }
    with files.writing(out, "name another folder with --out"), _stored(out):
        out.mkdir(parents=True, exist_ok=True)
        study = optuna.create_study(
            study_name="tune",
            storage=f"sqlite:///{out.resolve()}/study.db",
            direction=what["direction"],
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


def _budget(trials: int, asked: Options) -> str:
    count = "" if asked.minutes and not asked.trials else f"{trials} trials"
    return " or ".join(filter(None, [count, f"{asked.minutes:g} minutes" if asked.minutes else ""]))


def _span(knob: space.Knob) -> str:
    """Return what a knob may be, and where its value goes."""
    values = [str(value) for value in knob.values if value is not None]
    if len(values) > 12:
        values = [*values[:3], "…", values[-1]]
    return f"{knob.env or knob.flag or knob.prefix}: {', '.join(values)}"


def _search(
    run: Command,
    values: dict[str, tuple],
    default: dict[str, None],
    trials: int,
    study: optuna.Study,
    asked: Options,
    console: Console,
) -> list[Trial]:
    """Search with a progress bar, and a line for each trial."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    best_so_far = TextColumn("{task.fields[best]}", markup=False)
    total = min(trials, size(values))
    with Progress(*columns, TimeElapsedColumn(), best_so_far, console=console) as progress:
        kept = trials_of(study)
        task = progress.add_task("searching", total=total, completed=len(kept), best="")

        def show(so_far: list[Trial]) -> None:
            found = best(so_far, asked.minimize)
            text = f"best {found.value:,.4g}: {report.told(found.settings)}" if found else ""
            progress.update(task, completed=len(so_far), best=text)

        def on_trial(trial: Trial, so_far: list[Trial]) -> None:
            _limit(run, trial, default, asked)
            figure = "failed" if trial.state == "failed" else f"{trial.value:,.4g}"
            state = f"  ({trial.state})" if trial.state == "pruned" else ""
            state += f"  {load.BUSY_MARK}: other work took {trial.others:.0%} of the cores" if trial.busy else ""
            line = f"{len(so_far):4}  {figure:>10}  {report.told(trial.settings)}{state}"
            why = "".join(f"\n{'':6}{part}" for part in trial.why.splitlines())
            if len(so_far) == 1:
                once = trial.seconds / len(trial.values)
                minutes = total * asked.repeats * once / 60
                why += f"\n{'':6}a run takes {once:.1f} s; all trials: up to {minutes:.1f} minutes"
            progress.console.print(line + why, highlight=False, markup=False, soft_wrap=True)
            show(so_far)

        for trial in kept:
            _limit(run, trial, default, asked)
        show(kept)
        try:
            return search(
                values,
                run,
                trials,
                seed=asked.seed,
                sampler=asked.sampler,
                minimize=asked.minimize,
                default=default,
                repeats=asked.repeats,
                minutes=asked.minutes or math.inf,
                on_trial=on_trial,
                study=study,
            )
        except LabError as error:
            raise LabError(f"the command fails as it stands, before any knob is turned: {error}") from error


def _limit(run: Command, trial: Trial, default: dict[str, None], asked: Options) -> None:
    """Once it is known how long the default settings take, wait no longer than that many times for others."""
    if trial.settings == default and not asked.timeout:
        run.timeout = max(LEAST, SLOWER * trial.seconds / len(trial.values))


def _write(out: Path, run: Command, trials: list[Trial], asked: Options, verdict: str, say: Callable) -> None:
    """Write what came of the search, and tell it."""
    found, default = best(trials, asked.minimize), trials[0]
    failed = sum(trial.state == "failed" for trial in trials)
    say(f"Best of {len(trials)} trials ({failed} failed): {found.value:,.4g}; default: {default.value:,.4g}")
    say(f"  {run.line(found.settings)}")
    if busy := sum(trial.busy for trial in trials):
        say(
            f"⚠ Other work had the cores during {busy} of them, whose figures are doubtful (others in trials.csv). "
            "Search again when the machine is quiet, with another --out."
        )
    files.write(out / "best.env", report.env_file(run, found.settings, verdict))
    report.write_trials(trials, out / "trials.csv")
    say(f"{out}/best.env, {out}/trials.csv")
    unit = asked.json_field or ("the figure" if asked.pattern else "images/s")
    pictures = {"search.png": report.draw_search(trials, unit, asked.minimize)}
    if shares := report.importance(space.values(run.knobs), trials, asked.seed):
        pictures["importance.png"] = report.draw_importance(shares)
    for name, (figure, alt) in pictures.items():
        report.save(figure, out / name)
        say(f"{out / name}: {alt}")
