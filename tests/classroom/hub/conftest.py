"""A real hub with four seats, as the suite's tests share it."""

import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hub_student import code_on_card
from room_board import Board

from labkit.system import account_access, addresses
from labkit_classroom.hub import cgroups, opening, settings
from labkit_classroom.hub.control import Hub

NOT_TESTED = {  # by how the reason of a skip begins
    "no seats' accounts: ": "THAT STUDENTS OF A HUB ARE KEPT APART",
    "no systemd: ": "A HUB WHERE SYSTEMD RUNS",
}


@functools.cache
def why_no_accounts() -> str:
    """Give the one line why the hub can't give students accounts here; empty when it can."""
    if os.geteuid() != 0 or not shutil.which("useradd") or not shutil.which("userdel"):
        return "this takes root and useradd"
    return (reason := account_access.problem()) and f"{reason}; {account_access.REMEDY}"


def limits_can_be_had() -> bool:
    groups = cgroups.make("lab-hub-can-there-be", 1 << 30, 1.0)
    limits = [(group / name).exists() for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    cgroups.remove("lab-hub-can-there-be")
    return any(limits)


class Room:
    """A hub that is open, the codes of its seats, and a board beside it."""

    def __init__(self, folder: Path, files: Path) -> None:
        self.board = Board(folder / "board.sqlite")
        limited = not why_no_accounts() and limits_can_be_had()
        wanted = opening.settle(
            *(4, ["00"], "127.0.0.1", addresses.free_ports(1)[0]),
            memory_gib=1.5 if limited else 0,
            cores=1 if limited else 0,
            students_files=files,
            keep_apart=settings.NONE if why_no_accounts() else settings.ACCOUNTS,
            name="A school <2026>",
        )
        variables = {"LAB_ROOM": self.board.url, "LAB_ROOM_CODE": self.board.code}
        self.wanted, self.hub = wanted, Hub(folder / "hub")
        self.rows, _ = opening.open_checked(self.hub, wanted, variables=variables)
        self.state = self.hub.state

    @property
    def url(self) -> str:
        return self.wanted.url

    def code(self, seat: str) -> str:
        """Read a seat's code off its card."""
        return code_on_card(self.hub.cards, seat)


@pytest.fixture(scope="session")
def files():
    """A folder that all users can reach, as pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="lab hub ", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def room(tmp_path_factory, files):
    room = None
    folder = tmp_path_factory.mktemp("a hub")
    try:
        room = Room(folder, files / "students")
        yield room
    finally:
        Hub(folder / "hub").stop(delete_files=True)
        if room:
            room.board.stop()


@pytest.fixture
def accounts():
    """Have a test skipped, and said so loudly, where no accounts can be made."""
    if reason := why_no_accounts():
        pytest.skip(f"no seats' accounts: {reason}")


@pytest.fixture
def limits(accounts):
    """Have a test skipped, and said so loudly, where this machine lets nobody set limits."""
    if not limits_can_be_had():
        pytest.skip("no seats' accounts: cgroups cannot be written here")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr[-1]) for report in terminalreporter.getreports("skipped")]
    for start, what in NOT_TESTED.items():
        if found := [reason.partition(start)[2] for reason in reasons if start in reason]:
            terminalreporter.write_line(f"{what} WAS NOT TESTED HERE: {found[0]}", red=True, bold=True)
