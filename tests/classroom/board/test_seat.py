"""A seat sends only what `join` announced, never delays a cell, and is deleted when the student leaves."""

import http.server
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from room_board import Board, guessed

import labkit_classroom as student_side
from labkit.display import results
from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED, Results
from labkit.doctor import checks
from labkit.exercises import classroom_link
from labkit.exercises.session import open_lab
from labkit.measure.figures import Measured
from labkit.system import processes
from labkit.system.errors import LabError
from labkit_classroom.board import protocol, seat, sender
from labkit_classroom.board.sender import Sender

TOKEN = f"1.{'x' * 32}"
START_SENDER = seat.start_sender


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A student's folder with a started lab 07."""
    folder = tmp_path / "my-labs"
    monkeypatch.setattr(results, "WORK", folder / "work")
    monkeypatch.setattr(seat, "start_sender", lambda folder: None)
    lab = Results("07")
    lab.exercise(1, PASSED, hint=2)
    lab.exercise(2, NOT_YET, hint=1)
    lab.exercise(3, NOT_ATTEMPTED)
    return folder


@pytest.fixture
def stranger():
    """A server that is not a board, with responses set by the test."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(self.server.status)
            self.send_header("Location", "/elsewhere")
            for name in self.server.names:
                self.send_header(name, "1")
            self.end_headers()
            self.wfile.write(self.server.body)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        server.status, server.names, server.body = 403, (), b"<html>Please log in</html>"
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def joined(board, folder, **options) -> None:
    student_side.join(board.url, board.code, folder=folder, **options)


class TestJoin:
    def test_it_prints_exactly_what_is_sent(self, board, folder, capsys, monkeypatch):
        compiler = SimpleNamespace(name="compiler", status="fail", text="/home/ada/no g++")
        verdict = SimpleNamespace(lab="07 Horovod", status="fail", because=[compiler])
        monkeypatch.setattr(checks, "examine", lambda: SimpleNamespace(verdicts=[verdict]))
        joined(board, folder, seat="B4", check=True)
        printed = capsys.readouterr().out
        lines = [line.split(": ", 1) for line in printed.splitlines() if line.startswith("  ")]
        shown = {key.strip(): json.loads(value) for key, value in lines}
        Sender(folder).step()
        (stored,) = board.seats()
        assert stored.state == shown
        assert stored.name == "B4"
        assert [(entry["exercise"], entry["verdict"], entry["hint"]) for entry in shown["exercises"]] == [
            (1, PASSED, 2),
            (2, NOT_YET, 1),
        ]
        assert shown["doctor"] == [{"lab": "07 Horovod", "status": "fail", "because": ["compiler"]}]

    def test_it_lists_everything_sent_and_what_the_board_knows(self, board, folder, capsys):
        joined(board, folder)
        printed = capsys.readouterr().out
        for word in ("seat's name", "verdict", "hints", "minute", "opened last", "guesses", "hand", "doctor"):
            assert word in printed
        assert "The board knows which seat measured a result" in printed

    def test_nothing_about_this_machine_or_user_is_sent(self, board, folder):
        joined(board, folder)
        sent = json.dumps(seat.state(folder, seat.membership(folder)))
        for word in (str(folder), os.environ.get("USER", "root"), os.uname().nodename, Path.home().name):
            assert f"/{word}" not in sent
        protocol.read(sent.encode(), protocol.STATE)

    def test_only_this_user_can_read_the_token(self, board, folder):
        joined(board, folder)
        assert (folder / seat.MEMBERSHIP).stat().st_mode & 0o077 == 0

    def test_nothing_is_sent_or_started_before_joining(self, folder, monkeypatch):
        monkeypatch.setattr(seat, "ask", lambda *_: pytest.fail("something was sent"))
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
        assert not Sender(folder).step()
        student_side.hand(folder=folder)
        classroom_link.open_lab(folder, "07")
        assert classroom_link.results(folder) == ({}, "")
        with pytest.raises(LabError, match="you have not joined a room"):
            student_side.leave(folder)

    @pytest.mark.parametrize(
        "address",
        ["", "ftp://x", "http://", "http://x/path", "//x", "http://a@b", "http://\x1bx", "http://" + "a" * 999],
    )
    def test_an_invalid_address_is_refused(self, folder, address):
        with pytest.raises(LabError, match="an address looks like") as error:
            student_side.join(address, "AAAAAA", folder=folder)
        assert str(error.value).isprintable()

    @pytest.mark.parametrize("address", ["http://x:port", "http://127.0.0.1:9", "http://no-such-host.invalid"])
    def test_an_unreachable_board_is_reported(self, folder, address):
        with pytest.raises(LabError, match="does not answer"):
            student_side.join(address, "AAAAAA", folder=folder)
        assert seat.membership(folder) is None

    def test_a_wrong_code_is_reported(self, board, folder):
        with pytest.raises(LabError, match="this is not the room's code"):
            student_side.join(board.url, "AAAAAA", folder=folder)

    def test_a_damaged_file_is_reported(self, folder):
        for content in ("{", "[]", '{"address": 5}'):
            (folder / seat.MEMBERSHIP).write_text(content)
            for action in (student_side.leave, student_side.hand, lambda folder: Sender(folder).step()):
                with pytest.raises(LabError, match="is damaged: delete it"):
                    action(folder=folder)


class TestAnswers:
    """Responses that are not from a board give a one-line error, and nothing is stored."""

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xff\xfe",
            b"[" * 200_000,
            b'{"seat": "A"}',
            b'{"seat": ["A"], "token": "%s"}' % TOKEN.encode(),
            b'{"seat": "%s", "token": "%s"}' % (b"A" * 25, TOKEN.encode()),
            b'{"seat": "A", "token": "%s\\r\\nX-More: 1"}' % TOKEN.encode(),
            b'{"error": "\\u001b[2J\\u202e\\n%s"}' % (b"x" * 5000),
            b'{"error": 5}',
        ],
        ids=lambda body: str(body)[:30],
    )
    @pytest.mark.parametrize("status", [201, 302, 403])
    def test_unexpected_content_is_refused(self, stranger, folder, body, status):
        stranger.status, stranger.names, stranger.body = status, (protocol.ANSWER_HEADER,), body
        with pytest.raises(LabError) as error:
            student_side.join(stranger.url, "AAAAAA", folder=folder)
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 500
        assert seat.membership(folder) is None

    def test_a_login_page_is_not_taken_for_a_board(self, board, stranger, folder):
        with pytest.raises(LabError, match="is not a board"):
            student_side.join(stranger.url, "AAAAAA", folder=folder)
        joined(board, folder)
        seat.save(folder, seat.membership(folder) | {"address": stranger.url})
        with pytest.raises(LabError, match="is not a board"):
            Sender(folder).step()
        with pytest.raises(LabError, match="You are still in the room"):
            student_side.leave(folder)
        assert seat.membership(folder)

    def test_the_board_cannot_change_what_is_sent(self, stranger, folder):
        more = {"doctor": [], "address": "http://x", "ca": "/x"}
        stranger.status, stranger.names = 201, (protocol.ANSWER_HEADER,)
        stranger.body = json.dumps({"seat": "A", "token": TOKEN} | more).encode()
        student_side.join(stranger.url, "AAAAAA", folder=folder)
        member = seat.membership(folder)
        assert (member["seat"], member["token"]) == ("A", TOKEN)
        assert (member["address"], member["doctor"], member["ca"]) == (stranger.url, None, "")


class TestSending:
    def test_an_unchanged_state_is_not_sent_again(self, board, folder, monkeypatch):
        joined(board, folder)
        sending = Sender(folder)
        sending.step()
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        requests_sent = []
        monkeypatch.setattr(seat, "ask", lambda *args: requests_sent.append(args))
        assert sending.step()
        assert requests_sent == []
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before, "it writes nothing"

    def test_after_an_outage_the_last_state_arrives(self, board, folder):
        joined(board, folder)
        sending = Sender(folder)
        board.stop()
        for verdict in (NOT_YET, PASSED):
            Results("07").exercise(2, verdict)
            with pytest.raises(LabError):
                sending.step()
        board.start()
        assert sending.step()
        assert board.shown()["seats"][0]["passed"] == 2

    def test_it_ends_when_the_seat_is_unknown_to_the_board(self, board, folder):
        joined(board, folder)
        board.order("DELETE", "seats/1")
        assert not Sender(folder).step()
        assert seat.membership(folder) is None

    def test_guesses_and_results_are_sent_without_questions(self, board, folder):
        joined(board, folder)
        Results("03").guess(1, "what I typed", 2, unit="×")
        Results("03").compare_guess(1, Measured(1.31, unit="×"))
        small = Results("07", quick=True)
        small.guess(1, "", "memory", choices=("memory",))
        small.compare_guess(1, "arithmetic")
        assert Sender(folder).step()
        (stored,) = board.seats()
        assert stored.state["guesses"] == [guessed(2, 1.31), guessed("memory", None, "07")], (
            "results of small runs are not sent"
        )
        assert "typed" not in str(stored.state)

    def test_only_valid_parts_of_edited_files_are_sent(self, board, folder):
        joined(board, folder)
        path = results.WORK / "results-07.json"
        content = json.loads(path.read_text())
        content["exercises"] |= {"x": PASSED, "0": PASSED, "99": PASSED, "9" * 5000: PASSED, "3": "brilliant"}
        content["progress"] |= {"1": {"hint": 99, "minute": "yesterday"}}
        entry = {"question": "", "guess": "", "here": ""}
        values = {"1": [1e300, 2], "2": ["x" * 41, None], "3": [2, 1], "x": [1, 1], "99": [1, 1]}
        content["guesses"] = {number: entry | {"values": value} for number, value in values.items()}
        path.write_text(json.dumps(content))
        (folder / classroom_link.OPENED).write_text('{"lab": ["x"]}')
        assert Sender(folder).step()
        (stored,) = board.seats()
        assert [(entry["exercise"], entry["verdict"]) for entry in stored.state["exercises"]] == [(2, NOT_YET)]
        assert stored.state["guesses"] == [guessed(2, 1, "07", 3)]
        assert stored.state["opened"] is None

    @pytest.mark.slow
    def test_a_separate_process_sends_and_opening_a_lab_restarts_it(self, board, folder, monkeypatch):
        joined(board, folder)
        monkeypatch.setattr(results, "WORK", Path("work"))
        monkeypatch.setattr(seat, "start_sender", START_SENDER)
        monkeypatch.chdir(folder)

        def senders() -> list[psutil.Process]:
            return processes.find(lambda process: str(folder.resolve()) in process.cmdline())

        try:
            open_lab("00", {"QUICK": True})
            assert processes.wait_until(lambda: board.shown()["seats"][0]["passed"] == 1, 20)
            processes.kill(senders())  # as a reboot does
            Results("07").exercise(2, PASSED)
            open_lab("00", {"QUICK": True})
            open_lab("00", {"QUICK": True})  # in a second JupyterLab
            assert processes.wait_until(lambda: board.shown()["seats"][0]["passed"] == 2, 20)
            assert processes.wait_until(lambda: len(senders()) == 1, 20)
            student_side.leave(folder)
            assert processes.wait_until(lambda: not senders(), 10)
            assert board.shown()["people"] == 0
        finally:
            processes.kill(senders())

    def test_opening_a_lab_survives_sender_failures(self, board, folder, monkeypatch):
        def no_process(*_, **__) -> None:
            raise BlockingIOError("no more processes")

        classroom_link.open_lab(folder / "nowhere", "03")
        (folder / "work" / "results-07.json").unlink()
        joined(board, folder)
        monkeypatch.setattr(seat, "start_sender", START_SENDER)
        monkeypatch.setattr(subprocess, "Popen", no_process)
        classroom_link.open_lab(folder, "03")
        Sender(folder).step()
        assert board.shown()["seats"][0]["at"] == "03 · opened"

    def test_it_retries_with_backoff(self, folder, monkeypatch):
        steps = [*[LabError("down"), OSError("disk")] * 9, True, True, False]
        pauses = []

        def step(self) -> bool:
            result = steps.pop(0)
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(Sender, "step", step)
        monkeypatch.setattr(sender.random, "uniform", lambda low, high: high)
        monkeypatch.setattr(time, "sleep", pauses.append)
        Sender(folder).run()
        assert not steps
        assert pauses[:18] == sorted(pauses[:18])
        assert (pauses[0], pauses[17], pauses[18]) == (1, sender.MAX_PAUSE_S, sender.LOOK_INTERVAL_S)


class TestHand:
    def test_it_is_raised_and_lowered_at_the_last_checked_exercise(self, board, folder, capsys):
        joined(board, folder)
        capsys.readouterr()
        for hand_at, message in (("07 · 2", "Your hand is up at lab 07, exercise 2"), ("", "Your hand is down")):
            student_side.hand(folder=folder)
            assert message in capsys.readouterr().out
            assert board.shown()["seats"][0]["hand_at"] == hand_at

    def test_an_unreachable_board_is_reported(self, board, folder):
        joined(board, folder)
        board.stop()
        with pytest.raises(LabError, match="does not answer"):
            student_side.hand(folder=folder)


class TestMoving:
    def test_seats_follow_a_board_to_a_new_address(self, board, folder, capsys):
        joined(board, folder, seat="B4")
        board.stop()
        moved = Board(board.path)
        try:
            typed = moved.code.lower()[:3] + "-" + moved.code.lower()[3:]
            student_side.join(moved.url, typed, folder=folder)
            assert f"sent to {moved.url} from now on" in capsys.readouterr().out
            assert Sender(folder).step()
            (row,) = moved.shown()["seats"]
            assert (row["seat"], row["passed"]) == ("B4", 1)
        finally:
            moved.stop()

    def test_a_different_code_is_a_different_room(self, board, folder):
        joined(board, folder)
        with pytest.raises(LabError, match=r"leave first.*\.room\.json"):
            student_side.join("http://127.0.0.1:9", "AAAAAA", folder=folder)
        assert seat.membership(folder)["address"] == board.url


class TestLeave:
    def test_it_deletes_the_seat_on_both_sides(self, board, folder, capsys):
        joined(board, folder)
        student_side.leave(folder)
        assert board.shown()["people"] == 0
        assert not (folder / seat.MEMBERSHIP).exists()
        assert "deleted" in capsys.readouterr().out

    def test_leaving_can_be_retried_while_the_board_is_down(self, board, folder):
        joined(board, folder)
        board.stop()
        with pytest.raises(LabError, match=r"does not answer.*You are still in the room. Deleting .*\.room\.json"):
            student_side.leave(folder)
        board.start()
        student_side.leave(folder)
        assert board.shown()["people"] == 0

    def test_a_seat_removed_by_the_instructor_can_be_left(self, board, folder):
        joined(board, folder)
        board.order("DELETE", "seats/1")
        student_side.leave(folder)
        assert seat.membership(folder) is None
