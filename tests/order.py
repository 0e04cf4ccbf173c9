"""The order in which a run's processes start test files, and which tests share a process."""

import re

import pytest
from xdist.scheduler import LoadFileScheduling

# The longest come first, or one process would be busy with them at the end.
FIRST = (
    *("tests/exercises/test_lab07.py", "tests/exercises/test_lab09.py", "solutions/07", "tests/train/test_loop.py"),
    *("tests/mpi/test_launch.py", "solutions/", "tests/exercises/", "tests/classroom/hub"),
    *("tests/slurm", "tests/testbed", "tests/train"),
)

EXECUTIONS = ("test_untouched.py", "test_core_only.py", "test_without.py")  # of labs' notebooks
SHARED = {
    "tests/slurm": ("tests/slurm/test_cluster.py", "tests/slurm/test_jobs.py", "tests/train/test_sbatch.py"),  # `small`
    "tests/classroom/hub": ("tests/classroom/hub/",),  # the seats' accounts
}


def unit(nodeid: str) -> str:
    """Return the group of a test: its file, the files that share something, or all executions of a lab's notebooks.

    Executions share the lab's data and caches, and for lab 08 the checkout's small Slurm, which each of them ends.
    """
    file, _, test = nodeid.partition("::")
    for name, starts in SHARED.items():
        if file.startswith(starts):
            return name
    executed = file.endswith(EXECUTIONS) and re.search(r"\[(.+)\]$", test)
    return f"solutions/{executed[1]}.ipynb" if executed else file


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests of each unit in `FIRST` before all others."""

    def rank(item: pytest.Item) -> int:
        matches = (number for number, start in enumerate(FIRST) if unit(item.nodeid).startswith(start))
        return next(matches, len(FIRST))

    items.sort(key=rank)


class Units(LoadFileScheduling):
    """Gives each process one unit at a time."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
