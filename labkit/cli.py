"""The commands of `./lab`, one function each.

Modules that take long to import are imported by the command that needs them, so that `./lab` answers at once.
"""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from labkit.system import files, paths
from labkit.system.errors import LabError

if TYPE_CHECKING:
    from labkit.room.agenda import Day
    from labkit.room.routes import Route

app = typer.Typer(
    help="Deep learning at scale on CPUs: a hands-on workshop. Start with: ./lab start",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Fetch and check the data that the labs read.", no_args_is_help=True)
app.add_typer(data, name="data")
cluster = typer.Typer(help="A small Slurm on this machine, to submit jobs to.", no_args_is_help=True)
app.add_typer(cluster, name="cluster")

room = typer.Typer(
    help="The board of a room, for instructors: who is how far, and who asks for help.", no_args_is_help=True
)
app.add_typer(room, name="room")

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
StudentFolder = Annotated[
    Path,
    typer.Option("--folder", envvar="LAB_FOLDER", help="your own folder", show_default="my-labs", resolve_path=True),
]


def main() -> None:
    """Run a command; print an error that the user can mend in one line, with exit code 2."""
    try:
        try:
            app(prog_name="lab")
        finally:
            _flush()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    except OSError as error:  # a full disk, a quota, a read-only place, wherever it was met
        if error.errno not in files.REMEDIES or (isinstance(error, PermissionError) and not error.filename):
            raise
        what = (
            paths.shown(Path(error.filename))
            if isinstance(error.filename, str | Path)
            else "the command could not go on"
        )
        print(f"lab: {files.describe_error(error, what)}", file=sys.stderr)
        raise SystemExit(2) from error


def _flush() -> None:
    """Flush standard output, and raise the error of a full disk there; ignore a reader that has left."""
    try:
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = None  # or Python would try again as it ends
        if error.errno in files.REMEDIES:
            raise


@app.command(epilog="Example: `./lab setup`")
def setup() -> None:
    """Make the environments, or repair them. Every command does it when needed."""
    print("The environments are ready. Next: ./lab start")  # ./lab has made it, or this could not run


@app.command(epilog="Example: `./lab start 07 --no-browser --port 8899`")
def start(
    lab: Annotated[str, typer.Argument(help="the lab to open, such as 07")] = "00",
    folder: StudentFolder = paths.STUDENT,
    browser: Annotated[bool, typer.Option(help="open a browser window")] = True,
    port: Annotated[int, typer.Option(help="the first port to try", min=1, max=65535)] = 8888,
) -> None:
    """Open the labs in JupyterLab, on this machine only and with a token.

    You work in copies in your own folder, which git ignores: an update of the kit never meets your work.
    """
    from jupyterlab.labapp import LabApp

    from labkit.authoring import copies
    from labkit.exercises import sources
    from labkit.system import kernels

    notebook = copies.copy_path(sources.find(lab), folder)
    _report_copies(folder)
    own = str(paths.ENV / "jupyter")
    os.environ["LAB_FOLDER"] = str(folder)  # for lab reset and lab report in JupyterLab's terminals
    os.environ["JUPYTER_CONFIG_PATH"] = _join_paths(own, os.environ.get("JUPYTER_CONFIG_PATH"))
    os.environ["JUPYTER_PATH"] = _join_paths(os.environ.get("JUPYTER_PATH"), own)  # a user's kernels go on coming first
    options = [
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{notebook.name}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--KernelManager.transport={kernels.TRANSPORT}",
        *([] if browser else ["--no-browser"]),
        *(["--allow-root"] if os.geteuid() == 0 else []),  # containers; Jupyter refuses to start otherwise
    ]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # a terminal that is closed ends JupyterLab in good order
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with kernels.private_folder() as runtime:
        os.environ["JUPYTER_RUNTIME_DIR"] = str(runtime)  # for the kernels' sockets, and a file that has the token
        LabApp.launch_instance(options)


def _report_copies(folder: Path) -> None:
    """Bring the student's copies up to date, and print what became of them."""
    from labkit.authoring import copies

    update = copies.update(folder)
    print(f"Your labs are in {paths.shown(folder)}")
    if update.refreshed:
        print(f"Refreshed, since the kit has a new version and you had not edited yours: {', '.join(update.refreshed)}")
    for lab in update.outdated:
        print(f"Lab {lab} has a new version, and yours is kept. To get the new one beside yours: ./lab reset {lab}")
    if left := copies.left_in_checkout():
        print(f"Your earlier work is untouched: {', '.join(map(paths.shown, left))}")
        print("Move what you need into your folder; then git checkout notebooks, and updates can be pulled.")


def _join_paths(*search_paths: str | None) -> str:
    return os.pathsep.join(filter(None, search_paths))


@app.command("test", context_settings=PASS_ON, epilog="Example: `./lab test --fast` or `./lab test -k launch`")
def run_tests(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="style, types, and what needs no TensorFlow: about a minute")
    ] = False,
    lab: Annotated[str | None, typer.Option(help="all that this lab is held to, such as 07")] = None,
) -> None:
    """Run every test: code, exercises, notebooks. About 15 minutes on two cores. Other arguments go to pytest."""
    from labkit.authoring import testing

    os.chdir(paths.ROOT)
    os.environ["LAB_QUICK"] = "1"
    chosen = [*testing.selection(fast, lab), *context.args]
    runs = [chosen] if chosen else testing.whole_suite()
    statuses = [subprocess.run([sys.executable, "-m", "pytest", *arguments]).returncode for arguments in runs]
    raise SystemExit(max(statuses, key=abs))


