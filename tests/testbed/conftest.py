"""What the tests of this room share."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from labkit.system.processes import wait_until

INTERFACES = Path("/sys/class/net")


def own_interfaces() -> list[str]:
    return sorted(path.name for path in INTERFACES.iterdir())


def open_files() -> Counter[str]:
    """Return what this process has open, and how often, but for the list itself.

    A testbed opens no event's descriptors; libraries that earlier tests have imported do, in threads of their own.
    """
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return Counter(file for file in found if not file.endswith(("/fd", "[eventfd]")))


def namespace(pid: int | str = "self") -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def in_namespaces(numbers: set[int]) -> list[str]:
    """Return the processes that are in one of these network namespaces."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if namespace(process.pid) in numbers and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found


@pytest.fixture
def nothing_left(wires_can_be_made) -> Iterator[Callable[..., None]]:
    """Hold that the tests leave nothing: no open file, child, interface, or process in a namespace that they name."""
    interfaces, descriptors = own_interfaces(), open_files()
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    numbers: set[int] = set()

    def mark(*pids: int) -> None:
        numbers.update(namespace(pid) for pid in pids)

    yield mark
    assert namespace() not in numbers
    assert wait_until(lambda: not in_namespaces(numbers), 10), in_namespaces(numbers)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= children
    assert own_interfaces() == interfaces
    # A thread of an earlier test may have a file open at this moment, and closes what it had open before.
    assert wait_until(lambda: not open_files() - descriptors, 10), open_files() - descriptors
