"""Select the tests that `lab test` runs, as arguments for pytest."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.system import account_access, paths
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit_author import changed, sources

# The tests of all exercises that are data.
TABLES = [f"tests/exercises/engine/test_{kind}.py" for kind in ("references", "on_ranks", "in_c")]
GIB_PER_WORKER = 2  # TensorFlow in a worker, and in the notebook or ranks it starts
MAX_WORKERS = 16


def workers() -> int:
    """Return the number of pytest workers: one more than CPUs, as many tests wait. Each collects all tests, in 9 s."""
    machine = this_machine()
    return max(2, min(len(machine.cpus) + 1, int(machine.memory / 2**30) // GIB_PER_WORKER, MAX_WORKERS))


def arguments(
    fast: bool = False,
    everything: bool = False,
    lab: str | None = None,
    exercise: int | None = None,
    more: Sequence[str] = (),
) -> list[str]:
    """Return pytest's arguments.

    Parameters
    ----------
    fast : bool
        Only the tests without TensorFlow, ranks, Slurm and notebooks (`tests/fast.py`).
    everything : bool
        Also the tests marked `weekly`, and all solution notebooks.
    lab : str, optional
        Only this lab's tests: its exercises, its source and both its notebooks.
    exercise : int, optional
        Only the tests of this exercise of the lab.
    more : sequence of str
        Further arguments for pytest. If there are any, pytest runs in one process and runs only the tests they select.

    Raises
    ------
    LabError
        If an exercise has no lab, or the lab has no such exercise.
    """
    # Keep the order in tests/order.py: xdist would start files with few, long tests last.
    shared = [f"-n{workers()}", f"--dist={'worksteal' if fast else 'loadfile'}", "--no-loadscope-reorder"]
    shared += ["--max-worker-restart=0"]  # a run was seen to hang after a worker died and was replaced
    fast_flag = ["--fast"] if fast else []
    if exercise is not None:
        return [*fast_flag, *_of_exercise(lab, exercise), *more]
    if lab is not None:
        return [*fast_flag, *_of_lab(lab, fast), *more]
    if more:
        return [*fast_flag, *more]
    if everything:
        return [*shared, "tests", *map(_notebook, sources.labs())]
    return [*fast_flag, *shared, "-m", "not weekly", "tests", *([] if fast else map(_notebook, compared()))]


def compared() -> list[Path]:
    """Return the sources of the labs that changed: nbval compares their solution notebooks with the stored outputs."""
    return [source for source in sources.labs() if changed.has_lab(source.stem[:2])]


def _notebook(source: Path) -> str:
    return f"solutions/{source.stem}.ipynb"


def _of_lab(lab: str, fast: bool) -> list[str]:
    """Return the arguments that select a lab's tests."""
    source = sources.find(lab)
    number = source.stem[:2]
    exercises = sorted((paths.ROOT / "tests" / "exercises").glob(f"test_lab{number}*.py"))
    chosen = [str(path.relative_to(paths.ROOT)) for path in exercises]
    select = f"-klab{number} or {source.stem} or [{number}-"
    return [*chosen, *TABLES, "tests/author", select, *([] if fast else [_notebook(source)])]


def _of_exercise(lab: str | None, exercise: int) -> list[str]:
    """Return the arguments that select an exercise's tests, whose cases `tests/exercises/labs.py` generates."""
    if lab is None:
        raise LabError(f"--exercise needs a lab, such as ./lab test --lab 09 --exercise {exercise}")
    source = sources.find(lab)
    if exercise not in (known := sources.exercises(sources.read(source))):
        raise LabError(f"lab {source.stem[:2]} has no exercise {exercise}, only {', '.join(map(str, known))}.")
    number = source.stem[:2]
    cases = f"TestExercises and ([{exercise}- or [{exercise}])"  # case names such as [6-0]
    in_tables = f"[{number}-{exercise}] or [{number}-{exercise}-"
    return [f"tests/exercises/test_lab{number}.py", *TABLES, f"-k{cases} or {in_tables}"]


def open_home() -> list[str]:
    """Return a command prefix that lets other accounts use this Python during the tests, for root with mode-0700 home.

    It is empty if they already can, or if nothing helps: tests that need other accounts are then skipped, as pytest's
    summary shows.
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
    probe = "import sys; from labkit.system import account_access; sys.exit(bool(account_access.problem()))"
    helps = subprocess.run([*command, sys.executable, "-c", probe], stderr=subprocess.DEVNULL).returncode == 0
    return command if helps else []
