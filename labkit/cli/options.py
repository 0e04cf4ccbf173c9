"""Options shared by several commands."""

import os
from pathlib import Path
from typing import Annotated

import typer

from labkit.system import paths

LABS, SOMETIMES = "The labs", "When you need them"  # panels of the help that students see


def _private(folder: Path) -> Path:
    """Let only this user read what the command writes, and what JupyterLab and its terminals write later."""
    os.umask(0o077)
    return folder


StudentFolder = Annotated[
    Path,
    typer.Option(
        "--folder",
        envvar="LAB_FOLDER",
        help="Your own folder.",
        default_factory=paths.student_folder,
        show_default="my-labs, or the current folder if it contains the labs",
        resolve_path=True,
        callback=_private,
    ),
]
LabNumber = Annotated[str, typer.Argument(help="The lab's number, such as 07.")]
SomeLabs = Annotated[
    list[str] | None,
    typer.Argument(help="The labs' numbers, such as 07.", show_default="all"),
]
