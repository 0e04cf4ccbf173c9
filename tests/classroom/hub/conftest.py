"""A real hub with four seats for this folder's tests: over https, and with accounts where root can make them."""

import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from certificates import certificate
from hub_student import code_on_card, request_for
from room_board import Board

from labkit.system import others
from labkit_classroom.board import host
from labkit_classroom.hub import settings
from labkit_classroom.hub.control import Hub

NOT_TESTED = {  # by how the reason of a skip begins
    "no seats' accounts: ": "THAT STUDENTS OF A HUB ARE KEPT APART",
    "no systemd: ": "A HUB WHERE SYSTEMD RUNS",
}


@functools.cache
def why_no_accounts() -> str:
    """Return why the hub can't make accounts here; empty if it can."""
    if os.geteuid() != 0 or not shutil.which("useradd") or not shutil.which("userdel"):
        return "this takes root and useradd"
    return (reason := others.why_not()) and f"{reason}; {others.REMEDY}"


class Room:
    """A hub that is open, and a board next to it."""

    def __init__(self, folder: Path, files: Path) -> None:
        cert, key = map(str, certificate(folder, "hub"))
        mode = settings.TRIAL if why_no_accounts() else settings.ACCOUNTS
        self.request = request_for(files, mode=mode, cert=cert, key=key)
        self.url, self.hub = self.request.url, Hub(folder / "hub")
        self.board = Board(folder / "board.sqlite")
        with pytest.MonkeyPatch.context() as patch:
            room = host.Opened(self.board.url, self.board.code, "")
            patch.setattr(host, "running_room", lambda: room)
            self.rows = self.hub.start(self.request)
        self.settings = self.hub.settings

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
    room, folder = None, tmp_path_factory.mktemp("a hub")
    try:
        room = Room(folder, files / "students")
        yield room
    finally:
        Hub(folder / "hub").stop()
        if room:
            room.board.stop()


@pytest.fixture
def accounts():
    """Skip a test where no accounts can be made; the last lines of the run say so."""
    if reason := why_no_accounts():
        pytest.skip(f"no seats' accounts: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr[-1]) for report in terminalreporter.getreports("skipped")]
    for start, what in NOT_TESTED.items():
        if found := [reason.partition(start)[2] for reason in reasons if start in reason]:
            terminalreporter.write_line(f"{what} WAS NOT TESTED HERE: {found[0]}", red=True, bold=True)