@app.command(epilog="Example: `./lab doctor --json > machine.json`")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print all results as JSON, for programs")] = False,
) -> None:
    """Check whether this machine can run each lab, and say what to do if not. Exit code 1 when one can't run."""
    from labkit.doctor import checks, view

    report = checks.examine()
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        view.render(report, Console())
    raise SystemExit(0 if report.ok else 1)


@app.command(
    context_settings=PASS_ON | {"help_option_names": []},
    epilog="Example: `./lab bench --model=resnet50 --config eigen,onednn,openmp-kmp`",
)
def bench(context: typer.Context) -> None:
    """Measure images/s of ResNet-50 and others, in one configuration or several.

    `./lab bench --help` lists the flags.
    """
    from labkit.bench import flags

    config = flags.parse(context.args)
    if not config.configurations:
        from labkit.bench.__main__ import measure

        measure(config)
        return
    from labkit.bench import configurations

    steps = math.ceil(config.num_batches / config.rounds)
    shared = flags.as_flags(config, without=("num_batches", "json"))
    comparison = configurations.compare(config.configurations, *shared, f"--num_batches={steps}", rounds=config.rounds)
    if config.json:
        files.write(config.json, json.dumps(comparison.as_dict(), indent=1))
    Console().print("", configurations.table(comparison), sep="\n")
    raise SystemExit(1 if comparison.failed else 0)


@app.command(epilog="Example: `./lab roofline --model resnet50 --batch_size 16`")
def roofline(
    again: Annotated[
        bool, typer.Option("--again", help="measure again; by default each machine is measured once")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the results as JSON, for programs")] = False,
    model: Annotated[
        str | None, typer.Option(help="also measure a step of this network, one of lab bench's, beside its limit")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="images in that step", min=1)] = 16,
    use_fp16: Annotated[bool, typer.Option("--use_fp16", help="activations in bfloat16")] = False,
    forward_only: Annotated[bool, typer.Option("--forward_only", help="classify instead of training")] = False,
) -> None:
    """Measure the limits of this machine: matrix products in 32, 16 and 8 bits, and memory bandwidth.

    With --model, also a network's limit, the sum over its operations of what takes longer, computing or memory, and
    which of them lose the rest.
    """
    from labkit.roofline import measure

    if model is None:
        limits = measure.limits(again, insist=True)
        print(json.dumps(limits.as_dict(), indent=2)) if as_json else measure.render(limits, Console())
        return
    from labkit.bench import flags

    shape = [f"--batch_size={batch_size}", *["--use_fp16"] * use_fp16, *["--forward_only"] * forward_only]
    config = flags.parse([f"--model={model}", *shape])
    flags.set_variables(config)
    from labkit.roofline import network

    step = network.measure_step(config, measure.limits(again, insist=True))
    print(json.dumps(step.as_dict(), indent=2)) if as_json else network.render(step, Console())


