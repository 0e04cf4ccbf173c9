"""The board's API for seats, the instructor and the wall: storage, views, refusals, deletion."""

import json
import re
import stat
import time
from datetime import datetime, timedelta

import pytest
import requests
from room_board import EMPTY, HEADERS, Board, at, guessed

from labkit_classroom.board import app, protocol, room
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.timetable import Planned


class TestSeats:
    def test_a_seats_state_is_on_the_instructors_page(self, board):
        doctor = [{"lab": "07 Horovod", "status": "fail", "because": ["compiler"]}]
        state = {"exercises": [at(1), at(2, "not yet", hint=2, minute="2026-12-01T09:50")], "doctor": doctor}
        assert board.join("B4").put(**state).status_code == 204
        (row,) = board.shown()["seats"]
        assert (row["seat"], row["at"], row["verdict"]) == ("B4", "07 · 2 A rate", "not yet")
        assert (row["hint"], row["done"], row["lacks"]) == (2, ["07 · 1 Shards"], "07 Horovod (compiler)")
        assert board.shown()["stuck"] == [{"lab": "07", "exercise": 2, "at": "07 · 2 A rate", "seats": 1, "hint": 2}]
        assert board.shown()["exercises"] == ["07 · 1 Shards", "07 · 2 A rate", "07 · 3 The script"]

    def test_a_seats_position_is_its_last_exercise_or_opened_lab(self, board):
        seat = board.join("B4")
        places = []
        for opened, exercises in (
            (None, []),
            ({"lab": "07", "minute": "2026-12-01T09:41"}, []),
            ({"lab": "07", "minute": "2026-12-01T09:41"}, [at(1)]),
            ({"lab": "03", "minute": "2026-12-01T09:40"}, [at(1)]),
            ({"lab": "03", "minute": "2026-12-01T09:41"}, [at(1)]),
        ):
            assert seat.put(opened=opened, exercises=exercises).status_code == 204
            places.append(board.shown()["seats"][0]["at"])
        assert places == ["", "07 · opened", "07 · 1 Shards", "07 · 1 Shards", "03 · opened"]

    def test_names_are_one_printable_line_and_unique(self, board):
        sent = ["", "  ", "Ada", "Ada", "A\n\x1b[2J\u202ed", "W" * 24, "W" * 24]
        names = [board.join(name).name for name in sent]
        assert names[:4] == ["seat 1", "seat 2", "Ada", "Ada 4"]
        assert len(set(names)) == len(sent)
        assert all(name.isprintable() and len(name) <= protocol.SEAT_LETTERS for name in names)

    def test_silent_and_unchanged_seats_are_distinguished(self, board, monkeypatch):
        seats = {name: board.join(name) for name in ("idle", "A", "B")}
        for name in ("A", "B"):
            seats[name].put(exercises=[at(1)])
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 300)
        seats["B"].put(exercises=[at(1)])  # unchanged
        seats["A"].put(exercises=[at(1), at(2)])
        rows = {row["seat"]: (row["unchanged"], row["silent"]) for row in board.shown()["seats"]}
        assert rows == {"A": (0, None), "B": (5, None), "idle": (5, 5)}
        assert [row["seat"] for row in board.shown()["seats"]] == ["B", "A", "idle"]


class TestHands:
    def test_raised_hands_come_first_oldest_first(self, board):
        seats = [board.join(name) for name in "ABCD"]
        for number in (1, 0, 2):
            assert seats[number].hand() == "up"
        assert [row["seat"] for row in board.shown()["seats"]] == ["B", "A", "C", "D"]
        assert board.shown()["seats"][0]["hand_at"] == "07 · 2"
        assert seats[1].hand() == "down"
        assert seats[1].hand() == "up"
        assert [row["seat"] for row in board.shown()["seats"]] == ["A", "C", "B", "D"]

    def test_the_instructor_lowers_a_hand(self, board):
        seat = board.join("A")
        seat.hand()
        assert board.order("DELETE", "seats/1/hand") == board.order("DELETE", "seats/99/hand") == 204
        assert board.shown()["seats"][0]["hand_at"] == ""
        assert seat.hand() == "up"


