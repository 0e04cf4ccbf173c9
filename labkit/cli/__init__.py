"""The commands of `./lab`, one function each.

Modules that take long to import are imported by the command that needs them, so that `./lab` answers at once.
"""

import os
import sys
from pathlib import Path

import typer
from typer.completion import completion_init

from labkit.cli import authoring, cluster, completion, data, hub, measuring, students, teaching
from labkit.system import files, paths
from labkit.system.errors import LabError

app = typer.Typer(
    help="Deep learning at scale on CPUs: a hands-on workshop. Start with: ./lab start\n\n"
    "`./lab COMMAND --help` says what a command does, what it writes, and shows an example. "
    "Exit code 2: something that you can mend, told in one line.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.add_typer(students.app)
app.add_typer(data.app, name="data", rich_help_panel="The labs")
app.add_typer(measuring.app)
app.add_typer(cluster.app, name="cluster", rich_help_panel="Measuring")
app.add_typer(teaching.app)
app.add_typer(hub.app, name="hub", rich_help_panel="Teaching")
app.add_typer(authoring.app)


def main() -> None:
    """Run a command; print an error that the user can mend in one line, with exit code 2."""
    if completion.VARIABLE in os.environ:  # a shell asks what it can complete
        completion_init()
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
