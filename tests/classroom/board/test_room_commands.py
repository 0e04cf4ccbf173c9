"""`lab room`: open, restart, close, status, https, and one-line errors."""

import json
import os
import resource
import signal
import socket
import stat
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from certificates import certificate
from lab_command import run_lab
from room_board import EMPTY, BoardProcess, at, guessed

import labkit_classroom as student_side
from labkit.system import addresses
from labkit.system.errors import LabError
from labkit_classroom.board import host, seat
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.sender import Sender
from labkit_classroom.board.store import Store
from labkit_classroom.lecture.agenda import Day, Entry
from labkit_classroom.lecture.routes import Part

NINE, HOUR = datetime(2026, 12, 1, 9), timedelta(hours=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "FOLDER", tmp_path / "room")
    return tmp_path


def run(capsys, *command: str) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it prints."""
    code, output = run_lab(*command), capsys.readouterr()
    return code, output.out, output.err


def fill(passed: list[int], **settings) -> None:
    """Store a room: the number of seats, then how many of them passed each exercise of lab 07."""
    store = Store(host.FOLDER / host.FILE)
    store.change(**settings)
    for place in range(passed[0]):
        store.join(f"Person{place}")
        exercises = [at(number) for number, count in enumerate(passed[1:], 1) if place < count]
        store.put(store.seats[place + 1], EMPTY | {"exercises": exercises, "guesses": [guessed(2, place)]})
    store.close()


def closed(folder) -> dict:
    host.close_room(folder / "room.json")
    assert list(host.FOLDER.iterdir()) == []
    return json.loads((folder / "room.json").read_text())


class TestClose:
    def test_counts_and_their_differences_cover_at_least_five_people(self, folder):
        fill([23, 23, 22, 19, 18, 7, 4, 1])
        content = closed(folder)
        counts = [entry["seats"] for entry in content["passed"]]
        assert (content["people"], counts) == (20, [20, 20, 15, 15, 5])
        (result,) = content["results"]
        assert (result["lab"], result["values"]) == ("03", list(range(23)))
        assert "erson" not in json.dumps(content)

    @pytest.mark.parametrize("people", [0, 1, FEW - 1])
    def test_nothing_is_stored_for_fewer_than_five(self, folder, people):
        fill([people, people])
        content = closed(folder)
        assert (content["people"], content["passed"], content["results"]) == (None, [], [])


class TestOpen:
    @pytest.mark.parametrize("address", ["a" * 5000, "\udcff\udcfe", "x y", "127.0.0.1:80", "192.0.2.7", "::1::"])
    def test_an_address_of_another_machine_gives_a_one_line_error(self, folder, capsys, address):
        code, out, err = run(capsys, "room", "open", "--address", address, "--port", "18701")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "cannot listen on" in err
        assert len(err) < 300

    def test_it_prints_addresses_and_whether_it_listens_everywhere(self, monkeypatch, capsys):
        def open_room(address, port, days, tls, on_open, people) -> None:
            assert (len(days), people) == (1, 20)
            on_open(host.Opened("http://192.0.2.1:8500", "K7Q2M9", "x"))

        monkeypatch.setattr(host, "open_room", open_room)
        options = ["--address", "0", "--people", "20", "--route", "half", "--start", "13:30"]
        code, printed, _ = run(capsys, "room", "open", *options)
        assert code == 0
        assert "on all addresses of this machine" in printed
        assert "./lab join http://192.0.2.1:8500 K7Q2M9\n" in printed
        assert "For the projector:       http://192.0.2.1:8500/#K7Q2M9\n" in printed

    def test_timetable_and_people_survive_reopening(self, folder, monkeypatch):
        rooms = []
        monkeypatch.setattr(host.app, "serve", lambda room, *_: rooms.append(room) or pytest.fail("opened"))
        day = Day((Entry(NINE, NINE + HOUR, Part("A talk")),), NINE + HOUR)
        for days, people in (([day], 20), ([], None)):
            with pytest.raises(pytest.fail.Exception):
                host.open_room("127.0.0.1", 8500, days, None, lambda *_: None, people=people)
        assert [room._plan[0].title for room in rooms] == ["A talk"] * 2
        assert rooms[1].wall()["joining"]["expected"] == 20

    def test_unusable_storage_gives_a_one_line_error(self, folder):
        (folder / "room").write_text("")
        with pytest.raises(LabError, match="cannot store the room in"):
            host.open_room("127.0.0.1", 0, [], None, lambda *_: None)
        with pytest.raises(LabError, match="there is no room"):
            host.close_room(folder / "room.json")
        (folder / "other.sqlite").write_bytes(b"no database " * 100)
        with pytest.raises(LabError, match="cannot store the room in"):
            Store(folder / "other.sqlite")

    @pytest.mark.parametrize("kind", ["pipe", "folder", "empty file", "nothing", "no key"])
    def test_an_unusable_certificate_gives_a_one_line_error(self, folder, capsys, kind):
        place = folder / "cert"
        {"pipe": os.mkfifo, "folder": os.mkdir, "empty file": Path.touch}.get(kind, lambda _: None)(place)
        key = [] if kind == "no key" else ["--key", str(place)]
        code, out, err = run(capsys, "room", "open", "--cert", str(place), *key)
        assert (code, out, err.count("\n")) == (2, "", 1)


class TestStatus:
    def test_it_prints_addresses_people_and_hands(self, board_process, monkeypatch, capsys):
        monkeypatch.setattr(host, "FOLDER", board_process.folder)
        assert stat.S_IMODE((board_process.folder / host.RUNNING).stat().st_mode) == 0o600
        board_process.join("B4").hand("07", 2)
        board_process.join("B5")
        board_process.order("POST", "code")
        code = board_process.shown()["code"]
        exit_code, output, _ = run(capsys, "room", "status")
        assert exit_code == 0
        for line in (
            f"./lab join {board_process.url} {code}",
            f"{board_process.url}/#{code}",
            f"{board_process.url}/instructor#{board_process.instructor}",
            "People: 2",
            "Hands: B4 at 07 · 2",
        ):
            assert line in output
        assert host.running_room()[:2] == (board_process.url, code)

    @pytest.mark.parametrize("end", ["never", "killed", "damaged"])
    def test_without_a_board_it_gives_a_one_line_error(self, folder, capsys, end):
        content = {"killed": '{"address": "http://127.0.0.1:9", "token": "x", "ca": ""}', "damaged": "[]"}
        if end in content:
            host.FOLDER.mkdir()
            (host.FOLDER / host.RUNNING).write_text(content[end])
        error = "lab: no board is running here: ./lab room open opens a room, or resumes an open one.\n"
        assert run(capsys, "room", "status") == (2, "", error)
        assert host.running_room() is None


@pytest.mark.slow  # separate processes
class TestProcess:
    def test_confirmed_data_survives_a_kill_and_a_second_board_is_refused(self, board_process):
        seats = [board_process.join(f"S{number}") for number in range(8)]
        for student in seats:
            assert student.put(exercises=[at(1), at(2)]).status_code == 204
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        second = subprocess.run(board_process.command(port), capture_output=True, text=True, timeout=60)
        assert "LabError: another board is using" in second.stderr.splitlines()[-1]
        seats[5].hand()
        code = board_process.code
        board_process.kill()
        board_process.start()
        assert board_process.code == code
        rows = board_process.shown()["seats"]
        assert ([row["passed"] for row in rows], rows[0]["seat"], rows[0]["hand_at"]) == ([2] * 8, "S5", "07 · 2")
        assert seats[0].put(exercises=[at(1)]).status_code == 204

    def test_a_full_disk_is_reported_and_confirmed_data_stays(self, board_process):
        seat = board_process.join("A")
        assert seat.put(exercises=[at(1)]).status_code == 204
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(board_process.pid, resource.RLIMIT_FSIZE, (1, unlimited))  # no file can grow
        answer = seat.put(exercises=[at(1), at(2)])
        assert (answer.status_code, "disk" in answer.json()["error"]) == (507, True)
        assert board_process.shown()["seats"][0]["passed"] == 1
        resource.prlimit(board_process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        assert seat.put(exercises=[at(1), at(2)]).status_code == 204
        assert board_process.shown()["seats"][0]["passed"] == 2

    def test_it_listens_only_on_the_given_address_and_ends_cleanly(self, board_process):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", board_process.port), timeout=60)
        other = [str(board_process.folder.parent / "other"), "127.0.0.1", str(board_process.port)]
        command = [*board_process.command()[:3], *other]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "Address already in use. Choose an --address" in second.stderr.splitlines()[-1]
        board_process._process.send_signal(signal.SIGINT)
        assert board_process._process.wait(10) == 0
        assert not (board_process.folder / host.RUNNING).exists()
        board_process.start()

    def test_listening_everywhere_prints_a_reachable_address(self, tmp_path):
        opened = BoardProcess(tmp_path / "room", address="0.0.0.0")
        try:
            assert opened.url == f"http://{addresses.machine_address()}:{opened.port}"
            assert opened.join().put().status_code == 204
        finally:
            opened.kill()

    def test_https_with_the_boards_certificate(self, tmp_path, monkeypatch):
        monkeypatch.setattr(seat, "start_sender", lambda folder: None)
        student = tmp_path / "my labs"
        student.mkdir()
        wrong, _ = certificate(tmp_path, "other")
        safe = BoardProcess(tmp_path / "room", tls=certificate(tmp_path, "board"))
        try:
            assert safe.url.startswith("https://")
            for ca in ("", str(wrong)):
                with pytest.raises(LabError, match=r"no secure connection .*\. Pass its certificate with --ca"):
                    student_side.join(safe.url, safe.code, folder=student, ca=ca)
            with pytest.raises(LabError, match="with http or https"):
                student_side.join(safe.url.replace("https", "http"), safe.code, folder=student)
            student_side.join(safe.url, safe.code, folder=student, ca=str(safe.tls[0]))
            assert Sender(student).step()
            monkeypatch.setattr(host, "FOLDER", safe.folder)
            assert host.running_room()[:2] == (safe.url, safe.code)
            student_side.leave(student)
        finally:
            safe.kill()
