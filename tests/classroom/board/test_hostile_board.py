"""A board that means harm decides nothing for a student, holds nobody up, and moves no terminal's cursor."""

import json
import os
import socket
import threading
import time
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import labkit_classroom as student_side
from labkit import cli
from labkit.display.measured import Measured
from labkit.display.results import row
from labkit.report import page
from labkit.system.errors import LabError
from labkit_classroom.board import protocol, seat
from labkit_classroom.board.sender import Sender

TOKEN = f"1.{'x' * 32}"
HEAD = "Content-Type: application/json\r\nBoard-Protocol: 1\r\n"


class Hostile:
    """Answers each connection by the same bytes, or by what a function sends."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.asked: list[bytes] = []
        self.over = threading.Event()
        self.answer = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def says(self, content: object, status: str = "201 Created", head: str = HEAD) -> None:
        """Answer by this from now on."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.answer = f"HTTP/1.1 {status}\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.asked.append(connection.recv(65536))
                if callable(self.answer):
                    self.answer(connection)
                else:
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_WR)
                    connection.settimeout(5)
                    while connection.recv(65536):
                        pass
            except OSError:
                pass


@pytest.fixture
def hostile():
    opened = Hostile()
    yield opened
    opened.over.set()
    opened.listening.close()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(seat, "start_sender", lambda folder: None)
    made = tmp_path / "my labs"
    made.mkdir()
    return made


def drip(hostile: Hostile, before: bytes):
    """Send a beginning, and then a byte again and again, for as long as somebody waits."""

    def send(connection: socket.socket) -> None:
        connection.sendall(before)
        while not hostile.over.wait(0.02):
            connection.sendall(b"x")

    return send