@app.command(epilog="Example: `./lab tune --minutes 20 --metric 'speed: (.*)' -- python train.py`")
def tune(
    argv: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="the command to tune", show_default="lab bench")
    ] = None,
    knobs: Annotated[
        Path | None, typer.Option(help="the TOML file of what can be set", show_default="labkit/tune/knobs.toml")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="regular expression that finds the metric, last match", show_default="total images/sec: (…)"),
    ] = None,
    json_field: Annotated[
        str | None, typer.Option(help="or: the field of the JSON that it prints, such as run.speed")
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="a small metric is good, as with times")] = False,
    openmp: Annotated[
        bool, typer.Option("--openmp", help="the command runs an OpenMP build, on which OMP and KMP knobs act")
    ] = False,
    trials: Annotated[int | None, typer.Option(help="points to try at most", show_default="40")] = None,
    minutes: Annotated[float | None, typer.Option(help="minutes after which no trial starts")] = None,
    repeats: Annotated[int, typer.Option(help="runs of each point; their median counts", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="rounds of the confirmation, best against default", min=2)] = 5,
    timeout: Annotated[
        float | None, typer.Option(help="seconds for one run", show_default="10 times the default's", min=0.1)
    ] = None,
    sampler: Annotated[
        Literal["gp", "tpe", "random"],
        typer.Option(help="how the search chooses: gp and tpe learn from their trials, random does not"),
    ] = "gp",
    seed: Annotated[int, typer.Option(help="seed of the search", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="the folder to write to", show_default="work/tune-NAME")] = None,
) -> None:
    """Find the settings with which a command is fastest: threads, memory, whatever a file of knobs names.

    What stands before `--` is for lab tune; what stands after it is the command. The search starts with the default
    settings and goes on with those that a model of the trials so far proposes. At the end, the best and the default are
    measured again, in turns. Ctrl-C keeps the trials: the same command goes on from there.
    """
    from labkit.tune import run

    config = run.TuneConfig(
        knobs=knobs,
        out=out,
        trials=trials,
        minutes=minutes,
        repeats=repeats,
        rounds=rounds,
        timeout=timeout,
        metric=metric,
        json_field=json_field,
        minimize=minimize,
        openmp=openmp,
        sampler=sampler,
        seed=seed,
    )
    try:
        run.tune(argv or [], config, Console())
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@app.command(epilog='Example: `./lab scale --rates "100 Mbit/s,1 Gbit/s" -- mpirun -n {nodes} python train.py`')
def scale(
    argv: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="the command to measure")] = None,
    nodes: Annotated[str, typer.Option(help="numbers of nodes; 1 is always measured, as the reference")] = "1,2,4",
    rates: Annotated[str, typer.Option(help="what each wire carries")] = "100 Mbit/s,1 Gbit/s",
    rounds: Annotated[int, typer.Option(help="runs of each number of nodes at each rate", min=1)] = 3,
    metric: Annotated[
        str | None,
        typer.Option(help="regular expression that finds the metric, last match", show_default="total images/sec: (…)"),
    ] = None,
    json_field: Annotated[
        str | None, typer.Option(help="or: the field of the JSON that it prints, such as run.speed")
    ] = None,
    minimize: Annotated[
        bool, typer.Option("--minimize", help="the metric is a time, with as much work for each node (weak scaling)")
    ] = False,
    strong: Annotated[
        bool, typer.Option("--strong", help="with --minimize: the nodes share one piece of work (strong scaling)")
    ] = False,
    threshold: Annotated[float, typer.Option("--break", help="the efficiency below which it breaks")] = 0.5,
    timeout: Annotated[float, typer.Option(help="seconds for one run")] = 600.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all results to this file")] = None,
    picture: Annotated[Path | None, typer.Option(help="draw the efficiencies in this file, PNG")] = None,
) -> None:
    """Measure how a command scales: its metric on 1, 2, 4 … nodes, over wires of several rates, all on this machine.

    `{nodes}` in the command stands for the number of nodes. An `mpirun` without `-n` starts one rank on each of them.
    The metric is that of the whole run, such as the images per second of all ranks; let one rank print it.

    Each node has an equal share of the cores, the same in all that is measured. Nodes beyond the cores take turns on
    them. So each number of nodes is also measured on wires without a limit: what is lost there is not lost to the
    wires' rate. A rank that fails ends the others at once when Python is started as `python -m mpi4py train.py`;
    otherwise they may wait until --timeout. Exit code 1 when something failed; Ctrl-C keeps the rounds that are whole.
    """
    from labkit.scale import run

    config = run.ScaleConfig(
        nodes=nodes,
        rates=rates,
        rounds=rounds,
        metric=metric,
        json_field=json_field,
        minimize=minimize,
        strong=strong,
        threshold=threshold,
        timeout=timeout,
        json=json_file,
        picture=picture,
    )
    try:
        scaling = run.scale(argv or [], config, Console())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(130 if scaling.interrupted else 1 if scaling.failed else 0)


