"""A seat sends what `join` announced and nothing else, disturbs no cell, and is deleted when its student leaves."""

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
from labkit import cli
from labkit.display import results
from labkit.display.measured import Measured
from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED, Results
from labkit.doctor import checks
from labkit.exercises import classroom_link
from labkit.exercises.session import open_lab
from labkit.system import files, processes
from labkit.system.errors import LabError
from labkit_classroom.board import protocol, seat, sender
from labkit_classroom.board.sender import Sender

TOKEN = f"1.{'x' * 32}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A student's folder, in which lab 07 has been begun."""
    made = tmp_path / "my-labs"
    monkeypatch.setattr(results, "WORK", made / "work")
    monkeypatch.setattr(seat, "start_sender", lambda folder: None)
    lab = Results("07")
    lab.exercise(1, PASSED, hint=2)
    lab.exercise(2, NOT_YET, hint=1)
    lab.exercise(3, NOT_ATTEMPTED)
    return made


@pytest.fixture
def stranger():
    """A server that answers as a test says, in place of a board."""

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
        assert [(one["exercise"], one["verdict"], one["hint"]) for one in shown["exercises"]] == [
            (1, PASSED, 2),
            (2, NOT_YET, 1),
        ]
        assert shown["doctor"] == [{"lab": "07 Horovod", "status": "fail", "because": ["compiler"]}]

    def test_it_names_all_that_is_sent_and_what_the_board_knows(self, board, folder, capsys):
        joined(board, folder)
        printed = capsys.readouterr().out
        for word in ("seat's name", "verdict", "hints", "minute", "opened last", "guesses", "cores", "hand", "doctor"):
            assert word in printed
        assert "The board knows which seat measured a result" in printed

    def test_nothing_of_this_machine_or_user_is_sent(self, board, folder):
        joined(board, folder)
        sent = json.dumps(seat.state(folder, seat.membership(folder)))
        for word in (str(folder), os.environ.get("USER", "root"), os.uname().nodename, Path.home().name):
            assert f"/{word}" not in sent
        protocol.read(sent.encode(), protocol.STATE)

    def test_the_token_is_this_users_alone(self, board, folder):
        joined(board, folder)
        assert (folder / seat.MEMBERSHIP).stat().st_mode & 0o077 == 0

    def test_before_joining_nothing_is_sent_or_started(self, folder, monkeypatch):
        monkeypatch.setattr(seat, "ask", lambda *_: pytest.fail("something was sent"))
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
        assert not Sender(folder).step()
        student_side.hand(folder=folder)
        classroom_link.open_lab(folder, "07")
        assert classroom_link.results(folder) == ({}, "")
        with pytest.raises(LabError, match="you are in no room"):
            student_side.leave(folder)

    @pytest.mark.parametrize(
        "address",
        ["", "ftp://x", "http://", "http://x/path", "//x", "http://a@b", "http://\x1bx", "http://" + "a" * 999],
    )
    def test_an_address_that_is_none(self, folder, address):
        with pytest.raises(LabError, match="an address is written like") as error:
            student_side.join(address, "AAAAAA", folder=folder)
        assert str(error.value).isprintable()

    @pytest.mark.parametrize("address", ["http://x:port", "http://127.0.0.1:9", "http://no-such-host.invalid"])
    def test_a_board_that_is_not_there(self, folder, address):
        with pytest.raises(LabError, match="does not answer"):
            student_side.join(address, "AAAAAA", folder=folder)
        assert seat.membership(folder) is None

    def test_a_wrong_code(self, board, folder):
        with pytest.raises(LabError, match="this is not the room's code"):
            student_side.join(board.url, "AAAAAA", folder=folder)

    def test_a_damaged_file_is_named(self, folder):
        for content in ("{", "[]", '{"address": 5}'):
            (folder / seat.MEMBERSHIP).write_text(content)
            for ask in (student_side.leave, student_side.hand, lambda folder: Sender(folder).step()):
                with pytest.raises(LabError, match="is damaged: delete it"):
                    ask(folder=folder)

    def test_a_seat_that_cannot_be_kept_is_deleted(self, board, folder, monkeypatch):
        def full(*_) -> None:
            raise files.NotWritten("the disk is full")

        monkeypatch.setattr(files, "write", full)
        with pytest.raises(files.NotWritten):
            joined(board, folder)
        assert board.shown()["people"] == 0
        assert seat.membership(folder) is None

    @pytest.mark.parametrize("place", ["file", "long", "none"])
    @pytest.mark.parametrize(
        "command", [["join", "http://127.0.0.1:9", "AAAAAA"], ["leave"]], ids=lambda given: given[0]
    )
    def test_a_command_that_cannot_be_done_is_one_line_and_exit_code_2(
        self, tmp_path, monkeypatch, capsys, command, place
    ):
        (tmp_path / "file").write_text("")
        folder = str(tmp_path / ("x" * 5000 if place == "long" else place))
        monkeypatch.setattr("sys.argv", ["lab", *command, "--folder", folder])
        with pytest.raises(SystemExit) as left:
            cli.main()
        told = capsys.readouterr().err
        assert (left.value.code, told.count("\n"), "Traceback" in told) == (2, 1, False)


