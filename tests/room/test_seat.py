"""A seat sends what it has said it sends and nothing else, disturbs no cell, and is deleted when its student leaves."""

import json
import os
from pathlib import Path

import psutil
import pytest

from labkit import room
from labkit.display import results
from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED, Results
from labkit.room import protocol, seat, sender
from labkit.room.sender import Sender
from labkit.system import processes
from labkit.system.errors import LabError


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


def joined(board, folder, **options) -> None:
    room.join(board.url, board.code, folder=folder, **options)


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

    def test_the_token_is_this_users_alone(self, board, folder):
        joined(board, folder)
        assert (folder / seat.MEMBERSHIP).stat().st_mode & 0o077 == 0

    def test_before_joining_nothing_is_sent_or_started(self, folder, monkeypatch):
        monkeypatch.setattr(seat, "ask", lambda *_: pytest.fail("something was sent"))
        assert not Sender(folder).step()
        room.hand(folder=folder)

    @pytest.mark.parametrize("address", ["", "ftp://x", "http://", "http://x/path", "http://x:port", "//x"])
    def test_an_address_that_is_none(self, folder, address):
        with pytest.raises(LabError, match="an address is written like"):
            room.join(address, "AAAAAA", folder=folder)

    def test_a_wrong_code_and_a_board_that_is_not_there(self, board, folder):
        with pytest.raises(LabError, match="this is not the room's code"):
            room.join(board.url, "AAAAAA", folder=folder)
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
            room.leave(folder)


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
        for raised in ("07 · 2", ""):
            room.hand(folder=folder)
            sending.step()
            assert board.shown()["seats"][0]["hand_at"] == raised

    def test_it_ends_when_the_board_knows_the_seat_no_more(self, board, folder):
        joined(board, folder)
        board.sql("DELETE FROM seats")
        assert not Sender(folder).step()
        assert seat.membership(folder) is None

    def test_closing_figures_are_sent_once_and_only_when_agreed(self, board, folder):
        disturbed = f"1,200.5 {results.BUSY_MARK}"
        rows = [["2 ranks", "", "1.93 (1.90 to 1.95)", ""], ["4 ranks", "", disturbed, ""], ["x", "", "", ""]]
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
        assert json.loads(message)["figures"] == [{"name": "2 ranks", "value": 1.93}]
        assert "seat" not in message

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
            room.leave(folder)
            assert processes.wait_until(lambda: not senders(), 10)
            assert board.shown()["people"] == 0
        finally:
            processes.kill(senders())


class TestLeave:
    def test_it_deletes_here_and_there(self, board, folder, capsys):
        joined(board, folder)
        room.leave(folder)
        assert board.shown()["people"] == 0
        assert not (folder / seat.MEMBERSHIP).exists()
        assert "deleted" in capsys.readouterr().out

    def test_while_the_board_is_down_it_is_asked_until_it_answers(self, board, folder, capsys):
        joined(board, folder)
        sending = Sender(folder)
        board.stop()
        room.leave(folder)
        assert "Nothing more is sent" in capsys.readouterr().out
        assert sending.step()
        board.start()
        assert board.shown()["people"] == 1
        assert not sending.step()
        assert board.shown()["people"] == 0

    def test_who_is_in_no_room(self, folder):
        with pytest.raises(LabError, match="you are in no room"):
            room.leave(folder)


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