class TestWall:
    def test_it_shows_counts_from_five_people_on_and_no_seats(self, board):
        for number in range(FEW):
            assert (board.wall()["people"], board.wall()["labs"]) == (None, [])
            board.join(f"Person{number}").put(exercises=[at(1), *([at(3)] if number else [])])
        wall = board.wall()
        assert wall["people"] == FEW
        exercises = ["Shards", "A rate", "The script"]
        assert wall["labs"] == [{"lab": "07", "title": "07 · Horovod", "exercises": exercises, "passed": [5, 0, 4]}]
        assert "Person" not in json.dumps(wall)

    def test_until_five_have_joined_it_shows_the_rest_of_the_day(self, tmp_path):
        noon = datetime.now().replace(hour=12)
        parts = (("Welcome", ""), ("Lab 07 · 1 Shards", "07"), ("Lab 07 · 2 A rate", "07"), ("Break", ""))
        plan = [
            Planned(title, noon.replace(minute=start), datetime.now() + timedelta(hours=1), lab)
            for start, (title, lab) in enumerate(parts)
        ]
        board = Board(tmp_path / "planned.sqlite", plan)
        try:
            rows = [(part["begin"], part["title"]) for part in board.wall()["today"]]
            assert rows == [("12:00", "Welcome"), ("12:01", "07 · Horovod"), ("12:03", "Break")]
            for _ in range(FEW):
                board.join()
            assert board.wall()["today"] == []
        finally:
            board.stop()

    def test_the_instructor_pins_a_question(self, board):
        def hold(question: object) -> int:
            headers = board.authorized | HEADERS
            return requests.put(f"{board.url}/api/held", json.dumps(question), headers=headers, timeout=60).status_code

        for _ in range(FEW):
            board.join().put(guesses=[guessed("memory", lab="07")])
        assert board.wall()["guess"]["question"] == "what limits it"
        first = {"lab": "03", "number": 1}
        assert hold(first) == 204
        shown = board.wall()["guess"]
        assert (shown["question"], shown["given"], shown["bars"]) == ("oneDNN against Eigen", 0, [])
        assert board.shown()["held"] == board.wall()["held"] == first
        assert hold("07") == hold({"lab": "07"}) == 400
        assert requests.put(f"{board.url}/api/held", "null", headers=HEADERS, timeout=60).status_code == 403
        board.stop()
        board.start()
        assert board.shown()["held"] == first
        assert hold(None) == 204
        assert board.wall()["guess"]["question"] == "what limits it"

    def test_it_contains_the_address_but_not_the_code(self, board):
        assert board.wall()["joining"]["command"] == f"./lab join {board.url}"
        for path in ("/", "/view/wall", "/poster.js"):
            assert board.code not in requests.get(board.url + path, timeout=60).text

    def test_the_qr_code_requires_the_current_code(self, board):
        def ask(code: str) -> requests.Response:
            return requests.get(f"{board.url}/api/code", headers={"Authorization": f"Bearer {code}"}, timeout=60)

        before, codes = board.code, board.wall()["joining"]["codes"]
        content = ask(before.lower()).json()
        assert content["code"] == before
        assert content["picture"].startswith("data:image/svg+xml")
        assert board.order("POST", "code") == 204
        assert board.wall()["joining"]["codes"] != codes
        assert "./lab room status" in ask(before).json()["error"]
        code = board.shown()["code"]
        assert ask(code).status_code == 200
        assert board.shown()["wall_address"] == f"{board.url}/#{code}"


