"""Commands for whoever works on the kit."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.cli import completion
from labkit.cli.options import PASS_ON, SomeLabs
from labkit.system import paths

app = typer.Typer()
command = functools.partial(app.command, rich_help_panel="Working on the kit")


@command("test", context_settings=PASS_ON, epilog="Example: `./lab test --fast` or `./lab test -k launch`")
def run_tests(
    context: typer.Context,
    fast: Annotated[
        bool, typer.Option("--fast", help="style, types, and what needs no TensorFlow: one to two minutes when idle")
    ] = False,
    lab: Annotated[
        str | None, typer.Option(help="all that this lab is held to, such as 07", autocompletion=completion.labs)
    ] = None,
    exercise: Annotated[int | None, typer.Option(min=1, help="only this exercise of the lab: in seconds")] = None,
) -> None:
    """Run every test: style, code, exercises, notebooks. About 25 minutes on two cores. Other arguments go to pytest.

    Where the style is wrong, it ends there. What a failing notebook looked like is in `.lab/executed/`. The exit code
    is pytest's: 1 when a test failed.
    """
    from labkit_author import testing

    os.chdir(paths.ROOT)
    # Else each process rewrites and compiles all tests again, in seconds.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    pytest = [*testing.as_others_can(), sys.executable, "-m", "pytest"]
    for arguments in testing.runs(fast, lab, exercise, context.args):
        if status := subprocess.run([*pytest, *arguments]).returncode:
            raise SystemExit(status)


@command("lint", epilog="Example: `./lab lint 07`")
def lint_labs(
    labs: SomeLabs = None,
) -> None:
    """Tell what is wrong with the labs' sources, all at once, by file and line. Exit code 1 when something is."""
    from labkit_author import lint

    _refuse([problem for source in _chosen(labs) for problem in lint.lint(source) + lint.leftovers(source)])


def _chosen(labs: list[str] | None) -> list[Path]:
    """Return the sources of these labs, or of all."""
    from labkit.exercises import sources

    return [sources.find(lab) for lab in labs] if labs else sources.labs()


def _refuse(problems: list[str]) -> None:
    """Print problems, if there are any, and end with exit code 1."""
    for problem in problems:
        print(problem)
    if problems:
        raise SystemExit(1)


