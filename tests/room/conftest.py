"""A board for the tests of the room."""

import pytest
from room_board import Board


@pytest.fixture
def board(tmp_path):
    opened = Board(tmp_path / "board.sqlite")
    yield opened
    opened.stop()