class TestPrivacy:
    def test_leaving_deletes_a_seat_from_memory_and_all_files(self, board):
        def files() -> bytes:
            return b"".join(file.read_bytes() for file in board.path.parent.iterdir() if file.is_file())

        seats = [board.join(f"Person{number}!") for number in range(6)]
        for number, seat in enumerate(seats):
            for hint in range(3):
                guesses = [guessed(float(f"{number}.123456789"), 2)]
                seat.put(exercises=[at(exercise, hint=hint) for exercise in range(1, 20)], guesses=guesses)
        assert b"Person2!" in files()
        assert seats[2].leave().status_code == 204
        assert board.order("DELETE", f"seats/{seats[3].number}") == 204
        for _ in range(2):
            for word in (b"Person2!", b"Person3!", b"2.123456789", b"3.123456789"):
                assert word not in files()
            assert b"Person4!" in files()
            assert len(board.shown()["seats"]) == 4
            assert seats[2].put().status_code == seats[3].put().status_code == 403
            board.stop()
            board.start()
        assert board.join().number == 7, "numbers are never reused"

    def test_only_the_instructor_can_read_the_file(self, board):
        assert stat.S_IMODE(board.path.stat().st_mode) == 0o600

    def test_the_instructors_page_requires_the_token(self, board, monkeypatch):
        monkeypatch.setitem(room.LIMITS, "wrong", 1000)
        seat = board.join("A")
        for token in ("", "x", board.code, seat.token, "é", f"{board.instructor}x"):
            headers = {"Authorization": f"Bearer {token}".encode()}
            for method, path in (
                ("GET", "view/instructor"),
                ("POST", "api/code"),
                ("DELETE", "api/seats/1"),
                ("DELETE", "api/seats/1/hand"),
            ):
                cookies = {"instructor": board.instructor}  # which browsers send with cross-site requests
                answer = requests.request(method, f"{board.url}/{path}", headers=headers, cookies=cookies, timeout=60)
                assert answer.status_code == 403
        assert board.shown()["people"] == 1
        assert board.shown()["code"] == board.code


