"""Whoever is in the room's network, and means harm, gets nothing and disturbs nobody."""

import asyncio
import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from room_board import HEADERS, Board, at

from labkit.system import processes
from labkit_classroom.board import app, limits, protocol, views
from labkit_classroom.board.store import Store

STREAM = b"GET /view/wall HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"


def connect(board, sent: bytes = b"") -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", board.port), timeout=10)
    opened.sendall(sent)
    return opened


def read_all(connection: socket.socket) -> bytes:
    """Return all that comes until the board closes."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


class TestConnections:
    @pytest.mark.parametrize(
        "sent", [b"", b"GET / HT", b"PUT /api/seat HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"]
    )
    def test_many_that_send_nothing_or_a_part_lock_nobody_out(self, board, monkeypatch, sent):
        monkeypatch.setattr(app, "MAX_CONNECTIONS", 20)
        with contextlib.ExitStack() as stack:
            page = stack.enter_context(connect(board, STREAM))
            assert b"data: " in page.recv(65536)
            idle = [stack.enter_context(connect(board, sent)) for _ in range(100)]
            for connection in idle[:70]:
                connection.settimeout(app.SLOW_CLIENT_S / 2)
                assert read_all(connection) == b"", "the oldest are closed, long before their time is up"
            for _ in range(3):
                assert board.join().put(exercises=[at(1)]).status_code == 204
            for _ in range(views.FEW - 3):
                board.join()
            page.settimeout(10)
            assert b"people" in page.recv(65536), "a page that was open goes on"

    @pytest.mark.slow
    def test_answers_that_nobody_reads_lock_nobody_out(self, board, monkeypatch):
        monkeypatch.setattr(app, "MAX_CONNECTIONS", 20)
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(connect(board, b"GET /board.js HTTP/1.1\r\nHost: x\r\n\r\n" * 50))
            assert board.join().put().status_code == 204

    @pytest.mark.slow
    def test_a_page_that_never_reads_is_closed_and_the_next_has_its_place(self, board, monkeypatch):
        monkeypatch.setattr(app, "SLOW_CLIENT_S", 0.5)
        monkeypatch.setattr(app, "MAX_VIEWERS", 1)
        figures = [{"name": f"{number} {'x' * 90}", "value": number, "unit": "×"} for number in range(60)]
        message = {"lab": "03", "cores": 2, "isa": [], "figures": figures}

        def status() -> int:
            stream = {"Accept": "text/event-stream"}
            with requests.get(f"{board.url}/view/wall", headers=stream, timeout=60, stream=True) as answer:
                return answer.status_code

        def is_free() -> bool:
            for _ in range(5):  # some 10 kB more each
                board.send_figures(message)
            return status() == 200

        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            silent.connect(("127.0.0.1", board.port))
            silent.sendall(STREAM)
            assert processes.wait_until(lambda: status() == 503, 60)
            assert processes.wait_until(is_free, 60)

    def test_a_page_that_sends_without_end_fills_no_memory(self, board):
        with connect(board, STREAM) as flooding:
            assert b"data: " in flooding.recv(65536)
            flooding.settimeout(1)
            taken = 0
            with contextlib.suppress(OSError):  # closed, or not read any further
                for _ in range(1000):
                    flooding.sendall(b"x" * 65536)
                    taken += 65536
            assert taken < 20e6, "what the system's buffers hold"
        assert board.join().put().status_code == 204

    def test_pages_open_at_once_are_limited_but_not_the_instructors(self, board, monkeypatch):
        monkeypatch.setattr(app, "MAX_VIEWERS", 3)
        headers = {"Accept": "text/event-stream"} | board.authorized
        with contextlib.ExitStack() as stack:
            for path, status in (*[("wall", 200)] * 3, ("wall", 503), *[("instructor", 200)] * 3):
                answer = requests.get(f"{board.url}/view/{path}", headers=headers, stream=True, timeout=5)
                stack.callback(answer.close)
                assert answer.status_code == status
            assert board.wall()["people"] is None, "without a stream, the page asks"


class TestRequests:
    @pytest.mark.parametrize(
        "request_",
        [
            b"POST /api/seats HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST /api/seats HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\nabcd",
            b"POST /api/seats HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\nabcd",
            b"POST /api/seats HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            b"POST /api/seats HTTP/1.1\r\nHost: x\r\nContent-Length : 4\r\n\r\nabcd",
            b"POST /api/seats HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
            b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        ],
    )
    def test_what_two_servers_could_read_differently_is_refused_with_all_that_follows(self, board, request_):
        with connect(board, request_ + b"GET /view/wall HTTP/1.1\r\nHost: x\r\n\r\n") as connection:
            received = read_all(connection)
        assert received.startswith(b"HTTP/1.1 400") or not received
        assert b"people" not in received

    def test_a_slow_header_is_not_waited_for(self, tmp_path, monkeypatch):
        monkeypatch.setattr(app, "SLOW_CLIENT_S", 0.5)
        board = Board(tmp_path / "board.sqlite")
        try:
            with connect(board, b"GET / HTTP/1.1\r\nX: ") as slow:
                assert read_all(slow) == b""
        finally:
            board.stop()

    @pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PATCH", "PUT", "BREW"])
    def test_other_methods_do_nothing(self, board, method):
        for path in ("/", "/api/seats", "/api/seats/1", "/api/code", "/view/instructor"):
            answer = requests.request(method, board.url + path, headers=HEADERS, timeout=5)
            assert answer.status_code == 405
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert "Set-Cookie" not in answer.headers

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
    def test_what_a_form_of_another_page_can_send_is_refused(self, board, kind):
        answer = requests.post(
            f"{board.url}/api/seats",
            data=json.dumps({"code": board.code, "seat": ""}),
            headers={"Content-Type": kind},
            timeout=5,
        )
        assert answer.status_code in (400, 415)
        assert board.seats() == []

    @pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "Infinity", "1" * 400, "1" * 5000, "true", '"1"'])
    def test_figures_are_numbers_that_every_page_can_read(self, board, value):
        body = (
            '{"ticket": "%s", "lab": "03", "cores": 2, "isa": [], "figures": [{"name": "x", "value": %s, "unit": ""}]}'
        )
        for _ in range(views.FEW):
            ticket = protocol.ticket(board.join().token, "03")
            answer = requests.post(f"{board.url}/api/figures", data=body % (ticket, value), headers=HEADERS, timeout=5)
            assert answer.status_code == 400
        assert board.wall()["figures"] == {}

    @pytest.mark.parametrize("depth", [*range(900, 1000, 20), 5000])
    def test_deep_json_is_refused(self, board, depth):
        answer = board.join().put("[" * depth + "]" * depth)
        assert answer.status_code == 400
        answer = requests.post(f"{board.url}/api/seats", data="[" * depth + "]" * depth, headers=HEADERS, timeout=5)
        assert answer.status_code == 400

    @pytest.mark.parametrize("text", ["07\n", "٠٧", "7"])
    def test_a_lab_is_two_digits(self, board, text):
        assert board.join().put(exercises=[at(1) | {"lab": text}]).status_code == 400


class TestLimits:
    def test_of_ipv6_a_network_counts_as_one(self):
        assert app._network("2001:db8::1") == app._network("2001:db8::ffff:1") != app._network("2001:db8:0:1::1")
        assert app._network("192.0.2.1") != app._network("192.0.2.2")

    def test_many_addresses_do_not_set_a_limit_back(self, monkeypatch):
        monkeypatch.setattr(limits, "MAX_KEYS", 100)
        limit = limits.Limit(5, 60)
        allowed = 0
        for number in range(1000):
            limit.allows(f"address {number}")
            allowed += limit.allows("loud")
        assert allowed == 5
        assert len(limit._used) <= 100

    @pytest.mark.slow
    def test_a_hundred_pages_hold_nobody_up(self, board):
        headers = {"Accept": "text/event-stream"} | board.authorized
        with contextlib.ExitStack() as stack, requests.Session() as session:
            pages = []
            for number in range(100):
                path = ("wall", "instructor")[number % 2]
                answer = session.get(f"{board.url}/view/{path}", headers=headers, stream=True, timeout=5)
                stack.callback(answer.close)
                pages.append(answer.iter_lines())
            seats = [board.join(f"S{number}") for number in range(40)]
            assert {seat.put(exercises=[at(1)]).status_code for seat in seats} == {204}
            for number, lines in enumerate(pages):
                states = (json.loads(line[6:]) for line in lines if line.startswith(b"data: "))
                walls = (state["wall"] if number % 2 else state for state in states)
                assert next(wall for wall in walls if wall["people"] == 40)

    def test_a_clock_that_is_set_back_shows_nothing_from_the_future(self, board):
        board.join("A")
        board.age(1, -7200)
        (row,) = board.shown()["seats"]
        assert row["unchanged"] == 0
        assert row["silent"] is None

    @pytest.mark.slow
    def test_the_files_stay_small_however_much_is_sent(self, tmp_path):
        async def flood() -> None:
            store = Store(tmp_path / "board.sqlite")
            seats = [await store.join(f"seat {number}", ("03", "07")) for number in range(50)]
            for round_ in range(60):
                state = {"exercises": [at(1 + round_ % 20)] * 150, "hand": None, "doctor": None}
                await asyncio.gather(*(store.put(1 + number, state) for number in range(len(seats))))
            store.close()

        asyncio.run(flood())  # some 45 MB
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 8e6


@pytest.mark.slow
def test_all_at_once(board):
    """Forty seats whose messages come while others are refused: each of the forty is kept."""
    seats = [board.join(f"S{number}") for number in range(40)]

    def attack(number: int) -> None:
        with contextlib.suppress(requests.RequestException):
            requests.post(f"{board.url}/api/seats", data=b"{" * 100, headers=HEADERS, timeout=5)
            requests.put(f"{board.url}/api/seat", json={}, headers={"Authorization": f"Bearer {number}.x"}, timeout=5)

    with ThreadPoolExecutor(16) as pool:
        attacks = [pool.submit(attack, number) for number in range(100)]
        answers = [pool.submit(seat.put, exercises=[at(1), at(2)]) for seat in seats]
        assert {answer.result().status_code for answer in answers} == {204}
        assert all(done.result() is None for done in attacks)
    assert [row["passed"] for row in board.shown()["seats"]] == [2] * 40