@app.command(epilog="Example: `./lab lint 07`")
def lint(
    labs: Annotated[list[str] | None, typer.Argument(help="the labs, such as 07; all by default")] = None,
) -> None:
    """Tell what is wrong with the labs' sources, all at once, by file and line. Exit code 1 when something is."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # some checks import TensorFlow, whose notices say nothing of a source
    from labkit.authoring.lint import lint as problems_of
    from labkit.exercises import sources

    chosen = [sources.find(lab) for lab in labs] if labs else sources.labs()
    problems = [problem for source in chosen for problem in problems_of(source)]
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(1)


@app.command(epilog="Example: `./lab new 10 data_pipelines`")
def new(
    number: Annotated[str, typer.Argument(help="two digits, such as 10")],
    topic: Annotated[str, typer.Argument(help="words joined by _, such as data_pipelines")],
) -> None:
    """Make a new lab with one exercise, which passes its tests at once."""
    from labkit.authoring import notebooks, scaffold

    made = scaffold.new_lab(number, topic)
    made += notebooks.build(made[0], run=True)
    for path in made:
        print(paths.shown(path))
    print(
        f"Its minutes go in solutions/minutes.toml, what one does in it in README.md. Next: ./lab test --lab {number}"
    )


@app.command(epilog="Example: `./lab new-exercise 09`")
def new_exercise(lab: Annotated[str, typer.Argument(help="the lab, such as 09")]) -> None:
    """Add the next exercise to a lab: to its source, its checks and its tests."""
    from labkit.authoring import scaffold
    from labkit.exercises import sources

    source = sources.find(lab)
    exercise, changed = scaffold.new_exercise(source)
    print(f"Exercise {exercise} is in {', '.join(paths.shown(path) for path in changed)}.")
    print(f"Next: make it yours, then ./lab build {source.stem[:2]} --execute and ./lab test --lab {source.stem[:2]}")


@app.command(epilog="Example: `./lab build 07 --execute`")
def build(
    labs: Annotated[list[str] | None, typer.Argument(help="the labs, such as 07; all by default")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="run the solution notebook, to store its outputs")] = False,
) -> None:
    """Make the student and solution notebooks from their sources, if `lab lint` finds nothing wrong there."""
    from labkit.authoring import minutes, notebooks
    from labkit.exercises import sources

    lint(labs)
    for source in [sources.find(lab) for lab in labs] if labs else sources.labs():
        for path in notebooks.build(source, run=execute):
            print(f"wrote {paths.shown(path)}")
        if not notebooks.is_executed(source):
            stored = paths.shown(notebooks.solution_path(source))
            print(f"{stored} has no outputs, as its code is new: ./lab build {source.stem[:2]} --execute")
        elif execute:
            for line in minutes.overruns(source, notebooks.stored(source)):
                print(line)
    if readme := minutes.write_agenda():
        print(f"wrote {paths.shown(readme)}")


@app.command(epilog="Example: `./lab reset 07`")
def reset(
    lab: Annotated[str, typer.Argument(help="the lab, such as 07")],
    folder: StudentFolder = paths.STUDENT,
) -> None:
    """Put a fresh copy of a lab in your folder; yours is kept beside it, numbered."""
    from labkit.authoring import copies
    from labkit.exercises import sources

    source = sources.find(lab)
    kept = copies.reset(source, folder)
    print(
        f"{paths.shown(copies.copy_path(source, folder))} is fresh." + (f" Yours: {paths.shown(kept)}" if kept else "")
    )


@app.command(epilog="Example: `./lab catchup 07 --to 4`")
def catchup(
    lab: Annotated[str, typer.Argument(help="the lab, such as 07")],
    to: Annotated[int, typer.Option(help="the exercise to go on with", min=1)],
    folder: StudentFolder = paths.STUDENT,
) -> None:
    """Put a copy of a lab in your folder in which the exercises before one are solved; yours is kept beside it.

    The results down to there are of another machine, and marked so.
    """
    from labkit.authoring import copies
    from labkit.exercises import sources
    from labkit.room import catch_up

    source = sources.find(lab)
    kept = copies.reset(source, folder, catch_up.copy(source, to))
    place = paths.shown(copies.copy_path(source, folder))
    print(
        f"{place} is solved up to exercise {to}, which is yours."
        + (f" Yours before: {paths.shown(kept)}" if kept else "")
    )
    print(f"In JupyterLab: reload the file from disk, then run all above exercise {to}.")


@app.command("class", epilog="Example: `./lab class collected/`")
def show_class(
    folder: Annotated[Path, typer.Argument(help="where the students' results-NN.json and doctor's JSON files are")],
) -> None:
    """Show how far a class is, and which machines can run what, from collected files: no server, no network."""
    from labkit.room import collected

    for table in collected.tables(folder):
        Console().print(table)


@app.command(epilog="Example: `./lab report --out my-report.html`")
def report(
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("lab-report.html"),
    folder: StudentFolder = paths.STUDENT,
    results: Annotated[
        Path | None, typer.Option("--from", help="where the labs left their results", show_default="my-labs/work")
    ] = None,
) -> None:
    """Make one page to take home: the machine, what you measured, the pictures, the exercises passed."""
    from labkit.report import page

    html = page.render(results or folder / "work")
    files.write(out, html, "name another file with --out")
    print(f"wrote {paths.shown(out.resolve())}: open it in a browser; it needs no network")


@app.command(
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    epilog='Example: `./lab network --nodes 4 --rate "1 Gbit/s" -- mpirun -n 4 python ring.py`',
)
def network(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(help="how many nodes, each with an equal share of the cores")] = 2,
    rate: Annotated[str, typer.Option(help="what each wire carries, such as '100 Mbit/s'")] = "1 Gbit/s",
    delay: Annotated[str | None, typer.Option(help="what each wire adds to the way, such as '1 ms'")] = None,
) -> None:
    """Run an MPI command on nodes with wires between them, all on this machine; `shell` opens a shell there.

    `mpirun` puts ranks on the nodes, one after the other; `-ppn 2` puts two on each.
    """
    from labkit.network import Network, command

    if not context.args:
        raise LabError("give a command after --, such as mpirun -n 2 python ring.py, or shell for a shell.")
    argv = [os.environ.get("SHELL", "bash")] if context.args == ["shell"] else context.args
    with Network(nodes, rate, delay) as wires:
        print("\n".join(filter(None, [str(wires), wires.warning])), flush=True)
        status = command.run(wires, argv)
    raise SystemExit(status)


@app.command(epilog="Example: `./lab agenda --route day --start 9:00` or `./lab agenda --labs 00,02,07 --hours 3.5`")
def agenda(
    route: Annotated[str | None, typer.Option(help="the route: half, day or two-days")] = None,
    labs: Annotated[str | None, typer.Option(help="or the labs, by their core sections, such as 00,02,07")] = None,
    start: Annotated[str, typer.Option(help="when a day begins")] = "9:00",
    hours: Annotated[float, typer.Option(help="with --labs: how long the day is, with its breaks", min=0.5)] = 7.0,
    day: Annotated[str | None, typer.Option("--date", help="the first day", show_default="today")] = None,
    out: Annotated[Path | None, typer.Option(help="write it to a file, .md or .ics, instead")] = None,
) -> None:
    """Make a timetable of a route: clock times, with the waiting that the labs took on this machine.

    `./lab rehearse` measures that waiting. Where a day does not fit, it says what to leave out.
    """
    from labkit.room import agenda, agenda_view, rehearsal

    chosen, days = _timetable(route, labs, start, hours, day)
    advice = [*agenda.advice(days), agenda.basis(chosen, rehearsal.waits())]
    if out is None:
        for one in days:
            Console().print(agenda_view.table(one, agenda_view.day_title(one)))
        print("\n".join(advice))
        return
    writers = {".md": agenda_view.markdown, ".ics": agenda_view.calendar}
    if out.suffix not in writers:
        raise LabError(f"an agenda is written as .md or .ics, not as {out.name}.")
    files.write(out, writers[out.suffix](chosen, days, advice), "name another file with --out")
    print(f"wrote {paths.shown(out.resolve())}")


def _timetable(
    route: str | None, labs: str | None, start: str, hours: float, day: str | None
) -> "tuple[Route, list[Day]]":
    """Return a route, by name or of labs, and its days with clock times."""
    from labkit.room import agenda, rehearsal, routes

    if (route is None) == (labs is None):
        raise LabError(f"name a route, --route {'|'.join(routes.names())}, or the labs, such as --labs 00,02,07.")
    chosen = routes.find(route) if route else routes.of_labs((labs or "").split(","), hours)
    return chosen, agenda.schedule(chosen, agenda.clock(start), agenda.calendar_day(day), rehearsal.waits())


@app.command(epilog="Example: `./lab guide --route day --start 9:00 --out guide.html`")
def guide(
    route: Annotated[str | None, typer.Option(help="the route: half, day or two-days")] = None,
    labs: Annotated[str | None, typer.Option(help="or the labs, such as 00,02,07")] = None,
    start: Annotated[str, typer.Option(help="when a day begins")] = "9:00",
    hours: Annotated[float, typer.Option(help="with --labs: how long the day is", min=0.5)] = 7.0,
    day: Annotated[str | None, typer.Option("--date", help="the first day", show_default="today")] = None,
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("guide.html"),
) -> None:
    """Make the instructor's guide: one page with timetable, what to say, answers, mistakes and what they look like."""
    from labkit.room import agenda, guide, rehearsal

    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}  # nothing is computed: no notices
    chosen, days = _timetable(route, labs, start, hours, day)
    advice = [*agenda.advice(days), agenda.basis(chosen, rehearsal.waits())]
    files.write(out, guide.render(chosen, days, advice, rehearsal.FOLDER / "work"), "name another file with --out")
    print(f"wrote {paths.shown(out.resolve())}: it has the answers, and needs no network")


