"""Commands for whoever works on the kit."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import PASS_ON, SomeLabs
from labkit.system import paths

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="Working on the kit")


@command("test", context_settings=PASS_ON, epilog="Example: `./lab test --fast` or `./lab test -k launch`")
def run_tests(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="style, types, and what needs no TensorFlow: a minute on an idle machine")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="also what takes long and rarely fails: half an hour on an idle machine")
    ] = False,
    lab: Annotated[str | None, typer.Option(help="all tests of this lab, such as 07")] = None,
    exercise: Annotated[int | None, typer.Option(min=1, help="only this exercise of the lab: in seconds")] = None,
) -> None:
    """Test the kit on this machine: style, code, exercises, every lab. About 20 minutes on two idle cores.

    Other arguments go to pytest. `.lab/executed/` has the notebooks that failed. The exit code is pytest's: 1 when a
    test failed.
    """
    from labkit_author import testing

    os.chdir(paths.ROOT)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process compiles all tests again, in seconds
    arguments = testing.arguments(fast, everything, lab, exercise, context.args)
    raise SystemExit(subprocess.run([*testing.as_others_can(), sys.executable, "-m", "pytest", *arguments]).returncode)


@command("lint", epilog="Example: `./lab lint 07`")
def lint_labs(
    labs: SomeLabs = None,
) -> None:
    """Tell what is wrong with the labs' sources, all at once, by file and line. Exit code 1 when something is."""
    from labkit_author import lint

    _refuse([problem for source in _chosen(labs) for problem in lint.lint(source) + lint.leftovers(source)])


def _chosen(labs: list[str] | None) -> list[Path]:
    """Return the sources of these labs, or of all."""
    from labkit_author import sources

    return [sources.find(lab) for lab in labs] if labs else sources.labs()


def _refuse(problems: list[str]) -> None:
    """Print problems, if there are any, and end with exit code 1."""
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(1)


@command(epilog="Example: `./lab new-exercise 09`")
def new_exercise(
    lab: Annotated[str, typer.Argument(help="the lab, such as 09")],
    script: Annotated[
        bool, typer.Option("--script", help="a script on ranks, with a probe, instead of a function")
    ] = False,
) -> None:
    """Add an exercise to a lab, after its last one: to its source, its checks and its planted mistakes.

    It works at once and passes its tests; replace it part by part. The lab's stored outputs stay.
    """
    from labkit_author import scaffold, sources

    source = sources.find(lab)
    exercise, written = scaffold.new_exercise(source, script)
    number = source.stem[:2]
    print(f"Exercise {exercise} is in {', '.join(map(paths.shown, written))}.")
    print(f"Next: make it yours, part by part; ./lab lint {number} lists what is left of the skeleton.")
    print(f"Then ./lab build {number} and ./lab test --lab {number} --exercise {exercise}.")


@command("build", epilog="Example: `./lab build 07`")
def build_notebooks(
    labs: SomeLabs = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="run the solution notebooks, to store their outputs: all labs or none")
    ] = False,
) -> None:
    """Make the student and solution notebooks from their sources, if `lab lint` finds nothing wrong there.

    It writes `notebooks/NN_topic.ipynb` and `solutions/NN_topic.ipynb`; `solutions/labs.json`, from which checks, guide
    and board read the labs; the minutes in the README's agenda, and its picture; `docs/other-machines.md` and
    `docs/house.md`. Only files that changed are written. Stored outputs stay as long as no code cell was changed or
    removed; new cells have none. Exit code 1 when lint finds something.

    With `--execute`, all labs run in one session, about an hour, and are stored together or not at all. Labs that are
    named are stored as drafts. Nothing is stored if an output is marked busy or not valid, has a warning of the doctor
    or a folder of this machine, or lacks steps of earlier labs. `.lab/executed/` then has what ran, and the next
    `--execute` goes on with the lab that was refused.
    """
    from labkit_author import build, catalogue, house, lint, machines, minutes, picture, sources, stored

    chosen = _chosen(labs)
    _refuse([problem for source in chosen for problem in lint.lint(source)])
    written = [path for source in chosen for path in build.build(source)]
    written += [page for page in (catalogue.write(), minutes.write_agenda(), machines.write(), house.write()) if page]
    if execute:
        written += stored.store(chosen, lambda lab: print(f"Executing {lab} …", flush=True))
        if len(chosen) < len(sources.labs()):
            print("Stored as drafts: ./lab build --execute, without a lab, stores all from one session.")
    written += filter(None, [picture.write()])
    for path in dict.fromkeys(written):
        print(f"wrote {paths.shown(path)}")
    for source in chosen:
        if not build.is_executed(source):
            notebook = paths.shown(build.solution_path(source))
            which = "new cells have no outputs yet" if build.has_run(source) else "no outputs, as its code is new"
            print(f"{notebook}: {which}. A maintainer runs ./lab build {source.stem[:2]} --execute")
        elif execute:
            for line in minutes.overruns(source, build.stored(source)):
                print(line)


@command(epilog="Example: `./lab site --out public`")
def site(
    out: Annotated[
        Path, typer.Option(help="the folder to make, in place of a site there", show_default="site", resolve_path=True)
    ] = paths.ROOT / "site",
) -> None:
    """Make the site to look at first: front page, every lab with its stored outputs, glossary, guides, search.

    Its pages need no network and no server: open index.html in a browser. It takes about half a minute. The first time,
    Sphinx and its packages are fetched (about 30 MB) into uv's cache, for an environment that ends with the command.
    """
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # nothing is computed: no notices
    from labkit_author import site

    print("Making the site, about half a minute; the first time, Sphinx is fetched for it.", flush=True)
    site.build(out)
    print(f"wrote {paths.shown(out)}: open {paths.shown(out / 'index.html')} in a browser; it needs no network")


@app.command(rich_help_panel="Teaching", epilog="Example: `./lab pack --out /media/stick/labs`")
def pack(
    out: Annotated[Path, typer.Option(help="the folder to make, on a stick or for the room's web server")],
    python: Annotated[
        bool, typer.Option(help="bring Python too; without, each laptop needs one of this kit's version")
    ] = True,
) -> None:
    """Pack all that laptops need to set up without a network: the kit, Python, all packages, Horovod compiled, MNIST.

    About 1.1 GB, in some minutes: it sets up the kit once more and needs 6 GB for that. If it was interrupted, the same
    command resumes. Students use the pack with the two commands in its README.txt.
    """
    from labkit_author import pack

    result = pack.make(out, python)
    print(f"{paths.shown(out)}: {result.n_files} files, {result.size / 1e9:.2f} GB. README.txt has the next commands.")


def add(app_of_all: typer.Typer) -> None:
    """Add these commands to those of the labs."""
    app_of_all.add_typer(app)
