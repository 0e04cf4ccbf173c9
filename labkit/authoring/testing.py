"""Which tests `lab test` runs, and which of them side by side, as pytest's arguments."""

import os
import subprocess
import sys
from pathlib import Path

from labkit.exercises import sources
from labkit.system import others, paths

WORKERS = 3  # processes that share the tests; many tests wait, so two cores have enough for three


def selection(fast: bool = False, lab: str | None = None) -> list[str]:
    """Return the arguments that choose the fast tests, a lab's tests, or a lab's fast tests; none choose all.

    Parameters
    ----------
    fast : bool
        Only the tests without TensorFlow, ranks, Slurm and notebooks (`tests/fast.py`), side by side.
    lab : str, optional
        Only what this lab is held to: its exercises, its source, and both its notebooks.
    """
    arguments = ["--fast", f"-n{WORKERS}", "--dist=worksteal"] if fast else []
    if lab is None:
        return [*arguments, "tests"] if fast else []
    source = sources.find(lab)
    number = source.stem[:2]
    exercises = sorted((paths.ROOT / "tests" / "exercises").glob(f"test_lab{number}*.py"))
    arguments += [str(path.relative_to(paths.ROOT)) for path in exercises]
    arguments += ["tests/authoring", f"-klab{number} or {source.stem}"]
    return arguments if fast else [*arguments, f"solutions/{source.stem}.ipynb"]


def whole_suite() -> tuple[list[str], list[str]]:
    """Return the arguments of the two runs of the whole suite: side by side, then those that need the cores alone."""
    # Files are begun in their order: reordered, those of few and long tests would come last, one worker alone on each.
    return [f"-n{WORKERS}", "--dist=loadfile", "--no-loadscope-reorder", "-mnot alone"], ["-malone"]


def as_others_can() -> list[str]:
    """Return the command by which other accounts can use this Python during the tests, which root has become them.

    It is empty where they can without, as they can't in root's home (0700), and where nothing helps: tests that need
    such accounts are skipped then, and pytest's last lines say so.
    """
    if os.geteuid() != 0 or not others.why_not():
        return []
    needed = [Path(sys.base_prefix), paths.ROOT]
    closed = {folder for path in needed for folder in path.parents if not folder.stat().st_mode & 0o001}
    if len(closed) != 1:
        return []
    (home,) = closed
    below = [str(path) for path in needed if path.is_relative_to(home)]
    command = [str(paths.ROOT / "tests/with-open-home"), str(home), *below, "--"]
    tried = "import sys; from labkit.system import others; sys.exit(bool(others.why_not()))"
    helps = subprocess.run([*command, sys.executable, "-c", tried], stderr=subprocess.DEVNULL).returncode == 0
    return command if helps else []