@app.command(epilog="Example: `./lab rehearse --route day`")
def rehearse(
    route: Annotated[str | None, typer.Option(help="the route: half, day or two-days")] = None,
    labs: Annotated[str | None, typer.Option(help="or the labs, such as 00,02,07")] = None,
) -> None:
    """Run the labs of a route in full, and keep what their waiting takes on this machine, for `./lab agenda`.

    It takes as long as a student waits: up to six minutes a lab. Do it on the machine of the day, and leave it alone.
    """
    from labkit.room import rehearsal, routes

    if (route is None) == (labs is None):
        raise LabError(f"name a route, --route {'|'.join(routes.names())}, or the labs, such as --labs 00,02,07.")
    chosen = routes.find(route) if route else routes.of_labs((labs or "").split(","), 7)
    numbers = [part.lab for day in chosen.days for part in day if part.lab]
    rehearsal.run(numbers, lambda title, what: print(f"{title}: {what or 'running …'}", flush=True))
    print(f"Next: ./lab agenda {f'--route {route}' if route else f'--labs {labs}'}")


@data.command(epilog="Example: `./lab data fetch`")
def fetch() -> None:
    """Fetch MNIST, so that the labs use it instead of the built-in digits. Do it before the day."""
    from labkit.data import download

    for done in download.fetch():
        print(done)


