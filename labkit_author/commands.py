"""Commands for authors and contributors."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli.options import SomeLabs
from labkit.system import paths

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="Working on the kit")


@command(
    "test",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: `./lab test --fast` or `./lab test -k launch`",
)
def run_tests(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="Run only the tests without TensorFlow: a minute on an idle machine.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Add slow tests that rarely fail: half an hour on an idle machine.")
    ] = False,
    lab: Annotated[str | None, typer.Option(help="Run all tests of this lab, such as 07.")] = None,
    exercise: Annotated[int | None, typer.Option(min=1, help="Run only this exercise of the lab, in seconds.")] = None,
) -> None:
    """Test the kit on this machine: code, exercises, every lab. About 9 minutes on two cores.

    Other arguments go to pytest. Notebooks that failed are in `.lab/executed/`. The exit code is pytest's: 1 if a test
    failed.
    """
    from labkit_author import testing

    os.chdir(paths.ROOT)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise, each process compiles all tests again
    arguments = testing.arguments(fast, everything, lab, exercise, context.args)
    raise SystemExit(subprocess.run([*testing.open_home(), sys.executable, "-m", "pytest", *arguments]).returncode)


@command(epilog="Example: `./lab style`")
def style() -> None:
    """Check formatting, types, imports, declared packages, shell scripts and encodings. Exit code 1 if one fails."""
    from labkit_author import style

    _refuse(style.problems())


@command("lint", epilog="Example: `./lab lint 07`")
def lint_labs(
    labs: SomeLabs = None,
) -> None:
    """List all problems in the labs' sources, by file and line. Exit code 1 if there are any."""
    from labkit_author import lint

    _refuse([problem for source in _chosen(labs) for problem in lint.lint(source)])


def _chosen(labs: list[str] | None) -> list[Path]:
    """Return the sources of these labs, or of all labs."""
    from labkit_author import sources

    return [sources.find(lab) for lab in labs] if labs else sources.labs()


def _refuse(problems: list[str]) -> None:
    """Print the problems and exit with code 1 if there are any."""
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(1)


@command("build", epilog="Example: `./lab build 07`")
def build_notebooks(
    labs: SomeLabs = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Run the solution notebooks and store their outputs: all labs or none.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Run the solution notebooks and store what they record in data/recorded.")
    ] = False,
) -> None:
    """Build the student and solution notebooks from their sources, unless `lab lint` finds problems.

    It writes `notebooks/NN_topic.ipynb`, `solutions/NN_topic.ipynb`, the catalogue for checks, guide and board in
    `solutions/labs.json`, and the counts and minutes in the README. Only files that changed are written. Stored outputs
    stay until a code cell is changed or removed; new cells have none. Exit code 1 if lint finds a problem.

    With `--execute`, all labs run in one session of about an hour, and are stored together or not at all, with the
    README's picture. If you name labs, they are stored as drafts. Nothing is stored if an output is marked busy or not
    valid, contains a doctor warning or a folder of this machine, or lacks steps of earlier labs. The executed notebooks
    are then in `.lab/executed/`, and the next `--execute` resumes with the lab that was refused.
    """
    from labkit_author import build, catalogue, lint, minutes, picture, sources, stored

    chosen = _chosen(labs)
    _refuse([problem for source in chosen for problem in lint.lint(source)])
    written = [path for source in chosen for path in build.build(source)]
    written += [page for page in (catalogue.write(), minutes.write_agenda()) if page]
    if execute:
        written += stored.store(chosen, lambda lab: print(f"Executing {lab} …", flush=True))
        if len(chosen) < len(sources.labs()):
            print("Stored as drafts. To store all labs from one session: ./lab build --execute")
        elif drawn := picture.write():
            written.append(drawn)
    if record:
        written += [path for source in chosen for path in stored.record(source)]
    for path in dict.fromkeys(written):
        print(f"wrote {paths.shown(path)}")
    for source in chosen:
        if not build.is_executed(source):
            notebook = paths.shown(build.solution_path(source))
            status = "new cells have no outputs yet" if build.has_run(source) else "no outputs, as its code is new"
            print(f"{notebook}: {status}. A maintainer runs ./lab build {source.stem[:2]} --execute")
        elif execute:
            for line in minutes.overruns(source, build.stored(source)):
                print(line)


@command(epilog="Example: `./lab site --out public`")
def site(
    out: Annotated[
        Path, typer.Option(help="Output folder; it replaces an earlier site.", show_default="site", resolve_path=True)
    ] = paths.ROOT / "site",
) -> None:
    """Build the website: front page, every lab with its stored outputs, glossary, guides, search.

    Its pages need no network and no server: open index.html in a browser. It takes about half a minute. The first time,
    uv downloads Sphinx and its packages (about 30 MB) into its cache, for an environment that ends with the command.
    """
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}  # silence notices: nothing is computed
    from labkit_author import site

    print("Building the site takes about half a minute; the first time, it downloads Sphinx.", flush=True)
    site.build(out)
    print(f"wrote {paths.shown(out)}: open {paths.shown(out / 'index.html')} in a browser; it needs no network")


@app.command(rich_help_panel="Teaching", epilog="Example: `./lab pack --out /media/stick/labs`")
def pack(
    out: Annotated[Path, typer.Option(help="The output folder, on a USB stick or for the room's web server.")],
    python: Annotated[
        bool, typer.Option(help="Include Python. Otherwise, each laptop needs this kit's version.")
    ] = True,
) -> None:
    """Pack everything laptops need to set up offline: the kit, Python, all packages, compiled Horovod, MNIST.

    The pack is about 0.8 GB. Making it takes a few minutes and 6 GB, as the kit is set up once more. If interrupted,
    run the same command again to resume. Students use the pack with the two commands in its README.txt.
    """
    from labkit_author import pack

    result = pack.make(out, python)
    print(f"{paths.shown(out)}: {result.n_files} files, {result.size / 1e9:.2f} GB. README.txt has the next commands.")


def add(lab_app: typer.Typer) -> None:
    """Add these commands to `./lab`."""
    lab_app.add_typer(app)