@command(epilog="Example: `./lab mutate 07 --exercise 2`")
def mutate(
    lab: Annotated[str, typer.Argument(help="the lab, such as 07", autocompletion=completion.labs)],
    exercise: Annotated[int | None, typer.Option(min=1, help="only this exercise")] = None,
    every: Annotated[int, typer.Option(min=1, help="try every so-many-th mutant only, as of a script on ranks")] = 1,
) -> None:
    """Put small mistakes into a lab's solutions, one at a time, and list those that the checks do not see.

    A function's check takes a second for each such mutant at most, a script's some seconds. Mutants that are right
    answers too stand in `tests/exercises/equivalent.toml`, with the reason. Exit code 1 when any other passes, when a
    check itself fails on one, and when one that stands there is no mutant any more.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    from labkit.exercises import sources
    from labkit.system.progress import progress
    from labkit_author import mutations

    source = sources.find(lab)
    fine = True
    for number in [exercise] if exercise is not None else sources.exercises(sources.read(source)):
        with progress(f"exercise {number}") as tell:
            tried = mutations.try_exercise(source, number, every, tell)
        print(
            f"exercise {number}: {tried.count} mutants, survivors: {len(tried.survivors)} beyond "
            f"{len(tried.equivalent)} known to be right",
            flush=True,
        )
        listed = paths.shown(mutations.EQUIVALENT)
        groups = {
            "passed": tried.survivors,
            "the check itself failed": tried.failures,
            f"is no mutant any more, but stands in {listed}": tried.stale,
        }
        for what, lines in groups.items():
            for line in lines:
                print(f"   {what}: {line}")
                fine = False
        if tried.survivors:
            key = f"[{source.stem[:2]}.{number}]"
            print(f"   Part each from the solution by a case, or list it in {listed} below {key}, and why it is right.")
    raise SystemExit(not fine)


@command(epilog="Example: `./lab new 10 data_pipelines`")
def new(
    number: Annotated[str, typer.Argument(help="two digits, such as 10")],
    topic: Annotated[str, typer.Argument(help="words joined by _, such as data_pipelines")],
) -> None:
    """Make a new lab with one exercise, which passes its tests at once.

    It prints the files that it wrote: source, checks, tests, both notebooks. It adds the lab's lines to
    `solutions/minutes.toml`, the README's agenda, the doctor's table, the guide's mistakes and `docs/house.md`.
    """
    from labkit_author import build, scaffold

    changed = scaffold.new_lab(number, topic)
    changed += [*build.build(changed[0], run=True), *_write_what_is_of_all_labs()]
    for path in changed:
        print(paths.shown(path))
    print(
        f"What is left of the skeleton: ./lab lint {number}. Its minutes go in solutions/minutes.toml, what one does "
        f"in it in README.md. Next: ./lab test --lab {number}"
    )


@command(epilog="Example: `./lab new-exercise 09 --after 3`")
def new_exercise(
    lab: Annotated[str, typer.Argument(help="the lab, such as 09", autocompletion=completion.labs)],
    after: Annotated[
        int | None, typer.Option(min=1, help="the exercise that it comes after", show_default="the last")
    ] = None,
    script: Annotated[
        bool, typer.Option("--script", help="a script on ranks, with a probe, in place of a function")
    ] = False,
) -> None:
    """Add an exercise to a lab: to its source, its checks and its tests.

    Those after it get the next number, in these files and wherever a text names "lab 09's exercise 4". Stored outputs
    stay.
    """
    from labkit.exercises import sources
    from labkit_author import scaffold

    source = sources.find(lab)
    exercise, written, counted = scaffold.new_exercise(source, after, script)
    files = [paths.shown(path) for path in written]
    parts = 3 + script  # text, check, tests, and a probe
    print(f"Exercise {exercise} is in {', '.join(files[:parts])}.")
    if files[parts:]:
        print(f"Changed for its number or its minutes: {', '.join(files[parts:])}.")
    for place in counted:
        print(f"{place}: a loop counts exercises here. Does it still count the right ones?")
    number = source.stem[:2]
    print(
        "Read the text around it: where it says 'the next one' or 'both', it may mean another exercise now. Next: make "
        f"it yours (./lab lint {number} says what is left), then ./lab test --lab {number} --exercise {exercise}, "
        f"./lab mutate {number} --exercise {exercise} and ./lab build {number}"
    )


@command("build", epilog="Example: `./lab build 07 --execute`")
def build_notebooks(
    labs: SomeLabs = None,
    execute: Annotated[bool, typer.Option("--execute", help="run the solution notebook, to store its outputs")] = False,
) -> None:
    """Make the student and solution notebooks from their sources, if `lab lint` finds nothing wrong there.

    It writes `notebooks/NN_topic.ipynb`, `solutions/NN_topic.ipynb`, the minutes in the README's agenda, the guide's
    `solutions/mistakes.json`, and `docs/house.md`, whatever of these has changed. Stored outputs stay as long as no
    code cell was changed or removed; new ones have none. Exit code 1 when lint finds something.
    """
    from labkit.exercises import minutes, notebooks
    from labkit_author import build, lint

    chosen = _chosen(labs)
    _refuse([problem for source in chosen for problem in lint.lint(source)])
    for source in chosen:
        for path in build.build(source, run=execute):
            print(f"wrote {paths.shown(path)}")
        if not notebooks.is_executed(source):
            stored = paths.shown(notebooks.solution_path(source))
            which = "new cells have no outputs yet" if notebooks.has_run(source) else "no outputs, as its code is new"
            print(f"{stored}: {which}. A maintainer runs ./lab build {source.stem[:2]} --execute")
        elif execute:
            for line in minutes.overruns(source, notebooks.stored(source)):
                print(line)
    for page in _write_what_is_of_all_labs():
        print(f"wrote {paths.shown(page)}")


def _write_what_is_of_all_labs() -> list[Path]:
    """Write the README's agenda, the guide's mistakes and the catalogue of modules; return the changed files."""
    from labkit.exercises import minutes
    from labkit_author import house, mistakes

    return [page for page in (minutes.write_agenda(), mistakes.write(), house.write()) if page]


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
    python: Annotated[bool, typer.Option(help="bring Python too; without, each laptop needs its own")] = True,
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
