"""A seat sends what it has said it sends and nothing else, disturbs no cell, and is deleted when its student leaves."""

import http.server
import json
import os
import subprocess
import threading
from pathlib import Path

import psutil
import pytest
from room_board import Board, guessed

import labkit_classroom as student_side
from labkit.display import results
from labkit.display.measured import Measured
from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED, Results
from labkit.exercises import room
from labkit.exercises.opening import open_lab
from labkit.system import files, processes
from labkit.system.errors import LabError
from labkit.system.load import Others
from labkit_classroom.board import protocol, seat, sender
from labkit_classroom.board.sender import Sender


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
def portal():
    """What answers in place of a board, such as a guest network's log-in page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(403)
            self.end_headers()
            self.wfile.write(b"<html>Please log in</html>")

        do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def joined(board, folder, **options) -> None:
    student_side.join(board.url, board.code, folder=folder, **options)


class TestJoin:
    def test_it_prints_exactly_what_is_sent(self, board, folder, capsys):
        joined(board, folder, seat="B4")
        printed = capsys.readouterr().out
        shown = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
        Sender(folder).step()
        (kept,) = board.seats()
        assert kept.state == shown
        assert kept.name == "B4"
        assert {one["exercise"]: one["verdict"] for one in shown["exercises"]} == {1: PASSED, 2: NOT_YET}
        assert [one["hint"] for one in shown["exercises"]] == [2, 1]

    def test_nothing_of_this_machine_or_user_is_sent(self, board, folder):
        joined(board, folder)
        sent = json.dumps(seat.state(folder, seat.membership(folder)))
        for word in (str(folder), os.environ.get("USER", "root"), os.uname().nodename, Path.home().name):
            assert f"/{word}" not in sent
        protocol.read(sent.encode(), protocol.STATE)

    def test_it_names_all_that_is_ever_sent(self, board, folder, capsys):
        joined(board, folder)
        printed = capsys.readouterr().out
        for word in ("seat's name", "verdict", "hints", "minute", "opened last", "guesses", "hand", "doctor"):
            assert word in printed

    def test_the_token_is_this_users_alone(self, board, folder):
        joined(board, folder)
        assert (folder / seat.MEMBERSHIP).stat().st_mode & 0o077 == 0

    def test_before_joining_nothing_is_sent_or_started(self, folder, monkeypatch):
        monkeypatch.setattr(seat, "ask", lambda *_: pytest.fail("something was sent"))
        assert not Sender(folder).step()
        student_side.hand(folder=folder)

    @pytest.mark.parametrize("address", ["", "ftp://x", "http://", "http://x/path", "http://x:port", "//x"])
    def test_an_address_that_is_none(self, folder, address):
        with pytest.raises(LabError, match="an address is written like"):
            student_side.join(address, "AAAAAA", folder=folder)

    def test_a_wrong_code_and_a_board_that_is_not_there(self, board, folder):
        with pytest.raises(LabError, match="this is not the room's code"):
            student_side.join(board.url, "AAAAAA", folder=folder)
        board.stop()
        with pytest.raises(LabError, match="does not answer"):
            joined(board, folder)
        assert seat.membership(folder) is None

    def test_twice_is_once(self, board, folder):
        joined(board, folder)
        with pytest.raises(LabError, match="you are in a room"):
            joined(board, folder)
        assert board.shown()["people"] == 1

    def test_a_damaged_file_is_named(self, folder):
        (folder / seat.MEMBERSHIP).write_text("{")
        with pytest.raises(LabError, match="is damaged: delete it"):
            student_side.leave(folder)

    def test_what_is_no_board(self, folder, portal):
        with pytest.raises(LabError, match="is not a board"):
            student_side.join(portal, "AAAAAA", folder=folder)

    def test_a_seat_that_cannot_be_kept_is_none(self, board, folder, monkeypatch):
        def full(*_) -> None:
            raise files.NotWritten("the disk is full")

        monkeypatch.setattr(files, "write", full)
        with pytest.raises(files.NotWritten):
            joined(board, folder)
        assert board.shown()["people"] == 0
        assert seat.membership(folder) is None


class TestSending:
    def test_what_changes_is_sent_and_what_does_not_is_not(self, board, folder, monkeypatch):
        joined(board, folder)
        sending = Sender(folder)
        sending.step()
        asked = []
        monkeypatch.setattr(seat, "ask", lambda *args: asked.append(args))
        assert sending.step()
        assert asked == []

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

    def test_a_hand_goes_up_and_down(self, board, folder):
        joined(board, folder)
        sending = Sender(folder)
        for raised in ("07 · 2 A rate", ""):
            student_side.hand(folder=folder)
            sending.step()
            assert board.shown()["seats"][0]["hand_at"] == raised

    def test_it_ends_when_the_board_knows_the_seat_no_more(self, board, folder):
        joined(board, folder)
        board.do(board.store.leave(1))
        assert not Sender(folder).step()
        assert seat.membership(folder) is None

    def test_closing_figures_are_sent_once_and_only_when_agreed(self, board, folder):
        measured, busy = Measured(1.93, 1.90, 1.95, "×"), Others("section 4", share=0.9, busy=True)
        rows = [("2 ranks", "", measured, ""), ("4 ranks", "", measured, "", busy), ("threads", "", "16 threads", "")]
        Results("07").table("images/s", rows)
        joined(board, folder)
        Sender(folder)._send_figures(seat.membership(folder))
        assert board.sql("SELECT * FROM figures") == []
        seat.keep(folder, seat.membership(folder) | {"figures": True})
        sending = Sender(folder)
        for _ in range(3):
            sending.step()
        ((_, lab, message),) = board.sql("SELECT * FROM figures")
        assert lab == "07"
        assert json.loads(message)["figures"] == [{"name": "2 ranks", "value": 1.93, "unit": "×"}]
        assert "seat" not in message

    def test_files_that_were_edited_send_what_is_right_in_them(self, board, folder):
        joined(board, folder, figures=True)
        path = results.WORK / "results-07.json"
        kept = json.loads(path.read_text())
        kept["exercises"] |= {"x": PASSED, "0": PASSED, "99": PASSED, "9" * 5000: PASSED, "3": "brilliant"}
        kept["progress"] |= {"1": {"hint": 99, "minute": "yesterday"}}
        wrong = Measured(9e99, unit="ms"), Measured(1, unit="u" * 21)
        rows = [results.row("x", "", measured, "") for measured in (*wrong, "text", Measured(1.5, unit="ms"))]
        kept["table"] = {"what": "", "rows": rows, "notes": []}
        path.write_text(json.dumps(kept))
        (folder / seat.HAND).write_text('{"lab": ["x"]}')
        assert Sender(folder).step()
        (one,) = board.seats()
        assert [(done["exercise"], done["verdict"]) for done in one.state["exercises"]] == [(2, NOT_YET)]
        assert one.state["hand"] is None
        ((_, _, message),) = board.sql("SELECT * FROM figures")
        assert json.loads(message)["figures"] == [{"name": "x", "value": 1.5, "unit": "ms"}]

    @pytest.mark.parametrize("content", [b"", b'{"lab": "07", "exer', b"[" * 50_000, b"\xff\xfe", b"null"])
    def test_a_file_that_is_half_written_is_sent_when_it_is_whole(self, board, folder, content):
        joined(board, folder)
        sending = Sender(folder)
        path = results.WORK / "results-07.json"
        whole = path.read_bytes()
        path.write_bytes(content)
        (folder / seat.HAND).write_bytes(content)
        assert sending.step()
        assert board.shown()["seats"][0]["passed"] == 0
        path.write_bytes(whole)
        assert sending.step()
        assert board.shown()["seats"][0]["passed"] == 1

    @pytest.mark.slow
    def test_a_board_that_is_full_gets_it_later(self, board, folder):
        joined(board, folder)
        sending = Sender(folder)
        pages = board.sql("PRAGMA page_count")[0][0]
        board.sql(f"PRAGMA max_page_count = {pages}")
        for number in range(1, 21):
            Results("07").exercise(number, PASSED)
        for lab in ("01", "02", "03", "04", "05", "06", "08", "09"):
            for number in range(1, 12):
                Results(lab).exercise(number, PASSED)
        with pytest.raises(LabError, match="the board says 507"):
            sending.step()
        board.sql("PRAGMA max_page_count = 100000")
        assert sending.step()
        assert board.shown()["seats"][0]["passed"] == 108

    def test_figures_are_sent_once_though_that_cannot_be_kept(self, board, folder, monkeypatch):
        Results("07").table("images/s", [("2 ranks", "", Measured(1.93), "")])
        joined(board, folder, figures=True)
        sending = Sender(folder)

        def full(*_) -> None:
            raise files.NotWritten("the disk is full")

        monkeypatch.setattr(seat, "keep", full)
        for minute in range(3):
            (folder / seat.HAND).write_text("{}" + " " * minute)  # something new to send
            if minute:
                sending.step()
            else:
                with pytest.raises(LabError):
                    sending.step()
        assert board.sql("SELECT COUNT(*) FROM figures") == [(1,)]

    def test_what_is_no_board_ends_no_membership(self, board, folder, portal):
        joined(board, folder)
        kept = seat.membership(folder)
        seat.keep(folder, kept | {"address": portal})
        with pytest.raises(LabError, match="is not a board"):
            Sender(folder).step()
        student_side.leave(folder)
        assert seat.membership(folder)["leaving"], "the board has still to be asked"

    def test_a_folder_that_is_moved_goes_on_at_its_new_place(self, board, folder):
        joined(board, folder)
        sending = Sender(folder)
        moved = folder.rename(folder.with_name("moved labs"))
        assert not sending.step()
        assert Sender(moved).step()
        assert board.shown()["seats"][0]["passed"] == 1

    def test_the_sender_writes_nothing_into_the_folder(self, board, folder):
        joined(board, folder)
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        Sender(folder).step()
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

    @pytest.mark.slow
    def test_a_process_of_its_own_sends_within_seconds_and_ends_with_the_membership(self, board, folder, monkeypatch):
        monkeypatch.undo()
        monkeypatch.setattr(results, "WORK", folder / "work")
        joined(board, folder)

        def senders() -> list[psutil.Process]:
            return processes.find(lambda one: str(folder.resolve()) in one.cmdline())

        try:
            assert processes.wait_until(lambda: board.shown()["seats"][0]["passed"] == 1, 20)
            seat.start_sender(folder)  # a second one finds the first
            Results("07").exercise(2, PASSED)
            assert processes.wait_until(lambda: board.shown()["seats"][0]["passed"] == 2, 10)
            assert processes.wait_until(lambda: len(senders()) == 1, 10)
            student_side.leave(folder)
            assert processes.wait_until(lambda: not senders(), 10)
            assert board.shown()["people"] == 0
        finally:
            processes.kill(senders())

    @pytest.mark.slow
    def test_opening_a_lab_starts_a_sender_that_died_and_the_last_state_arrives(self, board, folder, monkeypatch):
        joined(board, folder)

        def senders() -> list[psutil.Process]:
            return processes.find(lambda one: str(folder.resolve()) in one.cmdline())

        monkeypatch.setattr(results, "WORK", Path("work"))
        monkeypatch.chdir(folder)
        try:
            open_lab("00", {"QUICK": True})
            assert processes.wait_until(lambda: board.shown()["seats"][0]["passed"] == 1, 20)
            processes.kill(senders())  # as a restart of the machine does
            Results("07").exercise(2, PASSED)
            open_lab("00", {"QUICK": True})
            open_lab("00", {"QUICK": True})  # in a second JupyterLab
            assert processes.wait_until(lambda: board.shown()["seats"][0]["passed"] == 2, 20)
            assert processes.wait_until(lambda: len(senders()) == 1, 20)
        finally:
            processes.kill(senders())

    def test_opening_a_lab_starts_nothing_for_who_has_not_joined(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
        room.open_lab(Path.cwd(), "07")

    def test_opening_a_lab_goes_on_when_no_process_can_be_started(self, board, folder, monkeypatch):
        def no_process(*_, **__) -> None:
            raise BlockingIOError("no more processes")

        joined(board, folder)
        monkeypatch.setattr(subprocess, "Popen", no_process)
        room.open_lab(folder, "07")


class TestGuesses:
    def test_a_guess_and_what_was_measured_are_sent_and_questions_are_not(self, board, folder):
        joined(board, folder)
        results.Results("03").guess(1, "what I typed", 2, unit="×")
        sending = Sender(folder)
        assert sending.step()
        assert board.seats()[0].state["guesses"] == [guessed(2, None)]
        results.Results("03").compare_guess(1, Measured(1.31, unit="×"))
        results.Results("07").guess(1, "", "memory", choices=("memory",))
        assert sending.step()
        assert board.seats()[0].state["guesses"] == [guessed(2, 1.31), guessed("memory", None, "07")]
        assert b"typed" not in board.path.read_bytes()

    def test_what_a_small_run_measures_is_not_sent(self, board, folder):
        joined(board, folder)
        lab = results.Results("03", quick=True)
        lab.guess(1, "", 2, unit="×")
        lab.compare_guess(1, Measured(1.31, unit="×"))
        Sender(folder).step()
        assert board.seats()[0].state["guesses"] == [guessed(2, None)]

    @pytest.mark.parametrize("guess", [1e300, "x" * 41, "a choice that the kit does not have", -1e16])
    def test_a_guess_that_no_board_takes_harms_no_other(self, board, folder, guess):
        joined(board, folder)
        path = results.WORK / "results-07.json"
        kept = json.loads(path.read_text())
        held = {"question": "", "guess": "", "here": ""}
        kept["guesses"] = {"1": held | {"values": [guess, None]}, "x": held | {"values": [1, 1]}, "99": held}
        path.write_text(json.dumps(kept))
        results.Results("03").guess(1, "", 2)
        assert Sender(folder).step()
        assert board.seats()[0].state["guesses"] == [guessed(2, None)]
        assert board.shown()["seats"][0]["passed"] == 1


class TestHelped:
    def test_a_hand_that_was_helped_goes_down_here_too(self, board, folder):
        joined(board, folder)
        sending = Sender(folder)
        student_side.hand(folder=folder)
        sending.step()
        board.do(board.store.help(1))
        (folder / seat.OPENED).write_text("{}")  # something new to send
        assert sending.step()
        assert not (folder / seat.HAND).exists()
        student_side.hand(folder=folder)
        sending.step()
        assert board.shown()["seats"][0]["hand_at"] == "07 · 2 A rate"

    @pytest.mark.parametrize("sent", [None, {"lab": "07", "exercise": 1}])
    def test_no_other_hand_is_taken_down(self, folder, sent):
        (folder / seat.HAND).write_text('{"lab": "07", "exercise": 2}')
        assert not seat.lower(folder, {"hand": sent})
        assert (folder / seat.HAND).exists()

    def test_a_board_that_always_says_so_is_asked_no_more_often(self, board, folder, monkeypatch):
        joined(board, folder)
        asked = []
        monkeypatch.setattr(seat, "ask", lambda *_: asked.append(1) or seat.Answer(200, {"helped": True}))
        assert Sender(folder).step()
        student_side.hand(folder=folder)
        assert Sender(folder).step()
        assert len(asked) == 3


class TestOpened:
    def test_the_board_knows_the_lab_that_is_open_before_anything_was_checked(self, board, folder):
        (folder / "work" / "results-07.json").unlink()
        room.open_lab(folder, "03")  # before joining
        joined(board, folder)
        Sender(folder).step()
        assert board.shown()["seats"][0]["at"] == "03 · opened"

    def test_a_lab_opens_where_nothing_can_be_kept(self, tmp_path):
        room.open_lab(tmp_path / "nowhere", "03")


class TestMoving:
    def test_a_board_at_another_address_keeps_the_seats(self, board, folder, tmp_path, capsys):
        joined(board, folder, seat="B4")
        board.stop()
        moved = Board(board.path)
        try:
            typed = moved.code.lower()[:3] + "-" + moved.code.lower()[3:]
            student_side.join(moved.url, typed, folder=folder)
            assert f"goes to {moved.url} from now on" in capsys.readouterr().out
            assert Sender(folder).step()
            (row,) = moved.shown()["seats"]
            assert (row["seat"], row["passed"]) == ("B4", 1)
        finally:
            moved.stop()

    def test_another_room_is_no_move(self, board, folder, tmp_path):
        joined(board, folder)
        other = Board(tmp_path / "other.sqlite")
        try:
            with pytest.raises(LabError, match="leave first"):
                student_side.join(other.url, other.code, folder=folder)
            assert seat.membership(folder)["address"] == board.url
        finally:
            other.stop()

    def test_who_waits_to_be_deleted_is_told_how_to_give_up(self, board, folder):
        joined(board, folder)
        board.stop()
        student_side.leave(folder)
        with pytest.raises(LabError, match=r"has not deleted your seat yet: .*\.room\.json"):
            student_side.join(board.url, board.code, folder=folder)


class TestLeave:
    def test_it_deletes_here_and_there(self, board, folder, capsys):
        joined(board, folder)
        student_side.leave(folder)
        assert board.shown()["people"] == 0
        assert not (folder / seat.MEMBERSHIP).exists()
        assert "deleted" in capsys.readouterr().out

    def test_while_the_board_is_down_it_is_asked_until_it_answers(self, board, folder, capsys):
        joined(board, folder)
        sending = Sender(folder)
        board.stop()
        student_side.leave(folder)
        assert "Nothing more is sent" in capsys.readouterr().out
        with pytest.raises(LabError, match="does not answer"):  # from time to time, and ever more rarely
            sending.step()
        board.start()
        assert board.shown()["people"] == 1
        assert not sending.step()
        assert board.shown()["people"] == 0

    def test_who_is_in_no_room(self, folder):
        with pytest.raises(LabError, match="you are in no room"):
            student_side.leave(folder)


def test_who_leaves_while_the_sender_sends_has_left(board, folder, monkeypatch):
    joined(board, folder, figures=True)
    Results("02").table("speed", [("this CNN", "", Measured(1.8, unit="×"), "")])
    kept = seat.membership(folder)

    def ask(method: str, of: dict, path: str, message: object = None) -> seat.Answer:
        seat.change(folder, leaving=True)  # by ./lab leave, while the figures are under way
        return seat.Answer(204, None)

    monkeypatch.setattr(seat, "ask", ask)
    Sender(folder)._send_figures(kept)
    assert seat.membership(folder) == kept | {"leaving": True, "sent": ["02"]}
    (folder / seat.MEMBERSHIP).unlink()
    assert seat.change(folder, sent=[]) is None
    assert not (folder / seat.MEMBERSHIP).exists()


def test_a_seat_that_was_taken_since_is_not_forgotten(board, folder, monkeypatch):
    joined(board, folder)
    new = f"2.{'n' * 20}"

    def ask(*_) -> seat.Answer:
        seat.change(folder, token=new)  # by ./lab leave and ./lab join
        return seat.Answer(403, None)

    monkeypatch.setattr(seat, "ask", ask)
    assert not Sender(folder).step()
    assert seat.membership(folder)["token"] == new


def test_a_dead_board_is_asked_ever_more_rarely(folder, monkeypatch):
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            raise KeyboardInterrupt

    def step(self) -> bool:
        raise LabError("down")

    monkeypatch.setattr(Sender, "step", step)
    monkeypatch.setattr(sender.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(sender.time, "sleep", sleep)
    with pytest.raises(KeyboardInterrupt):
        Sender(folder).run()
    assert pauses == sorted(pauses)
    assert pauses[0] <= 1
    assert pauses[-1] >= 60


def test_the_sender_goes_on_after_errors(folder, monkeypatch):
    steps = iter([LabError("down"), OSError("disk"), True, False])

    def step(self) -> bool:
        result = next(steps)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(Sender, "step", step)
    monkeypatch.setattr(sender, "MAX_PAUSE_S", 0.01)
    monkeypatch.setattr(sender, "LOOK_INTERVAL_S", 0.01)
    Sender(folder).run()
    assert next(steps, None) is None
