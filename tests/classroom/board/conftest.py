"""Fixtures: boards in a thread and in a process."""

import pytest
from room_board import Board, BoardProcess


@pytest.fixture
def board(tmp_path):
    opened = Board(tmp_path / "board.sqlite")
    yield opened
    opened.stop()


@pytest.fixture
def board_process(tmp_path):
    opened = BoardProcess(tmp_path / "room")
    yield opened
    opened.kill()
