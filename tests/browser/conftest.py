"""Fixtures for page tests: a browser, visitors, boards."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsing import HOW, Visitor, program
from playwright.sync_api import Browser, sync_playwright
from room_board import Board, BoardProcess

# `./lab room open` with a separate folder: this checkout's room may be open.
OPEN_ROOM = (
    "import sys; from pathlib import Path; from labkit_classroom.board import host; "
    "host.FOLDER = Path(sys.argv.pop(1)); "
    "from labkit.cli import main; main()"
)


class OpenedRoom(BoardProcess):
    """A board opened with `./lab room open`, whose output is parsed."""

    def command(self, port: int = 0) -> list[str]:
        """Return the command that opens the room in this folder."""
        options = ["--address", self.address, "--port", str(port or self.port)]
        return [sys.executable, "-c", OPEN_ROOM, str(self.folder), "room", "open", *options]

    def start(self) -> None:
        """Open the room; it is open when this returns."""
        self._process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        printed = [self._process.stdout.readline().split() for _ in range(4)]
        self.code = printed[0][-1]
        self.url, _, self.instructor = printed[3][-1].partition("/instructor#")


@pytest.fixture(scope="module")  # meanwhile, this process cannot run another event loop
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = program(playwright.chromium.executable_path)
        if not path:
            pytest.skip(f"no browser: {HOW}")
        with playwright.chromium.launch(executable_path=path) as launched:
            yield launched


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """Return a function that creates visitors."""
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
def room(tmp_path: Path) -> Iterator[OpenedRoom]:
    opened = OpenedRoom(tmp_path / "the room")
    yield opened
    opened.kill()