class TestAnswers:
    """Whatever answers in place of a board is one line, and nothing is kept."""

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
    def test_odd_content(self, stranger, folder, body, status):
        stranger.status, stranger.names, stranger.body = status, (protocol.ANSWER_HEADER,), body
        with pytest.raises(LabError) as error:
            student_side.join(stranger.url, "AAAAAA", folder=folder)
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 500
        assert seat.membership(folder) is None

    def test_a_login_page_is_not_a_board_and_ends_no_membership(self, board, stranger, folder):
        with pytest.raises(LabError, match="is not a board"):
            student_side.join(stranger.url, "AAAAAA", folder=folder)
        joined(board, folder)
        seat.keep(folder, seat.membership(folder) | {"address": stranger.url})
        with pytest.raises(LabError, match="is not a board"):
            Sender(folder).step()
        with pytest.raises(LabError, match="You are still in"):
            student_side.leave(folder)
        assert seat.membership(folder)

    def test_what_is_sent_stays_the_students_choice(self, stranger, folder):
        more = {"doctor": [], "address": "http://x", "ca": "/x"}
        stranger.status, stranger.names = 201, (protocol.ANSWER_HEADER,)
        stranger.body = json.dumps({"seat": "A", "token": TOKEN} | more).encode()
        student_side.join(stranger.url, "AAAAAA", folder=folder)
        member = seat.membership(folder)
        assert (member["seat"], member["token"]) == ("A", TOKEN)
        assert (member["address"], member["doctor"], member["ca"]) == (stranger.url, None, "")


