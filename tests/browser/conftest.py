"""One browser for the tests of pages, people at it, and rooms to look at."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
from browsing import HOW, Visitor, program
from playwright.sync_api import Browser, sync_playwright
from room_board import Board

from labkit.system import paths, processes

# `./lab room open`, but for where it keeps the room: this checkout's own may be open.
OPEN_ROOM = (
    "import sys; from pathlib import Path; from labkit.room import host; host.FOLDER = Path(sys.argv.pop(1)); "
    "from labkit.cli import main; main()"
)
START_S = 60  # for a board to answer, on a machine that is busy


class BoardProcess(Board):
    """A board as an instructor opens it: a process, which can be killed."""

    def start(self) -> None:
        """Open the room, and read its code and the instructor's address as they are printed."""
        command = [sys.executable, "-c", OPEN_ROOM, str(self.path)]
        command += ["room", "open", "--address", "127.0.0.1", "--port", str(self.port)]
        printed = self.path.with_suffix(".txt")
        with printed.open("w") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(paths.ROOT)}
            )
        assert processes.wait_until(lambda: self._answers() or self._process.poll() is not None, START_S)
        told = printed.read_text().split()
        assert self._process.poll() is None, told
        self.code = told[told.index("Code:") + 1]
        self.instructor = told[told.index("else:") + 1].partition("#")[2]

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/view/wall", timeout=1).ok
        except requests.RequestException:
            return False

    def stop(self) -> None:
        """End it as a power failure would."""
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="package")  # while it lasts, nothing in this process can run an event loop of its own
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = program(playwright.chromium.executable_path)
        if not path:
            pytest.skip(f"no browser: {HOW}")
        with playwright.chromium.launch(executable_path=path) as launched:
            yield launched


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """Have somebody come with a browser of their own."""
    visitors: list[Visitor] = []

    def come(**options: object) -> Visitor:
        visitors.append(Visitor(browser, **options))
        return visitors[-1]

    yield come
    for visitor in visitors:
        visitor.context.close()


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    opened = Board(tmp_path / "board.sqlite")
    yield opened
    opened.stop()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[BoardProcess]:
    """A board in a process of its own."""
    opened = BoardProcess(tmp_path / "the room")
    yield opened
    opened.stop()