@data.command(epilog="Example: `./lab data status`")
def status() -> None:
    """List the data files, and whether they are intact. Exit code 1 when one is damaged."""
    from labkit.data import mnist

    data_files = mnist.status()
    for file in data_files:
        print(f"{file.name:32} {file.state:10} {file.detail}{f': {file.fix}' if file.fix else ''}")
    raise SystemExit(1 if any(file.state == "damaged" for file in data_files) else 0)


@data.command(epilog="Example: `./lab data tfrecords work/synthetic --train 5000`")
def tfrecords(
    folder: Annotated[Path | None, typer.Argument(help="the folder to make", show_default="data/synthetic")] = None,
    train: Annotated[int, typer.Option(help="how many images to train on")] = 2000,
    validation: Annotated[int, typer.Option(help="how many to evaluate on")] = 500,
    size: Annotated[int, typer.Option(help="their height and width, in pixels")] = 64,
    seed: Annotated[int, typer.Option(help="of the images; the same one gives the same files")] = 0,
) -> None:
    """Write a small synthetic set of ten classes, in the layout of ImageNet's TFRecords, for lab 08 and `lab bench`."""
    from labkit.data import synthetic

    # TensorFlow computes nothing here, so its notices, of oneDNN too, are of no use. Errors are still printed.
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    folder = folder or paths.DATA / "synthetic"
    new = synthetic.write(folder, train, validation, size, seed=seed)
    place = paths.shown(folder)
    print(f"{place}: {train:,} training and {validation:,} validation images{'' if new else ' are there already'}")
    print(f"Next: ./lab start 08, or ./lab bench --model=resnet50 --data_dir={place}")