class TestSending:
    def test_what_changes_is_sent_and_what_does_not_is_not(self, board, folder, monkeypatch):
        joined(board, folder)
        sending = Sender(folder)
        sending.step()
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        asked = []
        monkeypatch.setattr(seat, "ask", lambda *args: asked.append(args))
        assert sending.step()
        assert asked == []
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

    def test_it_ends_when_the_board_no_longer_knows_the_seat(self, board, folder):
        joined(board, folder)
        board.order("DELETE", "seats/1")
        assert not Sender(folder).step()
        assert seat.membership(folder) is None

    def test_a_seat_that_was_taken_since_is_not_forgotten(self, board, folder, monkeypatch):
        joined(board, folder)
        new = f"2.{'n' * 20}"

        def ask(*_) -> seat.Answer:
            seat.keep(folder, seat.membership(folder) | {"token": new})  # ./lab leave and ./lab join
            return seat.Answer(403, None)

        monkeypatch.setattr(seat, "ask", ask)
        assert not Sender(folder).step()
        assert seat.membership(folder)["token"] == new

    def test_guesses_and_their_results_are_sent_and_questions_are_not(self, board, folder):
        joined(board, folder)
        Results("03").guess(1, "what I typed", 2, unit="×")
        Results("03").compare_guess(1, Measured(1.31, unit="×"))
        small = Results("07", quick=True)
        small.guess(1, "", "memory", choices=("memory",))
        small.compare_guess(1, "arithmetic")
        assert Sender(folder).step()
        (stored,) = board.seats()
        assert stored.state["guesses"] == [guessed(2, 1.31), guessed("memory", None, "07")], "no result of a small run"
        assert "typed" not in str(stored.state)

    def test_files_that_were_edited_send_what_is_right_in_them(self, board, folder):
        joined(board, folder)
        path = results.WORK / "results-07.json"
        content = json.loads(path.read_text())
        content["exercises"] |= {"x": PASSED, "0": PASSED, "99": PASSED, "9" * 5000: PASSED, "3": "brilliant"}
        content["progress"] |= {"1": {"hint": 99, "minute": "yesterday"}}
        texts = {"question": "", "guess": "", "here": ""}
        values = {"1": [1e300, 2], "2": ["x" * 41, None], "3": [2, 1], "x": [1, 1], "99": [1, 1]}
        content["guesses"] = {number: texts | {"values": value} for number, value in values.items()}
        path.write_text(json.dumps(content))
        (folder / classroom_link.OPENED).write_text('{"lab": ["x"]}')
        assert Sender(folder).step()
        (stored,) = board.seats()
        assert [(done["exercise"], done["verdict"]) for done in stored.state["exercises"]] == [(2, NOT_YET)]
        assert stored.state["guesses"] == [guessed(2, 1, "07", 3)]
        assert stored.state["opened"] is None

    @pytest.mark.parametrize("content", [b"", b'{"lab": "07", "exer', b"[" * 50_000, b"\xff\xfe", b"null"])
    def test_a_file_that_is_half_written_is_sent_when_it_is_whole(self, board, folder, content):
        joined(board, folder)
        sending = Sender(folder)
        path = results.WORK / "results-07.json"
        whole = path.read_bytes()
        for bytes_, passed in ((content, 0), (whole, 1)):
            path.write_bytes(bytes_)
            assert sending.step()
            assert board.shown()["seats"][0]["passed"] == passed

    @pytest.mark.slow
    def test_a_process_of_its_own_sends_and_opening_a_lab_starts_it_again(self, board, folder, monkeypatch):
        joined(board, folder)
        monkeypatch.setattr(results, "WORK", Path("work"))
        monkeypatch.chdir(folder)

        def senders() -> list[psutil.Process]:
            return processes.find(lambda one: str(folder.resolve()) in one.cmdline())

        try:
            open_lab("00", {"QUICK": True})
            assert processes.wait_until(lambda: board.shown()["seats"][0]["passed"] == 1, 20)
            processes.kill(senders())  # as a restart of the machine does
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

    def test_opening_a_lab_goes_on_whatever_fails(self, board, folder, monkeypatch):
        def no_process(*_, **__) -> None:
            raise BlockingIOError("no more processes")

        classroom_link.open_lab(folder / "nowhere", "03")
        (folder / "work" / "results-07.json").unlink()
        joined(board, folder)
        monkeypatch.setattr(subprocess, "Popen", no_process)
        classroom_link.open_lab(folder, "03")
        Sender(folder).step()
        assert board.shown()["seats"][0]["at"] == "03 · opened"

    def test_it_goes_on_after_errors_and_asks_a_dead_board_ever_more_rarely(self, folder, monkeypatch):
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
    def test_it_goes_up_and_down_at_the_exercise_that_was_checked_last(self, board, folder, capsys):
        joined(board, folder)
        capsys.readouterr()
        for hand_at, told in (("07 · 2", "Your hand is up, at lab 07, exercise 2"), ("", "Your hand is down")):
            student_side.hand(folder=folder)
            assert told in capsys.readouterr().out
            assert board.shown()["seats"][0]["hand_at"] == hand_at
        student_side.hand("03", 1, folder=folder)
        assert board.shown()["seats"][0]["hand_at"] == "03 · 1"

    def test_without_a_board_it_is_one_line(self, board, folder):
        joined(board, folder)
        with pytest.raises(LabError, match=r"such as hand\('07', 2\)"):
            student_side.hand("seven", 2, folder=folder)
        board.stop()
        with pytest.raises(LabError, match="does not answer"):
            student_side.hand(folder=folder)


class TestMoving:
    def test_a_board_at_another_address_keeps_the_seats(self, board, folder, capsys):
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

    def test_another_room_is_no_move(self, board, folder):
        joined(board, folder)
        with pytest.raises(LabError, match=r"leave first.*\.room\.json"):
            student_side.join("http://127.0.0.1:9", "AAAAAA", folder=folder)
        assert seat.membership(folder)["address"] == board.url


class TestLeave:
    def test_it_deletes_here_and_there(self, board, folder, capsys):
        joined(board, folder)
        student_side.leave(folder)
        assert board.shown()["people"] == 0
        assert not (folder / seat.MEMBERSHIP).exists()
        assert "deleted" in capsys.readouterr().out

    def test_while_the_board_is_down_one_is_still_in_and_it_can_be_tried_again(self, board, folder):
        joined(board, folder)
        board.stop()
        with pytest.raises(LabError, match=r"does not answer.*You are still in. Without .*\.room\.json"):
            student_side.leave(folder)
        board.start()
        student_side.leave(folder)
        assert board.shown()["people"] == 0

    def test_a_seat_that_the_instructor_has_removed_can_be_left(self, board, folder):
        joined(board, folder)
        board.order("DELETE", "seats/1")
        student_side.leave(folder)
        assert seat.membership(folder) is None