class TestBounds:
    @pytest.mark.parametrize("code", ["", "AAAAAA", "é" * 6, "A" * 13, 5, None])
    def test_a_wrong_code_is_refused(self, board, code):
        answer = requests.post(f"{board.url}/api/seats", json={"code": code, "seat": ""}, timeout=60)
        assert answer.status_code in (400, 403)
        assert board.shown()["people"] == 0

    @pytest.mark.parametrize(
        "token", ["", "Bearer", "Bearer 1.wrong", "Bearer 99.x", "Basic 1.x", "Bearer ¹.x", f"Bearer {'9' * 50}.x"]
    )
    def test_a_wrong_token_is_refused(self, board, token):
        board.join("A")
        headers = {"Authorization": token.encode("utf-8")}
        assert requests.put(f"{board.url}/api/seat", json=EMPTY, headers=headers, timeout=60).status_code == 403
        assert requests.delete(f"{board.url}/api/seat", headers=headers, timeout=60).status_code == 403
        assert board.shown()["people"] == 1

    def test_wrong_codes_are_rate_limited_and_right_ones_still_work(self, board):
        headers = {"Authorization": "Bearer AAAAAA"}
        wrong = [requests.get(f"{board.url}/api/code", headers=headers, timeout=60).status_code for _ in range(80)]
        assert set(wrong) == {403, 429}
        assert wrong.count(403) <= 2 * room.LIMITS["wrong"], "a new minute may begin"
        assert board.join().put().status_code == 204

    def test_one_address_can_fill_a_classroom_but_not_the_board(self, board):
        request = {"json": {"code": board.code, "seat": ""}, "timeout": 60}
        joined = [requests.post(f"{board.url}/api/seats", **request).status_code for _ in range(150)]
        assert joined[:40] == [201] * 40
        assert 429 in joined
        assert joined.count(201) <= 2 * room.LIMITS["join"], "a new minute may begin"

    @pytest.mark.parametrize(
        "change",
        [
            {"exercises": [at(1) | {"name": "Ada"}]},
            {"exercises": [at(1, verdict="brilliant")]},
            {"exercises": [at(0)]},
            {"exercises": [at(1)] * 201},
            {"opened": {"lab": "07"}},
            {"guesses": [guessed("x" * 41)]},
            {"guesses": [guessed(1e16)]},
            {"guesses": [guessed(1) | {"question": "who?"}]},
            {"guesses": [guessed(1)] * 101},
            {"machine": "adas-laptop"},
            {"doctor": [{"lab": "00 Welcome", "status": "ok", "because": [], "path": "/home/ada"}]},
            {"more": 1},
        ],
        ids=str,
    )
    def test_only_valid_messages_are_stored(self, board, change):
        seat = board.join("A")
        before = board.seats()
        answer = seat.put(EMPTY | change)
        assert answer.status_code == 400
        assert set(answer.json()) == {"error"}
        assert board.seats() == before

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xff\xfe",
            b"[" * 30_000,
            b'{"code": NaN, "seat": ""}',
            b'{"exercises": [], "opened": null, "guesses": [{"lab": "03", "number": 1, "guess": NaN, "here": 1e999}]}',
        ],
        ids=lambda body: str(body)[:20],
    )
    def test_malformed_input_is_refused_with_a_one_line_error(self, board, body):
        headers = HEADERS | board.join().headers
        for method, path in (("POST", "seats"), ("PUT", "seat"), ("PUT", "seat/hand")):
            answer = requests.request(method, f"{board.url}/api/{path}", data=body, headers=headers, timeout=60)
            assert answer.status_code == 400
            assert "\n" not in answer.json()["error"]

    def test_message_size_is_limited(self, board):
        seat = board.join()
        assert seat.put(exercises=[at(1)] * 200).status_code == 204
        headers = HEADERS | seat.headers
        with pytest.raises(requests.RequestException):
            requests.put(f"{board.url}/api/seat", data=b" " * 100_000, headers=headers, timeout=60).json()
        assert seat.put().status_code == 204

    @pytest.mark.parametrize(
        "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
    )
    def test_content_types_of_cross_site_forms_are_refused(self, board, content_type):
        body = json.dumps({"code": board.code, "seat": ""})
        answer = requests.post(f"{board.url}/api/seats", data=body, headers={"Content-Type": content_type}, timeout=60)
        assert answer.status_code in (400, 415)
        assert board.seats() == []

    def test_room_size_is_limited(self, board, monkeypatch):
        monkeypatch.setattr(app, "MAX_SEATS", 2)
        board.join(), board.join()
        answer = requests.post(f"{board.url}/api/seats", json={"code": board.code, "seat": ""}, timeout=60)
        assert (answer.status_code, answer.json()) == (503, {"error": "the room is full"})

    def test_existing_seats_survive_a_new_code(self, board):
        seat, before = board.join("A"), board.code
        assert board.order("POST", "code") == 204
        answer = requests.post(f"{board.url}/api/seats", json={"code": before, "seat": ""}, timeout=60)
        assert answer.status_code == 403
        assert seat.put(exercises=[at(1)]).status_code == 204
        board.stop()
        board.start()
        assert board.code != before

    @pytest.mark.parametrize("path", ["/nothing", "/..", "/../app.py", "/wall.js/x", "/api/seats/x", "/view/wall/x"])
    def test_unknown_paths_are_not_found(self, board, path):
        request = requests.Request("GET", board.url).prepare()
        request.url = board.url + path  # requests would normalise it
        with requests.Session() as session:
            assert session.send(request, timeout=60).status_code in (404, 405)

    def test_every_response_has_the_headers_and_no_cookie(self, board):
        for path in ("/", "/instructor", "/board.css", "/wall.js", "/view/wall", "/nothing", "/view/instructor"):
            headers = requests.get(board.url + path, timeout=60).headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Tornado" not in headers.get("Server", "")
            assert "Set-Cookie" not in headers
            assert "Access-Control-Allow-Origin" not in headers


def test_pages_reference_only_existing_files_of_the_board(board):
    for page in ("/", "/instructor"):
        text = requests.get(board.url + page, timeout=60).text
        addresses = re.findall(r'(?:src|href)="(/[^"]*)"', text)
        assert addresses
        assert all(requests.get(board.url + address, timeout=60).status_code == 200 for address in addresses)
