"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
StudentFolder = Annotated[
    Path,
    typer.Option("--folder", envvar="LAB_FOLDER", help="your own folder", show_default="my-labs", resolve_path=True),
]
