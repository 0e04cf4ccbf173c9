"""Fixtures and helpers for the tests of `labkit.testbed`."""

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
    """Return the files that this process has open, with counts, except the listing itself.

    A testbed opens no eventfds; libraries imported by earlier tests do, in their threads.
    """
    opened = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            opened.append(str(path.readlink()))
    return Counter(file for file in opened if not file.endswith(("/fd", "[eventfd]")))


def namespace(pid: int | str = "self") -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def in_namespaces(numbers: set[int]) -> list[str]:
    """Return the processes in these network namespaces."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if namespace(process.pid) in numbers and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(f"{process.pid} {' '.join(process.cmdline())}")
    return processes


@pytest.fixture
def nothing_left(wires_can_be_made) -> Iterator[Callable[..., None]]:
    """Check that a test leaves no open file, child, interface, or process in the namespaces that it marks."""
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
    # A thread of an earlier test may have a file open just now, and close others.
    assert wait_until(lambda: not open_files() - descriptors, 10), open_files() - descriptors