class TestJoin:
    def test_consent_and_address_stay_the_students(self, hostile, folder):
        more = {
            "figures": True,
            "doctor": [{}],
            "address": "http://x",
            "ca": "/x",
            "sent": [7],
            "leaving": True,
            "n": 1,
        }
        hostile.says({"seat": "A", "token": TOKEN, **more})
        student_side.join(hostile.url, "AAAAAA", folder=folder)
        assert seat.membership(folder) == {
            "address": hostile.url,
            "code": "AAAAAA",
            "seat": "A",
            "token": TOKEN,
            "figures": False,
            "doctor": None,
            "ca": "",
            "sent": [],
            "leaving": False,
        }

    @pytest.mark.parametrize(
        "answer",
        [
            {},
            [],
            None,
            5,
            "A",
            {"seat": "A"},
            {"seat": "A", "token": None},
            {"seat": ["A"], "token": TOKEN},
            {"seat": "", "token": TOKEN},
            {"seat": "\u202e\x1b", "token": TOKEN},
            {"seat": "A" * 5_000_000, "token": TOKEN},
            {"seat": "A" * 25, "token": TOKEN},
            {"seat": "A", "token": "1.short"},
            {"seat": "A", "token": f"{TOKEN}\r\nX-More: 1"},
            {"seat": "A", "token": "1." + "x" * 5000},
            b"[" * 200_000,
            b'{"a":' * 200_000,
            b"[" * 40 + b"]" * 40,
            b'{"seat": "A", "token": NaN}',
            b'{"seat": "A", "token": ' + b"9" * 5000 + b"}",
            b"\xff\xfe",
            b"",
        ],
        ids=lambda answer: str(answer)[:40],
    )
    def test_what_no_board_answers_is_refused_in_one_line_and_nothing_is_kept(self, hostile, folder, answer):
        hostile.says(answer)
        with pytest.raises(LabError) as error:
            student_side.join(hostile.url, "AAAAAA", folder=folder)
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 300
        assert list(folder.iterdir()) == []

    @pytest.mark.parametrize("status", ["403 Forbidden", "500 \x1b[2J", "201 Created", "302 Found", "999 x"])
    def test_nothing_that_it_says_moves_the_terminals_cursor(self, hostile, folder, capsys, status):
        odd = "\x1b[2J\x07\u202eevil\u2066\n\r\t\x9b31m" + "e\u0301\u0300\u0302\u0303\u0304" * 9
        head = f"{HEAD}Location: {hostile.url}/elsewhere\r\n"
        hostile.says({"error": odd * 50, "seat": odd[:20], "token": TOKEN}, status, head)
        try:
            student_side.join(hostile.url, "AAAAAA", folder=folder)
            said = capsys.readouterr().out.partition("\n")[0]
        except LabError as error:
            said = str(error)
        assert said.isprintable()
        assert len(said) < 400
        assert len(hostile.asked) == 1, "a redirect is not followed"

    @pytest.mark.slow
    def test_an_encoding_is_not_undone(self, hostile, folder):
        packed = zlib.compressobj(wbits=31)
        bomb = packed.compress(bytes(200_000_000)) + packed.flush()
        hostile.says(bomb, head=f"{HEAD}Content-Encoding: gzip\r\n")
        with pytest.raises(LabError, match="is not a board"):
            student_side.join(hostile.url, "AAAAAA", folder=folder)
        assert b"accept-encoding" not in hostile.asked[0].lower()

    @pytest.mark.parametrize(
        "before",
        [
            b"",
            b"HTTP/1.1 200 OK\r\nX: ",
            f"HTTP/1.1 200 OK\r\n{HEAD}Content-Length: 999\r\n\r\n".encode(),
            f"HTTP/1.1 302 Found\r\n{HEAD}Location: /x\r\nContent-Length: 999\r\n\r\n".encode(),
            f"HTTP/1.1 200 OK\r\n{HEAD}\r\n".encode(),
        ],
    )
    def test_an_answer_that_drips_has_a_deadline(self, hostile, folder, monkeypatch, before):
        monkeypatch.setattr(seat, "ANSWER_S", 0.5)
        hostile.answer = drip(hostile, before)
        began = time.monotonic()
        with pytest.raises(LabError):
            student_side.join(hostile.url, "AAAAAA", folder=folder)
        assert time.monotonic() - began < 60, "without a deadline it never ends"

    @pytest.mark.parametrize(
        "before", [b"HTTP/1.1 100 Continue\r\n\r\n" * 5000, b"X" * 20_000_000, b"HTTP/1.1 200 OK\r\n"]
    )
    def test_an_answer_without_end_is_left(self, hostile, folder, monkeypatch, before):
        monkeypatch.setattr(seat, "ANSWER_S", 2)

        def flood(connection: socket.socket) -> None:
            connection.sendall(before)
            while not hostile.over.is_set():
                connection.sendall(b"X: x\r\n" * 1000)

        hostile.answer = flood
        with pytest.raises(LabError):
            student_side.join(hostile.url, "AAAAAA", folder=folder)

    def test_a_chunked_answer_has_a_size(self, hostile, folder):
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        hostile.answer = f"HTTP/1.1 201 OK\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 100
        with pytest.raises(LabError):
            student_side.join(hostile.url, "AAAAAA", folder=folder)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answer=st.one_of(st.binary(max_size=400), st.binary(max_size=200).map(lambda end: b"HTTP/1.1 " + end)))
def test_whatever_bytes_it_answers_are_told_in_one_line(hostile, folder, answer):
    hostile.answer = answer
    with pytest.raises(LabError) as error:
        student_side.join(hostile.url, "AAAAAA", folder=folder)
    assert str(error.value).isprintable()


@given(value=st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=9))
@settings(derandomize=True, deadline=None)
def test_whatever_is_read_of_it_is_plain(value):
    try:
        read = protocol.read_answer(json.dumps({"x": value}).encode())["x"]
    except protocol.Refused:
        return
    leaves = [read]
    while leaves:
        one = leaves.pop()
        if isinstance(one, list):
            leaves += one
        elif isinstance(one, str):
            assert one == "" or one.isprintable()
            assert len(one) <= protocol.ANSWER_LETTERS
        elif isinstance(one, float | int):
            assert abs(one) <= protocol.LARGEST


