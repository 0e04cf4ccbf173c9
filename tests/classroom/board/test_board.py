"""The board takes what fits its schema from seats that it knows, trusts nobody, and loses nothing that it confirmed."""

import asyncio
import json
import os
import re
import socket
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import segno
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from room_board import EMPTY, HEADERS, Board, at, guessed

from labkit_classroom.board import app, protocol, views


class TestSeats:
    def test_what_a_seat_sends_is_on_the_instructors_page(self, board):
        board.join("B4").put(exercises=[at(1), at(2, "not yet", hint=2, minute="2026-12-01T09:50")])
        (row,) = board.shown()["seats"]
        assert (row["seat"], row["at"], row["verdict"]) == ("B4", "07 · 2 A rate", "not yet")
        assert (row["hint"], row["passed"]) == (2, 1)
        assert board.shown()["stuck"] == [{"lab": "07", "exercise": 2, "title": "A rate", "seats": 1, "hint": 2}]

    def test_a_seat_is_in_the_lab_that_it_has_opened(self, board):
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

    def test_a_seat_without_a_name_gets_a_number(self, board):
        assert [board.join().name, board.join("  ").name] == ["seat 1", "seat 2"]

    def test_raised_hands_come_first_then_whoever_has_not_changed_for_longest(self, board):
        seats = {name: board.join(name) for name in ("idle", "A", "B", "C", "D")}
        for name in ("A", "B"):
            seats[name].put(exercises=[at(1)])
        for name in ("D", "C"):
            seats[name].put(hand={"lab": "07", "exercise": 2})
        board.age(3, 600)
        board.age(1, 900)
        board.age(5, 130)
        rows = board.shown()["seats"]
        assert [row["seat"] for row in rows] == ["D", "C", "B", "A", "idle"], "hands in the order in which they came"
        assert [(row["hand_at"], row["hand_up"]) for row in rows[:3]] == [
            ("07 · 2 A rate", 2),
            ("07 · 2 A rate", 0),
            ("", None),
        ]

    def test_the_instructor_has_helped_and_the_seat_hears_of_it(self, board):
        seat, hand = board.join("A"), {"lab": "07", "exercise": 2}
        seat.put(hand=hand)
        address = f"{board.url}/api/seats/1/hand"
        assert requests.delete(address, headers=seat.headers, timeout=5).status_code == 403
        assert board.shown()["seats"][0]["hand_at"]
        assert requests.delete(address, headers=board.authorized, timeout=5).status_code == 204
        assert board.shown()["seats"][0]["hand_at"] == ""
        for _ in range(2):  # until the seat has taken it down
            answer = seat.put(hand=hand)
            assert (answer.status_code, answer.json()) == (200, {"helped": True})
            assert board.shown()["seats"][0]["hand_at"] == ""
        board.stop()
        board.start()
        assert seat.put(hand=hand).status_code == 200
        assert seat.put(hand=None).status_code == 204
        assert seat.put(hand=hand).status_code == 204
        assert board.shown()["seats"][0]["hand_at"] == "07 · 2 A rate"
        requests.delete(address, headers=board.authorized, timeout=5)
        assert seat.put(hand=hand | {"exercise": 3}).status_code == 204, "another question"
        assert board.shown()["seats"][0]["hand_at"] == "07 · 3 The script"

    def test_what_comes_in_one_transaction_with_help_is_not_lost(self, board):
        seat, hand = board.join("A"), {"lab": "07", "exercise": 2}
        seat.put(hand=hand)

        async def at_once() -> None:
            state = EMPTY | {"hand": hand, "exercises": [at(1)]}
            await asyncio.gather(board.store.put(1, state), board.store.help(1), board.store.put(1, state))

        board.do(at_once())
        (row,) = board.shown()["seats"]
        assert (row["passed"], row["hand_at"]) == (1, "")
        assert seat.put(hand=hand).status_code == 200

    def test_the_same_state_again_is_a_sign_of_life_and_no_change(self, board):
        seat = board.join("A")
        seat.put(exercises=[at(1)])
        before = board.seats()[0]
        time.sleep(0.05)
        seat.put(exercises=[at(1)])
        after = board.seats()[0]
        assert after.changed == before.changed
        assert after.heard > before.heard

    def test_leaving_deletes_all_of_a_seat(self, board):
        seat = board.join("Somebody")
        seat.put(exercises=[at(1)])
        assert seat.leave().status_code == 204
        assert board.shown()["people"] == 0
        assert seat.put().status_code == 403

    def test_a_restart_loses_nothing_that_was_confirmed(self, board):
        seats = [board.join(f"seat-{number}") for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda seat: seat.put(exercises=[at(1), at(2)]), seats))
        assert {answer.status_code for answer in answers} == {204}
        code = board.code
        board.stop()
        board.start()
        assert board.code == code
        assert [row["passed"] for row in board.shown()["seats"]] == [2] * 8
        assert seats[3].put(exercises=[at(3)]).status_code == 204


