"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from labkit.system import paths

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
StudentFolder = Annotated[
    Path,
    typer.Option(
        "--folder",
        envvar="LAB_FOLDER",
        help="your own folder",
        default_factory=paths.student_folder,
        show_default="my-labs, or the current one if it has the labs",
        resolve_path=True,
    ),
]
LabNumber = Annotated[str, typer.Argument(help="the lab, such as 07")]
SomeLabs = Annotated[
    list[str] | None,
    typer.Argument(help="the labs, such as 07", show_default="all"),
]
