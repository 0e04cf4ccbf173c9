"""`lab report` shows the room's results next to the student's, and also works without the board."""

import json

import pytest
from lab_command import run_lab
from room_board import guessed

from labkit_classroom.board import seat
from labkit_classroom.board.protocol import FEW


def report(folder) -> str:
    """Make the report of a student's folder; return its text."""
    assert run_lab("report", "--folder", folder, "--out", folder / "report.html") == 0
    return (folder / "report.html").read_text()


@pytest.fixture
def student(tmp_path, monkeypatch):
    """The folder of a student with a guess and a result."""
    folder = tmp_path / "my labs"
    (folder / "work").mkdir(parents=True)
    about = {"lab": "03", "quick": False, "when": "2026-01-31 12:00", "on": {"cpu": "A CPU", "cores": 2}}
    guess = {"question": "oneDNN against Eigen", "guess": "2×", "here": "1.31×", "values": [2, 1.31]}
    (folder / "work" / "results-03.json").write_text(json.dumps(about | {"guesses": {"1": guess}}))
    monkeypatch.setattr(seat, "start_sender", lambda folder: None)
    return folder


def test_the_rooms_results_appear_once_the_board_shows_them(student, board):
    seat.join(board.url, board.code, folder=student)
    for here in range(1, FEW + 1):
        page = report(student)
        assert "they appear once five machines have measured" in page
        assert '<th scope="col">the room</th>' not in page
        board.join().put(guesses=[guessed(2, here)])
    page = report(student)
    assert '<td data-head="measured">1.31×</td><td data-head="the room">median 3× (1 to 5), 5 machines</td>' in page


def test_outside_a_room_nothing_is_requested(student, monkeypatch):
    monkeypatch.setattr(seat, "ask", lambda *_: pytest.fail("something was sent"))
    assert "room" not in report(student).partition("</style>")[2]


def test_an_unreachable_board_is_reported_and_the_rest_is_complete(student, board):
    seat.join(board.url, board.code, folder=student)
    board.stop()
    page = report(student)
    assert "The room&#39;s results are missing: the board at" in page
    assert "1.31×" in page


@pytest.mark.parametrize("content", [None, {}, {"results": [5]}, {"results": [{"lab": "03", "number": 1}]}])
def test_an_invalid_response_is_reported(student, board, monkeypatch, content):
    seat.join(board.url, board.code, folder=student)
    monkeypatch.setattr(seat, "ask", lambda *_: seat.Answer(200, content))
    page = report(student)
    assert "is not a board" in page
    assert "1.31×" in page