class TestWall:
    def test_of_few_people_it_counts_nothing(self, board):
        for number in range(views.FEW - 1):
            board.join(f"P{number}").put(exercises=[at(1)])
        wall = board.wall()
        assert wall["people"] is None
        assert wall["labs"] == []

    def test_it_has_counts_and_no_seat(self, board):
        for number in range(views.FEW):
            board.join(f"Person{number}").put(exercises=[at(1), *([at(3)] if number else [])])
        wall = board.wall()
        assert wall["people"] == views.FEW
        exercises = ["Shards", "A rate", "The script"]
        assert wall["labs"] == [{"lab": "07", "title": "07 · Horovod", "exercises": exercises, "passed": [5, 0, 4]}]
        assert "Person" not in json.dumps(wall)

    def test_figures_are_drawn_from_five_machines_on(self, board):
        message = {
            "lab": "03",
            "cores": 2,
            "isa": ["AVX2"],
            "figures": [{"name": "x", "value": 1.5, "unit": "×"}],
        }
        for count in range(1, views.FEW + 1):
            assert board.send_figures(message).status_code == 204
            assert ("03" in board.wall()["figures"]) == (count == views.FEW)

    def test_a_figure_of_few_machines_is_not_among_those_of_many(self, board):
        for number in range(views.FEW):
            figures = [{"name": "all", "value": 1, "unit": "×"}, {"name": f"machine {number}", "value": 2, "unit": "×"}]
            message = {"lab": "03", "cores": 2, "isa": [], "figures": figures * 9}
            assert board.send_figures(message).status_code == 204
        sent = board.wall()["figures"]["03"]
        assert [[one["name"] for one in machine["figures"]] for machine in sent] == [["all"]] * views.FEW


class TestPoster:
    def test_the_wall_says_where_to_join_and_not_the_code(self, board):
        joining = board.wall()["joining"]
        assert joining["command"] == f"./lab join {board.url}"
        for path in ("/", "/view/wall", "/poster.js"):
            assert board.code not in requests.get(board.url + path, timeout=5).text

    def test_who_has_the_code_gets_the_walls_address_as_a_picture(self, board):
        answer = self.ask(board, board.code.lower())
        assert answer["code"] == board.code
        expected = segno.make(f"{board.url}/#{board.code}", micro=False)
        dark = sum(map(sum, expected.matrix))
        assert sum(int(run) for run in re.findall(r"h([0-9]+)v1", answer["path"])) == dark
        assert answer["size"] == len(expected.matrix) + 8

    def test_the_code_of_before_gets_nothing_and_the_wall_knows_that_there_is_another(self, board):
        before, codes = board.code, board.wall()["joining"]["codes"]
        requests.post(f"{board.url}/api/code", headers=board.authorized, timeout=5)
        assert board.wall()["joining"]["codes"] != codes
        assert "./lab room status" in self.ask(board, before, 403)["error"]
        assert self.ask(board, board.store["code"])["code"] == board.shown()["code"]
        assert board.shown()["wall_address"] == f"{board.url}/#{board.store['code']}"

    def test_codes_cannot_be_tried_for_long(self, board):
        headers = {"Authorization": "Bearer AAAAAA"}
        codes = {requests.get(f"{board.url}/api/poster", headers=headers, timeout=5).status_code for _ in range(100)}
        assert codes == {403, 429}

    def ask(self, board, code: str, status: int = 200) -> dict:
        headers = {"Authorization": f"Bearer {code}"}
        answer = requests.get(f"{board.url}/api/poster", headers=headers, timeout=5)
        assert answer.status_code == status
        return answer.json()

    def test_it_is_large_until_the_first_exercise_was_passed_by_five(self, board):
        seats = [board.join() for _ in range(views.FEW)]
        for seat in seats:
            assert not board.wall()["joining"]["are_all_in"]
            seat.put(exercises=[at(1)])
        assert board.wall()["joining"]["are_all_in"]
        seats[0].leave()
        assert board.wall()["joining"]["are_all_in"], "who leaves makes it large no more"

    def test_or_until_as_many_are_in_as_are_awaited(self, tmp_path):
        board = Board(tmp_path / "board.sqlite", people=6)
        try:
            for number in range(6):
                assert not board.wall()["joining"]["are_all_in"]
                board.join().put(exercises=[at(1)] if number else [])
            assert board.wall()["joining"]["are_all_in"]
        finally:
            board.stop()

    def test_who_does_not_come_is_not_waited_for_all_day(self, tmp_path):
        board = Board(tmp_path / "board.sqlite", people=11)
        try:
            for _ in range(6):
                assert not board.wall()["joining"]["are_all_in"]
                board.join().put(exercises=[at(1)])
            assert board.wall()["joining"]["are_all_in"], "half of them have passed an exercise"
        finally:
            board.stop()


