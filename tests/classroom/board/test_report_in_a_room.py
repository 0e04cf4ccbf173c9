"""`lab report` has the room's results next to one's own, as the board shows them, and is made without the board too."""

import json

import pytest
from room_board import guessed

from labkit import cli
from labkit_classroom.board import seat
from labkit_classroom.board.protocol import FEW


def report(monkeypatch, folder) -> str:
    """Make the report of a student's folder; return its text."""
    monkeypatch.setattr("sys.argv", ["lab", "report", "--folder", str(folder), "--out", str(folder / "report.html")])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
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


def test_the_rooms_results_are_next_to_ones_own_as_soon_as_the_board_shows_them(student, board, monkeypatch):
    seat.join(board.url, board.code, folder=student)
    for here in range(1, FEW + 1):
        page = report(monkeypatch, student)
        assert "they are shown from five machines on" in page
        assert '<th scope="col">the room</th>' not in page
        board.join().put(guesses=[guessed(2, here)])
    page = report(monkeypatch, student)
    assert '<td data-head="here">1.31×</td><td data-head="the room">median 3× (1 to 5), 5 machines</td>' in page


def test_outside_a_room_nothing_is_asked(student, monkeypatch):
    monkeypatch.setattr(seat, "ask", lambda *_: pytest.fail("something was sent"))
    assert "room" not in report(monkeypatch, student).partition("</style>")[2]


def test_without_the_board_the_report_says_so_and_has_the_rest(student, board, monkeypatch):
    seat.join(board.url, board.code, folder=student)
    board.stop()
    page = report(monkeypatch, student)
    assert "The room&#39;s results are missing: the board at" in page
    assert "1.31×" in page


@pytest.mark.parametrize("content", [None, {}, {"results": [5]}, {"results": [{"lab": "03", "number": 1}]}])
def test_an_answer_of_something_else_is_reported(student, board, monkeypatch, content):
    seat.join(board.url, board.code, folder=student)
    monkeypatch.setattr(seat, "ask", lambda *_: seat.Answer(200, content))
    page = report(monkeypatch, student)
    assert "is not a board" in page
    assert "1.31×" in page
