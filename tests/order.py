"""The order in which the processes of a run begin files of tests, and which tests stay in one process."""

import re

import pytest
from xdist.scheduler import LoadFileScheduling

# What takes longest comes first, or one process would be left with it at the end.
FIRST = (
    *("tests/exercises/test_lab07.py", "tests/exercises/test_lab09.py", "solutions/07", "tests/train/test_loop.py"),
    *("tests/test_style.py", "tests/mpi/test_launch.py", "solutions/", "tests/exercises/", "tests/classroom/hub"),
    *("tests/slurm", "tests/testbed", "tests/train"),
)


def unit(nodeid: str) -> str:
    """Return what a test stays together with: its file, all executions of its lab's notebooks, or all tests of the hub.

    Those share the lab's data and caches, and lab 08's the checkout's small Slurm, which each of them ends. Hubs share
    the seats' accounts.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith("tests/classroom/hub/"):
        return "tests/classroom/hub"
    executed = file.endswith(("test_untouched.py", "test_core_only.py")) and re.search(r"\[(.+)\]$", test)
    return f"solutions/{executed[1]}.ipynb" if executed else file


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests of each unit in `FIRST` before all others."""

    def place(item: pytest.Item) -> int:
        places = (number for number, start in enumerate(FIRST) if unit(item.nodeid).startswith(start))
        return next(places, len(FIRST))

    items.sort(key=place)


class Units(LoadFileScheduling):
    """Gives each process one unit after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
