"""The layout of the checkout: where notebooks, sources, data and state are."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
STUDENT = ROOT / "my-labs"  # the student's own copies of the labs, where no other folder is named; ignored by git
COPIES_RECORD = ".lab-copies.json"  # the record of the copies in such a folder
SOLUTIONS = ROOT / "solutions"
DATA = ROOT / "data"
ENV = ROOT / "env"
OPENMP_PYTHON = ENV / "openmp" / ".venv" / "bin" / "python"  # with OpenMP in TensorFlow


def own(folder: Path) -> Path:
    """Return a folder of the checkout, or what this user has in its place where the checkout is somebody else's.

    That is in `$XDG_STATE_HOME/labkit`, by default `~/.local/state/labkit` (XDG Base Directory Specification).
    """
    if os.access(folder if folder.exists() else folder.parent, os.W_OK | os.X_OK):
        return folder
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path("~/.local/state").expanduser()
        except RuntimeError:  # this user has no home
            return folder
    return state / "labkit" / folder.name.lstrip(".")


STATE = own(ROOT / ".lab")  # logs and whatever else this checkout keeps for itself; ignored by git


def student_folder() -> Path:
    """Return the student's own folder: the current one if it has copies of the labs, else the usual one."""
    return Path.cwd() if Path(COPIES_RECORD).exists() else STUDENT


def shown(path: Path) -> str:
    """Return `path` as a reader of this checkout would type it: relative to its root when inside."""
    path = Path(os.path.realpath(path))  # unlike Path.resolve(), also of links that lead in a circle
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
