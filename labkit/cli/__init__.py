"""The commands of `./lab`, one function each; packages beside this one add theirs by an entry point.

Modules that take long to import are imported by the command that needs them, so that `./lab` answers at once.
"""

import functools
import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from labkit.cli import cluster, data, measuring, refusals, students
from labkit.system import terminal

FOR_STUDENTS = ("start", "doctor", "reset", "report", "join", "hand")
EVERY = f"{__name__}: every command"  # in a context's `meta`: the help is to list them


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"lab {metadata.version('labkit')}")
        raise typer.Exit


class _Commands(TyperGroup):
    """All commands, whose help lists those of students alone until it is asked for all."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the commands that are to be in it; completion knows all."""
        every = self.commands
        if not ctx.meta.get(EVERY):
            self.commands = {name: every[name] for name in FOR_STUDENTS if name in every}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = every


def _show_all_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[EVERY] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the kit's version")
    ] = False,
    help_all: Annotated[
        bool, typer.Option("--help-all", callback=_show_all_help, is_eager=True, help="show all commands, and exit")
    ] = False,
) -> None: ...


@functools.cache
def application() -> typer.Typer:
    """Return all commands; those of the packages beside this one are there when they import this one."""
    app = typer.Typer(
        cls=_Commands,
        help="Deep learning at scale on CPUs: a hands-on workshop. Start with: ./lab start\n\n"
        "`./lab --help-all` lists all commands, with those that measure, teach, and work on the kit. "
        "`./lab COMMAND --help` says what a command does, what it writes, and shows an example. "
        "Exit code 2: something that you can mend, told in one line.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    app.add_typer(students.app)
    app.add_typer(data.app, name="data", rich_help_panel="The labs")
    app.add_typer(measuring.app)
    app.add_typer(cluster.app, name="cluster", rich_help_panel="Measuring")
    for beside in sorted(metadata.entry_points(group="labkit.commands"), reverse=True):
        beside.load()(app)
    return app


def main() -> None:
    """Run a command; print what somebody can mend in one line, with exit code 2, and a failure of the kit's as one."""
    terminal.prepare_streams()
    try:
        try:
            status = application()(prog_name="lab", standalone_mode=False)
        finally:
            _flush()
    except Exception as error:
        told = refusals.in_one_line(error)
        if not told:
            error.add_note("This is the kit's failure, not yours; please report it, with all of the above.")
        if not told or refusals.VARIABLE in os.environ:
            raise
        terminal.say(f"lab: {told}")
        raise SystemExit(2) from error
    raise SystemExit(status)


def _flush() -> None:
    """Flush standard output, and raise the error of a full disk there; ignore a reader that has left."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # or Python would try again as it ends
    except OSError:
        sys.stdout = None
        raise
