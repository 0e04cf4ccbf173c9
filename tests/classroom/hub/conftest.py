"""A real hub with four seats over https, with accounts if root can create them."""

import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from certificates import certificate
from hub_student import code_on_card, request_for
from room_board import Board

from labkit.system import account_access
from labkit_classroom.board import host
from labkit_classroom.hub import control, settings
from labkit_classroom.hub.control import Hub


@functools.cache
def accounts_problem() -> str:
    """Return why the hub can't create accounts here; empty if it can."""
    if os.geteuid() != 0 or not shutil.which("useradd") or not shutil.which("userdel"):
        return "root and useradd are required"
    if control.RUNTIME.exists():
        return f"a hub on this machine is using the accounts ({control.RUNTIME})"
    return (reason := account_access.problem()) and f"{reason}; {account_access.REMEDY}"


class Room:
    """An open hub and a board."""

    def __init__(self, folder: Path, files: Path) -> None:
        cert, key = map(str, certificate(folder, "hub"))
        mode = settings.TRIAL if accounts_problem() else settings.ACCOUNTS
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
    """A folder that all users can enter, unlike pytest's."""
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
    """Skip a test if no accounts can be created."""
    if reason := accounts_problem():
        pytest.skip(f"no seats' accounts: {reason}")