@cluster.command("up", epilog='Example: `./lab cluster up --nodes 2 --network "1 Gbit/s"`')
def cluster_up(
    nodes: Annotated[int, typer.Option(help="how many nodes, each with an equal share of the cores")] = 2,
    network: Annotated[
        str | None, typer.Option(help="join the nodes by wires of this rate, such as '1 Gbit/s'", show_default="none")
    ] = None,
) -> None:
    """Start a Slurm whose nodes are shares of this machine, for yourself alone. It stays until `./lab cluster down`."""
    from labkit.slurm import cluster, supervisor
    from labkit.system.machine import this_machine

    slurm = cluster.start_slurm(nodes, network=network)
    cores, address = this_machine().usable_cores, supervisor.address()
    print(f"Slurm is up, for you alone. Nodes: {slurm.nodes}, cores of each: {slurm.cpus_per_node}.")
    if slurm.network:
        print("\n".join(filter(None, [slurm.network, slurm.warning])))
        print("Slurm's commands work in any terminal. Start MPI programs within a job of sbatch's, by srun or mpirun.")
    if nodes > cores:
        print(f"The nodes take turns: this machine has fewer cores, {cores}.")
    if not (address.startswith("127.") or slurm.network):
        print(f"It listens on {address}, this machine's own address, and answers only those who have its key: you.")
    print("Next, in each terminal that is to use it:")
    for name, value in slurm.variables.items():
        print(f"  export {name}={value}")
    print("  sinfo\nWhen done: ./lab cluster down")


@cluster.command("status", epilog="Example: `./lab cluster status`")
def cluster_status() -> None:
    """Show the nodes and jobs of that Slurm, and what has died. Exit code 1 when it is not up, or not whole."""
    from labkit.slurm import cluster

    status = cluster.Cluster().status()
    if status is None:
        print("No Slurm of these labs is up. Start one: ./lab cluster up")
    elif status.broken:
        print(
            "Slurm is not whole:", *status.broken, "Start it anew: ./lab cluster down, then ./lab cluster up", sep="\n"
        )
    else:
        use = f"export SLURM_CONF={status.folder}/slurm.conf"
        print("\n\n".join(filter(None, [status.nodes, status.jobs, status.network, use])))
    raise SystemExit(0 if status and not status.broken else 1)