class TestReport:
    @pytest.fixture
    def joined(self, hostile, folder):
        (folder / "work").mkdir()
        table = {"what": "speed", "rows": [row("CNN", "4.6×", Measured(2.1, unit="×", digits=1), "")], "notes": []}
        about = {"lab": "07", "quick": False, "when": "2026-01-31 12:00", "on": {"cpu": "A CPU", "cores": 2}}
        (folder / "work" / "results-07.json").write_text(json.dumps(about | {"table": table}))
        hostile.says({"seat": "A", "token": TOKEN})
        student_side.join(hostile.url, "AAAAAA", figures=True, folder=folder)
        return folder

    @pytest.mark.parametrize(
        "wall",
        [
            b"[" * 200_000,
            b"[]",
            b"",
            b"<html>",
            {"figures": {"07": 5}},
            {"figures": {"07": [{"figures": [{"name": "CNN", "value": "2", "unit": "x"}] * 5}]}},
            b'{"figures": {"07": [{"figures": [{"name": "CNN", "value": 1%s, "unit": ""}]}]}}' % (b"0" * 400),
            b'{"figures": {"07": [{"figures": [{"name": "CNN", "value": 1e999, "unit": ""}]}]}}',
        ],
        ids=lambda wall: str(wall)[:60],
    )
    def test_the_page_is_made_without_it(self, hostile, joined, monkeypatch, capsys, wall):
        hostile.says(wall, "200 OK")
        out = joined / "report.html"
        monkeypatch.setattr("sys.argv", ["lab", "report", "--folder", str(joined), "--out", str(out)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        assert "2.1×" in out.read_text()
        assert "The room&#39;s figures are not here" in out.read_text()
        assert b"authorization" not in hostile.asked[-1].lower(), "the wall needs no seat"


class TestSeatThatIsKept:
    @pytest.mark.parametrize(
        "change",
        [{"address": 5}, {"token": "x\r\nY: 1"}, {"code": None}, {"figures": "yes"}, {"sent": "07"}, {"ca": []}],
        ids=str,
    )
    def test_a_file_that_was_edited_is_told(self, hostile, folder, change):
        hostile.says({"seat": "A", "token": TOKEN})
        student_side.join(hostile.url, "AAAAAA", folder=folder)
        seat.keep(folder, seat.membership(folder) | change)
        for ask in (student_side.leave, student_side.hand, lambda folder: Sender(folder).step()):
            with pytest.raises(LabError, match="is damaged"):
                ask(folder=folder)

    def test_a_pipe_in_its_place_is_not_waited_for(self, folder):
        os.mkfifo(folder / seat.MEMBERSHIP)
        with pytest.raises(LabError, match="no regular file"):
            student_side.leave(folder)


@pytest.mark.parametrize("command", [["join", "http://127.0.0.1:9", "AAAAAA"], ["hand"], ["leave"]], ids=lambda c: c[0])
@pytest.mark.parametrize("place", ["file", "long", "bytes", "loop"])
def test_a_folder_that_is_none_is_told_in_one_line(tmp_path, monkeypatch, capsys, command, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    folder = {"long": "x" * 5000, "bytes": "\udcff\udcfe"}.get(place, place)
    monkeypatch.setenv("LAB_FOLDER", str(tmp_path / folder))
    monkeypatch.setattr("sys.argv", ["lab", *command])
    with pytest.raises(SystemExit) as left:
        cli.main()
    told = capsys.readouterr()
    assert (left.value.code or 0, told.err.count("\n")) in {(2, 1), (0, 0)}
    assert "Traceback" not in told.err
    assert len(told.err) < 600


@pytest.mark.parametrize(
    "address",
    [
        "http://" + "a" * 5000,
        "http://" + "a." * 3000,
        "http://x/?" + "y" * 9,
        "http://a@b",
        "http://\udcff",
        "http://\x1bx",
    ],
)
def test_an_address_that_is_none_is_told_in_one_line(folder, address):
    with pytest.raises(LabError) as error:
        student_side.join(address, "A" * 5000, "B" * 5000, folder=folder)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("ca", ["x" * 5000, "loop", "none.pem", "folder"])
def test_a_certificate_that_is_none_is_told_in_one_line(hostile, tmp_path, monkeypatch, capsys, ca):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    address = hostile.url.replace("http:", "https:")
    command = ["join", address, "AAAAAA", "--folder", str(tmp_path), "--ca", str(tmp_path / ca)]
    monkeypatch.setattr("sys.argv", ["lab", *command])
    with pytest.raises(SystemExit) as left:
        cli.main()
    told = capsys.readouterr().err
    assert (left.value.code, told.count("\n")) == (2, 1)
    assert len(told) < 600


def test_room_figures_are_held_to_their_shape():
    with pytest.raises(ValueError, match="object"):
        page.room_figures(None)
