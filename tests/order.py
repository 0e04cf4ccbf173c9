"""In which order the whole suite's processes begin what they share, and what stays together."""

import re

import pytest
from xdist.scheduler import LoadFileScheduling

# What takes longest, or would hold one process up alone at the end; the others follow in the order of their names.
FIRST = (
    *("tests/exercises/test_lab07.py", "tests/exercises/test_lab09.py", "solutions/04", "tests/train/test_loop.py"),
    *("tests/mpi/test_launch.py", "tests/author/test_scaffold.py", "solutions/07", "solutions/03", "solutions/08"),
    *("tests/browser/test_board_pages.py", "tests/exercises/test_lab06.py"),
    *("solutions/09", "solutions/06", "tests/exercises/test_lab08.py", "tests/test_front_door.py", "solutions/05"),
    *("tests/classroom/hub/test_hub.py", "solutions/02", "solutions/01", "tests/train/test_sbatch.py"),
    *("tests/exercises/test_core.py", "tests/tune/test_tune.py", "tests/slurm", "tests/classroom/hub"),
    *("tests/doctor", "tests/bench"),
)


def unit(nodeid: str) -> str:
    """Return what a test stays together with: its file's, a lab's two executions, and hubs.

    Those share the lab's data and caches, and lab 08's the checkout's small Slurm, which each of them ends. Hubs share
    the accounts of seats.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith("tests/classroom/hub/"):
        return "tests/classroom/hub"
    executed = file.endswith("test_untouched.py") and re.search(r"\[(.+)\]$", test)
    return f"solutions/{executed[1]}.ipynb" if executed else file


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests of each unit in `FIRST` before all others."""

    def place(item: pytest.Item) -> int:
        found = (number for number, start in enumerate(FIRST) if unit(item.nodeid).startswith(start))
        return next(found, len(FIRST))

    items.sort(key=place)


class Units(LoadFileScheduling):
    """Gives each process a unit after the other, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