@cluster.command("down", epilog="Example: `./lab cluster down`")
def cluster_down() -> None:
    """Stop that Slurm and its jobs, which get a few seconds to save."""
    from labkit.slurm import cluster

    print("Slurm and its jobs are ended." if cluster.stop_slurm() else "No Slurm of these labs was up.")


@room.command("open", epilog="Example: `./lab room open --route day --start 9:00`")
def room_open(
    address: Annotated[
        str | None, typer.Option(help="the address to listen on", show_default="this machine's own")
    ] = None,
    port: Annotated[int, typer.Option(help="the port to listen on", min=1, max=65535)] = 8500,
    route: Annotated[str | None, typer.Option(help="the route, to show who is behind: half, day or two-days")] = None,
    start: Annotated[str, typer.Option(help="when the day begins")] = "9:00",
    day: Annotated[str | None, typer.Option("--date", help="the first day", show_default="today")] = None,
    cert: Annotated[Path | None, typer.Option(help="a certificate, for https")] = None,
    key: Annotated[Path | None, typer.Option(help="and its key")] = None,
) -> None:
    """Open the board and serve it until Ctrl-C. Opened again, it goes on with all it had."""
    from labkit.room import agenda, host, rehearsal, routes

    if (cert is None) != (key is None):
        raise LabError("https takes both --cert and --key.")
    days = []
    if route:
        days = agenda.schedule(routes.find(route), agenda.clock(start), agenda.calendar_day(day), rehearsal.waits())

    def say(base: str, code: str, instructor: str) -> None:
        print(f"The room is open. Code: {code}")
        print(f"Students type:           ./lab join {base} {code}")
        print(f"For the projector:       {base}/")
        print(f"For you, and nobody else: {instructor}")
        print("Ctrl-C ends the board and keeps the room; ./lab room close ends the room.", flush=True)

    host.open_room(address or host.own_address(), port, days, (cert, key) if cert and key else None, say)


@room.command("close", epilog="Example: `./lab room close --out room.json`")
def room_close(out: Annotated[Path, typer.Option(help="the file for what may be kept")] = Path("room.json")) -> None:
    """Keep counts and figures without seats in a file, and delete all else that the room had."""
    from labkit.room import host

    host.close_room(out)
    print(f"wrote {paths.shown(out.resolve())}; all else of the room is deleted")


@app.command(epilog="Example: `./lab join http://192.168.1.5:8500 K7Q2M9 --seat B4`")
def join(
    address: Annotated[str, typer.Argument(help="the board's address")],
    code: Annotated[str, typer.Argument(help="the room's code")],
    seat: Annotated[str, typer.Option(help="what the instructor calls you by", show_default="a number")] = "",
    figures: Annotated[bool, typer.Option(help="send the closing figures of your labs too, without your seat")] = False,
    check: Annotated[bool, typer.Option("--check", help="send the doctor's verdict on this machine too")] = False,
    ca: Annotated[Path | None, typer.Option(help="the certificate of a board that is reached by https")] = None,
    folder: StudentFolder = paths.STUDENT,
) -> None:
    """Join a room: how your exercises stand is sent to its board. It prints all that is ever sent."""
    from labkit.room import seat as own

    own.join(address, code, seat, figures, folder, str(ca.resolve()) if ca else "", check)


@app.command(epilog="Example: `./lab leave`")
def leave(folder: StudentFolder = paths.STUDENT) -> None:
    """Leave the room; its board deletes all it has of your seat."""
    from labkit.room import seat

    seat.leave(folder)


@app.command(epilog="Example: `./lab hand`")
def hand(folder: StudentFolder = paths.STUDENT) -> None:
    """Raise your hand, or take it down again; the instructor sees at which exercise you are."""
    from labkit.room import seat

    seat.hand(folder=folder)
