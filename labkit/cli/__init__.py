"""The `./lab` commands, one function each; other packages add theirs through an entry point.

Modules that are slow to import are imported by the command that needs them, so that `./lab` answers at once.
"""

import functools
import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from labkit.cli import cluster, data, measuring, refusals, students
from labkit.cli.options import LABS, SOMETIMES
from labkit.system import terminal

SHOW_ALL = f"{__name__}: show all"  # key in a context's `meta`: the help lists all commands


def _show_version(requested: bool) -> None:
    if requested:
        print(f"lab {metadata.version('labkit')}")
        raise typer.Exit


class _Commands(TyperGroup):
    """All commands; `--help` lists only those for students, `--help-all` lists every command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help for the commands to list; completion knows them all."""
        commands = self.commands
        panels = {name: getattr(command, "rich_help_panel", None) for name, command in commands.items()}
        shown = dict.fromkeys([LABS, SOMETIMES, *(panels.values() if ctx.meta.get(SHOW_ALL) else ())])
        self.commands = {name: commands[name] for panel in shown for name in panels if panels[name] == panel}
        try:
            super().format_help(ctx, formatter)
        finally:
            self.commands = commands


def _show_all_help(ctx: typer.Context, requested: bool) -> None:
    if requested:
        ctx.meta[SHOW_ALL] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the kit's version and exit.")
    ] = False,
    help_all: Annotated[
        bool, typer.Option("--help-all", callback=_show_all_help, is_eager=True, help="List all commands and exit.")
    ] = False,
) -> None: ...


@functools.cache
def application() -> typer.Typer:
    """Return the app with all commands, including those of other installed packages."""
    app = typer.Typer(
        cls=_Commands,
        help="Deep learning at scale on CPUs: a hands-on workshop. Start with: ./lab start\n\n"
        "`./lab --help-all` also lists the commands for measuring, teaching and working on the kit. "
        "`./lab COMMAND --help` explains a command and what it writes, with an example. "
        "Exit code 2 means an error you can fix; its message is one line.",
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    app.add_typer(students.app)
    app.add_typer(data.app, name="data", rich_help_panel=SOMETIMES)
    app.add_typer(measuring.app)
    app.add_typer(cluster.app, name="cluster", rich_help_panel="Measuring")
    for entry_point in sorted(metadata.entry_points(group="labkit.commands"), reverse=True):
        entry_point.load()(app)
    return app


def main() -> None:
    """Run a command. Print errors users can fix in one line, with exit code 2; bugs in the kit keep their traceback."""
    terminal.prepare_streams()
    try:
        try:
            status = application()(prog_name="lab", standalone_mode=False)
        finally:
            _flush()
    except Exception as error:
        message = refusals.in_one_line(error)
        if not message:
            error.add_note("This is a bug in the kit, not your mistake; please report it with everything above.")
        if not message or refusals.VARIABLE in os.environ:
            raise
        terminal.say(f"lab: {message}")
        raise SystemExit(2) from error
    raise SystemExit(status)


def _flush() -> None:
    """Flush standard output; raise if its disk is full, but ignore a closed pipe."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # otherwise, Python would flush again at exit
    except OSError:
        sys.stdout = None
        raise
