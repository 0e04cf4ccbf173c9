"""Which tests `lab test` runs, in which order, and how many side by side, as pytest's arguments."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.exercises import sources
from labkit.system import account_access, paths
from labkit.system.errors import LabError

WORKERS = 4  # processes that share the tests; many tests wait, so two cores have enough for four
STYLE = "tests/test_style.py"
FAST = ("--fast", f"-n{WORKERS}", "--dist=worksteal")
# Files are begun in their order: reordered, those of few and long tests would come last, alone at the end.
# A process that dies ends the run: with one in its place, a run was seen to wait for ever.
WHOLE = (f"-n{WORKERS}", "--dist=loadfile", "--no-loadscope-reorder", "--max-worker-restart=0")


def runs(
    fast: bool = False, lab: str | None = None, exercise: int | None = None, more: Sequence[str] = ()
) -> list[list[str]]:
    """Return the arguments of pytest's runs, each of which is worth its time only if those before it passed.

    Parameters
    ----------
    fast : bool
        Only the tests without TensorFlow, ranks, Slurm and notebooks (`tests/fast.py`), side by side.
    lab : str, optional
        Only this lab's tests: of its exercises, its source, and both its notebooks.
    exercise : int, optional
        Only the tests of this exercise of the lab.
    more : sequence of str
        Further arguments of pytest's: with any, there is one run, no longer of all tests.

    Raises
    ------
    LabError
        For an exercise that the lab does not have, or of no lab.
    """
    if exercise is not None:
        return [[*(["--fast"] if fast else []), *_of_exercise(lab, exercise), *more]]
    if lab is not None:
        return [[*(FAST if fast else []), *_of(lab, fast), *more]]
    if more:
        named = any(Path(argument.partition("::")[0]).exists() for argument in more)
        return [[*(FAST if fast else []), *(["tests"] if fast and not named else []), *more]]
    return [[STYLE], [*([*FAST, "tests"] if fast else WHOLE), f"--ignore={STYLE}"]]


def _of(lab: str, fast: bool) -> list[str]:
    """Return the arguments that choose a lab's tests."""
    source = sources.find(lab)
    number = source.stem[:2]
    exercises = sorted((paths.ROOT / "tests" / "exercises").glob(f"test_lab{number}*.py"))
    chosen = [str(path.relative_to(paths.ROOT)) for path in exercises]
    chosen += ["tests/author", f"-klab{number} or {source.stem}"]
    return chosen if fast else [*chosen, f"solutions/{source.stem}.ipynb"]


def _of_exercise(lab: str | None, exercise: int) -> list[str]:
    """Return the arguments that choose an exercise's tests: the cases that `tests/exercises/labs.py` makes of it."""
    if lab is None:
        raise LabError(f"exercise {exercise} of which lab? ./lab test --lab 09 --exercise {exercise}")
    source = sources.find(lab)
    if exercise not in (known := sources.exercises(sources.read(source))):
        raise LabError(f"lab {source.stem[:2]} has no exercise {exercise}, only {', '.join(map(str, known))}.")
    chosen = (
        f"TestExercises and ([{exercise}- or [{exercise}] or test_each_exercise)"  # a case's name: [6-edit-message]
    )
    return [f"tests/exercises/test_lab{source.stem[:2]}.py", f"-k{chosen}"]


def as_others_can() -> list[str]:
    """Return the command by which other accounts can use this Python during the tests, which root has become them.

    It is empty where they can without, as they can't in root's home (0700), and where nothing helps: tests that need
    such accounts are skipped then, and pytest's last lines say so.
    """
    if os.geteuid() != 0 or not account_access.problem():
        return []
    needed = [Path(sys.base_prefix), paths.ROOT]
    closed = {folder for path in needed for folder in path.parents if not folder.stat().st_mode & 0o001}
    if len(closed) != 1:
        return []
    (home,) = closed
    below = [str(path) for path in needed if path.is_relative_to(home)]
    command = [str(paths.ROOT / "tests/with-open-home"), str(home), *below, "--"]
    tried = "import sys; from labkit.system import account_access; sys.exit(bool(account_access.problem()))"
    helps = subprocess.run([*command, sys.executable, "-c", tried], stderr=subprocess.DEVNULL).returncode == 0
    return command if helps else []
