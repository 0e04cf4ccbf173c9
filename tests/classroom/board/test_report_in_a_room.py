"""`lab report` sets the room's figures beside one's own, only for who sends figures, and goes on without the board."""

import json

import pytest

from labkit import cli
from labkit.display.measured import Measured
from labkit.display.results import row
from labkit_classroom.board import seat


def report(monkeypatch, folder):
    """Make the report of a student's folder, and give its text."""
    monkeypatch.setattr("sys.argv", ["lab", "report", "--folder", str(folder), "--out", str(folder / "report.html")])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    return (folder / "report.html").read_text()


@pytest.fixture
def student(tmp_path, board, monkeypatch):
    """Give the folder of a student with a result, and a board that has the figures of five machines."""
    folder = tmp_path / "my labs"
    (folder / "work").mkdir(parents=True)
    table = {"what": "speed", "rows": [row("CNN", "4.6×", Measured(2.1, unit="×"), "")], "notes": []}
    about = {"lab": "07", "quick": False, "when": "2026-01-31 12:00", "on": {"cpu": "A CPU", "cores": 2}}
    (folder / "work" / "results-07.json").write_text(json.dumps(about | {"table": table}))
    for value in (1, 2, 3, 4, 5):
        figures = [{"name": "CNN", "value": value, "unit": "×"}]
        assert board.send_figures({"lab": "07", "cores": 2, "isa": [], "figures": figures}).status_code == 204
    monkeypatch.setattr(seat, "start_sender", lambda folder: None)
    return folder


def test_who_sends_figures_sees_the_rooms(student, board, monkeypatch):
    seat.join(board.url, board.code, figures=True, folder=student)
    assert "3× (1 to 5, 5 machines)" in report(monkeypatch, student)


def test_a_figure_that_names_its_cores_finds_those_of_machines_with_others(student, board, monkeypatch):
    """Each machine's own name goes through the sender, so that the test holds whatever is made of it there."""
    folder, ranks = student.parent / "other machines", (2, 4, 8, 16, 64)
    (folder / "work").mkdir(parents=True)
    path, sent = folder / "work" / "results-07.json", "strong: this CNN, {0} ranks on {0} cores"
    kept = json.loads((student / "work" / path.name).read_text())
    for n_ranks in ranks:
        kept["table"]["rows"] = [row(sent.format(n_ranks), "", Measured(100 - n_ranks, unit="%"), "")]
        path.write_text(json.dumps(kept))
        (message,) = seat.closing_figures(folder)
        assert board.send_figures(message).status_code == 204
    alone = row("of no other machine", "", Measured(3, unit="%"), "")
    kept["table"]["rows"] = [row(sent.format(6), "", Measured(94, unit="%"), ""), alone]
    (student / "work" / path.name).write_text(json.dumps(kept))
    seat.join(board.url, board.code, figures=True, folder=student)
    page = report(monkeypatch, student)
    assert page.count("5 machines)") == 1
    assert "92% (36 to 98, 5 machines)" in page
    assert "strong: this CNN, 6 ranks on 6 cores" in page  # one's own name stays


@pytest.mark.parametrize("joined", [True, False])
def test_who_sends_none_asks_nobody(student, board, monkeypatch, joined):
    if joined:
        seat.join(board.url, board.code, figures=False, folder=student)
    asked = []
    monkeypatch.setattr(seat, "ask", lambda *message: asked.append(message))
    assert "room" not in report(monkeypatch, student).partition("</style>")[2]
    assert not asked


def test_without_the_board_the_report_says_so_and_has_the_rest(student, board, monkeypatch):
    seat.join(board.url, board.code, figures=True, folder=student)
    board.stop()
    page = report(monkeypatch, student)
    assert "The room&#39;s figures are not here: the board at" in page
    assert "2.10×" in page


def test_an_answer_of_something_else_is_told(student, board, monkeypatch):
    seat.join(board.url, board.code, figures=True, folder=student)
    monkeypatch.setattr(seat, "ask", lambda *message: seat.Answer(200, {"figures": "none"}))
    page = report(monkeypatch, student)
    assert "answer can&#39;t be read" in page
    assert "2.10×" in page
