"""The order in which a run's processes start test files, and which tests share a process."""

import re

import pytest
from xdist.scheduler import LoadFileScheduling

# The longest come first, or one process would be busy with them at the end. The first two mostly wait, while others
# compute.
FIRST = (
    *("tests/classroom/hub", "tests/slurm", "solutions/07", "solutions/", "tests/exercises/engine/test_on_ranks.py"),
    *("tests/mpi/test_launch.py", "tests/exercises/", "tests/doctor", "tests/testbed", "tests/test_start.py"),
)

EXECUTIONS = ("test_untouched.py", "test_core_only.py", "test_without.py")  # of labs' notebooks
SHARED = {
    "tests/slurm": ("tests/slurm/test_cluster.py", "tests/slurm/test_job_scripts.py"),  # `small`
    "tests/classroom/hub": ("tests/classroom/hub/",),  # the seats' accounts
}


def unit(nodeid: str) -> str:
    """Return the group of a test: its file, the files that share something, or all executions of a lab's notebooks.

    Scripts on ranks, which take seconds each, are a group per lab.

    Executions share the lab's data and caches, and for lab 08 the checkout's small Slurm, which each of them ends.
    """
    file, _, test = nodeid.partition("::")
    for name, starts in SHARED.items():
        if file.startswith(starts):
            return name
    if file.endswith("test_on_ranks.py") and (lab := re.search(r"\[(\d\d)-\d+\]$", test)):
        return f"{file}/{lab[1]}"
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
