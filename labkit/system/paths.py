"""Paths in the checkout: notebooks, sources, data and state."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
STUDENT = ROOT / "my-labs"  # the student's copies of the labs, by default; ignored by git
COPIES_RECORD = ".lab-copies.json"  # the record of the copies in such a folder
SOLUTIONS = ROOT / "solutions"
DATA = ROOT / "data"
ENV = ROOT / "env"


def writable(folder: Path) -> Path:
    """Return a folder of the checkout, or this user's own if the checkout is someone else's.

    That is in `$XDG_STATE_HOME/labkit`, by default `~/.local/state/labkit` (XDG Base Directory Specification).
    """
    if os.access(folder if folder.exists() else folder.parent, os.W_OK | os.X_OK):
        return folder
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path("~/.local/state").expanduser()
        except RuntimeError:  # this user has no home directory
            return folder
    return state / "labkit" / folder.name.lstrip(".")


STATE = writable(ROOT / ".lab")  # logs and other state of this checkout; ignored by git


def student_folder() -> Path:
    """Return the student's folder: the current one if it has copies of the labs, else the default one."""
    return Path.cwd() if Path(COPIES_RECORD).exists() else STUDENT


def shown(path: Path) -> str:
    """Return `path` as a reader of this checkout would type it: relative to its root when inside."""
    path = Path(os.path.realpath(path))  # unlike Path.resolve(), also for links that form a loop
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