class TestTrustsNobody:
    @pytest.mark.parametrize("code", ["", "AAAAAA", "é" * 6, "A" * 13, 5, None])
    def test_a_wrong_code_opens_nothing(self, board, code):
        answer = requests.post(f"{board.url}/api/seats", json={"code": code, "seat": ""}, timeout=5)
        assert answer.status_code in (400, 403)
        assert board.shown()["people"] == 0

    def test_codes_cannot_be_tried_for_long(self, board):
        def is_refused() -> bool:
            answer = requests.post(f"{board.url}/api/seats", json={"code": "AAAAAA", "seat": ""}, timeout=5)
            return answer.status_code == 429

        # A busy machine is slow to try: meanwhile more tries are allowed, one in two seconds.
        assert any(is_refused() for _ in range(300))

    @pytest.mark.parametrize(
        "token",
        ["", "Bearer", "Bearer 1.wrong", "Bearer 99.x", "Basic 1.x", "Bearer 1.", "Bearer ¹.x", f"Bearer {'9' * 50}.x"],
    )
    def test_a_wrong_token_is_nobodys(self, board, token):
        board.join("A")
        headers = {"Authorization": token.encode("utf-8")}
        assert requests.put(f"{board.url}/api/seat", json=EMPTY, headers=headers, timeout=5).status_code == 403
        assert requests.delete(f"{board.url}/api/seat", headers=headers, timeout=5).status_code == 403
        assert board.shown()["people"] == 1

    def test_the_instructors_page_is_the_instructors(self, board):
        seat = board.join("A")
        for token in ("", "x", board.code, seat.token, "é", f"{board.instructor}x"):
            headers = {"Authorization": f"Bearer {token}".encode()}
            asked = [
                ("GET", "view/instructor"),
                ("POST", "api/code"),
                ("DELETE", "api/figures"),
                ("DELETE", "api/seats/1"),
            ]
            for method, path in asked:
                cookies = {"instructor": board.instructor}  # whoever sends it for another page has not the header
                answer = requests.request(method, f"{board.url}/{path}", headers=headers, cookies=cookies, timeout=5)
                assert answer.status_code == 403
                assert "seat" not in answer.text
        assert board.shown()["people"] == 1
        assert board.store["code"] == board.code

    @pytest.mark.parametrize(
        "change",
        [
            {"exercises": [at(1) | {"name": "Ada"}]},
            {"exercises": [at(1, verdict="brilliant")]},
            {"exercises": [at(0)]},
            {"exercises": [at(1, minute="now")]},
            {"exercises": [at(1)] * 201},
            {"exercises": None},
            {"hand": {"lab": "7", "exercise": 1}},
            {"opened": {"lab": "07"}},
            {"opened": {"lab": "07", "minute": "2026-12-01T09:41", "name": "Ada"}},
            {"guesses": [guessed("x" * 41)]},
            {"guesses": [guessed(1e16)]},
            {"guesses": [guessed(True)]},
            {"guesses": [guessed([])]},
            {"guesses": [guessed(1) | {"question": "who?"}]},
            {"guesses": [guessed(1)] * 101},
            {"guesses": None},
            {"hand": {"lab": "07", "exercise": 1, "minute": "0000-00-00T00:00"}},
            {"doctor": [{"lab": "00 Welcome", "status": "ok", "because": [], "path": "/home/ada"}]},
            {"more": 1},
        ],
    )
    def test_only_what_fits_the_schema_is_kept(self, board, change):
        answer = board.join("A").put(EMPTY | change)
        assert answer.status_code == 400
        assert board.seats()[0].state == EMPTY

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(body=st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode), st.just(b"[" * 30_000)))
    def test_whatever_is_sent_is_refused_in_one_line(self, board, body):
        for path in ("/api/seats", "/api/figures"):
            answer = requests.post(board.url + path, data=body, headers=HEADERS, timeout=5)
            assert answer.status_code in (400, 403, 429)
            assert set(answer.json()) == {"error"}

    @pytest.mark.slow
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(name=st.text(max_size=protocol.SEAT_LETTERS))
    def test_any_name_comes_back_as_one_visible_line(self, board, name):
        seat = board.join(name)
        assert seat.name
        assert seat.name.isprintable()
        assert len(seat.name) <= protocol.SEAT_LETTERS

    def test_a_large_message_is_refused(self, board):
        joining = json.dumps({"code": board.code, "seat": "A"}).encode()
        try:
            body = joining.ljust(protocol.MAX_BYTES + 1)
            status = requests.post(f"{board.url}/api/seats", data=body, headers=HEADERS, timeout=5).status_code
        except requests.RequestException:  # the board had left before all of it was sent
            status = None
        assert status in (400, 413, None)
        assert board.seats() == []
        assert requests.post(f"{board.url}/api/seats", data=joining, headers=HEADERS, timeout=5).status_code == 201

    def test_a_slow_client_is_left_and_others_are_served(self, tmp_path, monkeypatch):
        monkeypatch.setattr(app, "SLOW_CLIENT_S", 0.5)
        board = Board(tmp_path / "board.sqlite")
        try:
            with socket.create_connection(("127.0.0.1", board.port)) as slow:
                slow.sendall(b"PUT /api/seat HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
                assert board.join("A").put().status_code == 204
                slow.settimeout(60)
                assert slow.recv(1000) in (b"", *[b"HTTP/1.1 400 Bad Request\r\n\r\n"])
        finally:
            board.stop()

    def test_other_methods_and_paths_have_nothing(self, board):
        for path in ("/..%2f..%2fetc/passwd", "/board.sqlite", "/api", "/pages/board.css", "/view/instructor/"):
            assert requests.get(board.url + path, timeout=5).status_code == 404
        assert requests.delete(f"{board.url}/api/seats", timeout=5).status_code == 405
        assert requests.post(f"{board.url}/api/session", json=board.instructor, timeout=5).status_code == 404

    def test_every_answer_has_the_headers(self, board):
        for path in ("/", "/instructor", "/board.css", "/wall.js", "/view/wall", "/nothing"):
            headers = requests.get(board.url + path, timeout=5).headers
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Tornado" not in headers.get("Server", "")
            assert "Cross-Origin-Opener-Policy" not in headers, "of a page by http, browsers complain of it"

    @pytest.mark.slow
    def test_a_seat_that_floods_is_slowed_and_others_are_not(self, board, monkeypatch):
        monkeypatch.setattr(app, "MIN_COST", 10_000)  # or a busy machine would be too slow to flood it
        loud, quiet = board.join("loud"), board.join("quiet")
        codes = [loud.put().status_code for _ in range(60)]
        assert 429 in codes
        assert quiet.put().status_code == 204


class TestDisk:
    def test_a_full_disk_is_told_and_what_was_confirmed_stays(self, board):
        seat = board.join("A")
        assert seat.put(exercises=[at(1)]).status_code == 204
        pages = board.sql("PRAGMA page_count")[0][0]
        board.sql(f"PRAGMA max_page_count = {pages}")
        long = [at(number, minute="2026-12-01T09:41") for number in range(1, 20)] * 10
        assert seat.put(exercises=long).status_code == 507
        assert board.shown()["seats"][0]["passed"] == 1
        board.sql("PRAGMA max_page_count = 100000")
        assert seat.put(exercises=[at(1), at(2)]).status_code == 204

    def test_the_file_is_the_instructors_alone(self, board):
        assert stat.S_IMODE(os.stat(board.path).st_mode) == 0o600  # noqa: PTH116


class TestStream:
    def test_a_change_arrives_by_itself(self, board):
        headers = {"Accept": "text/event-stream"}
        address = f"{board.url}/view/instructor"
        with requests.get(address, headers=headers | board.authorized, stream=True, timeout=5) as stream:
            lines = stream.iter_lines(decode_unicode=True)
            assert json.loads(next(line for line in lines if line).removeprefix("data: "))["people"] == 0
            board.join("A")
            assert json.loads(next(line for line in lines if line).removeprefix("data: "))["people"] == 1

    def test_a_page_that_does_not_read_harms_nobody(self, board):
        with socket.create_connection(("127.0.0.1", board.port)) as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            silent.sendall(b"GET /view/wall HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
            seat = board.join("A")
            for number in range(1, 15):
                assert seat.put(exercises=[at(number)]).status_code == 204
