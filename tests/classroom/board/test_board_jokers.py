"""Who has the room's code, and means harm, gets their share of the board and no more, until the instructor acts."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from room_board import ASKED, EMPTY, HEADERS, at, guessed

from labkit_classroom.board import app, limits, protocol, views
from labkit_classroom.board.store import Seat, Store

ADA = ["Ada", "ada", " ADA ", "A\u200bda", "A\u00add\u2060a", "Ａｄａ", "𝐀da", "Ad\u3164a", "Ada\ufe0f", "A\u034fda"]


def message(*names: str) -> dict:
    """Return closing figures of these names."""
    figures = [{"name": name, "value": 1.5, "unit": "×"} for name in names]
    return {"lab": "03", "cores": 2, "isa": ["AVX2"], "figures": figures}


def order(board, method: str, path: str) -> int:
    """Do what the instructor's page does."""
    return requests.request(method, f"{board.url}/api/{path}", headers=board.authorized, timeout=5).status_code


class TestFigures:
    def test_a_seat_sends_those_of_a_lab_once_and_of_no_lab_for_another(self, board):
        joker = board.join("Joker")
        assert [board.send_figures(message("x"), joker).status_code for _ in range(3)] == [204, 403, 403]
        ticket = {"ticket": protocol.ticket(joker.token, "07")}
        answer = requests.post(f"{board.url}/api/figures", json=message("x") | ticket, timeout=5)
        assert answer.status_code == 403, "another lab's"
        for ticket in ("0" * 64, board.code, joker.token, 64 * "é"):
            answer = requests.post(f"{board.url}/api/figures", json=message("x") | {"ticket": ticket}, timeout=5)
            assert answer.status_code in (400, 403)
        assert board.sql("SELECT COUNT(*) FROM figures") == [(1,)]

    def test_one_seat_puts_nothing_on_the_wall_and_five_machines_are_five_seats(self, board):
        joker = board.join("Joker")
        for _ in range(views.FEW):
            board.send_figures(message("nonsense"), joker)
        assert board.wall()["figures"] == {}

    def test_the_instructor_deletes_them_and_what_comes_later_is_shown(self, board):
        for _ in range(views.FEW):
            assert board.send_figures(message("nonsense")).status_code == 204
        assert board.wall()["figures"]
        assert order(board, "DELETE", "figures") == 204
        assert board.wall()["figures"] == {}
        assert b"nonsense" not in board.path.read_bytes()
        for _ in range(views.FEW):
            assert board.send_figures(message("sense")).status_code == 204
        assert len(board.wall()["figures"]["03"]) == views.FEW

    def test_they_are_bounded_by_bytes_of_an_address_and_in_all(self, board, monkeypatch):
        large = message(*(f"{number} {'x' * 90}" for number in range(60)))
        monkeypatch.setattr(app, "MAX_FIGURE_BYTES", 20_000)
        assert [board.send_figures(large).status_code for _ in range(3)] == [204, 204, 503]
        assert limits.Limit(20_000, 60).allows("a", 15_000)

    def test_a_message_touches_no_more_of_them_when_there_are_many(self, monkeypatch):
        """A figure's kind is shown from the fifth machine on: only these five are made anew."""
        made = []
        show = views._Machine.show
        monkeypatch.setattr(views._Machine, "show", lambda self, kinds: made.append(self) or show(self, kinds))
        figures = views.Figures()
        most = 0
        for number in range(400):
            before = len(made)
            figures.replace("03", message("all", f"of {number // 7}"))
            most = max(most, len(made) - before)
        assert most <= views.FEW
        shown = figures.shown()["03"]
        assert len(shown) == 400
        assert sum(len(machine["figures"]) for machine in shown) == 400 + 7 * 57

    def test_the_stream_brings_them_when_they_have_changed(self, board):
        for _ in range(views.FEW):
            board.send_figures(message("x"))
        headers = {"Accept": "text/event-stream"}
        with requests.get(f"{board.url}/view/wall", headers=headers, stream=True, timeout=5) as stream:
            events = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith(b"data: "))
            assert "figures" in next(events)
            board.join()
            assert "figures" not in next(events)
            board.send_figures(message("x"))
            assert any("figures" in event for event in events)


class TestWork:
    def test_a_message_changes_what_it_is_about_and_nothing_else(self, board, monkeypatch):
        for _ in range(30):
            board.join()
        made = []
        row, lacks = views._row, views._lacks
        monkeypatch.setattr(views, "_row", lambda seat: made.append(seat.id) or row(seat))
        monkeypatch.setattr(views, "_lacks", lambda one: made.append(one["lab"]) or lacks(one))
        seat = board.join("A")
        seat.put(exercises=[at(1)], doctor=[{"lab": "07 Horovod", "status": "fail", "because": ["é" * 60] * 30}])
        assert len(board.shown()["doctor"]["labs"][0]["cannot"][0]["because"]) == views.BECAUSE_LETTERS
        assert board.shown()["people"] == 31
        assert board.wall()["people"] == 31
        assert made == [31, 31, "07 Horovod"]

    @settings(max_examples=60, derandomize=True, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.integers(1, 4),
                st.none()
                | st.lists(
                    st.tuples(
                        st.sampled_from(["03", "07"]),
                        st.integers(1, 3),
                        st.sampled_from(["passed", "not yet", "not attempted", "the check itself failed"]),
                        st.integers(0, 3),
                        st.sampled_from([None, 1, 2.5]),
                    ),
                    max_size=6,
                ),
            ),
            max_size=12,
        )
    )
    def test_changed_one_by_one_it_is_as_counted_anew(self, changes):
        tally, there = views.Tally(questions=ASKED), dict[int, Seat]()
        for number, exercises in changes:
            before = there.pop(number, None)
            if exercises is not None:
                state = EMPTY | {
                    "exercises": [
                        {"lab": lab, "exercise": n, "verdict": verdict, "hint": hint, "minute": "2026-12-01T09:41"}
                        for lab, n, verdict, hint, _ in exercises
                    ],
                    "guesses": [guessed(guess, 2) for *_, guess in exercises[-1:]],
                }
                there[number] = Seat(number, f"S{number}", 0, 0, 0, None, False, state)
            if before or number in there:
                tally.replace(before, there.get(number))
                tally.guesses.shown()
        anew = views.Tally(there.values(), ASKED)
        assert (tally.people, tally.passed, tally.begun, tally.rows) == (
            anew.people,
            anew.passed,
            anew.begun,
            anew.rows,
        )
        assert tally.stuck() == anew.stuck()
        assert tally.guesses._answers.keys() >= anew.guesses._answers.keys()
        assert all(answers == anew.guesses._answers.get(place, {}) for place, answers in tally.guesses._answers.items())


class TestSeats:
    @pytest.mark.slow  # hundreds of messages
    def test_of_one_address_a_room_joins_and_a_crowd_does_not(self, board, monkeypatch):
        with ThreadPoolExecutor(8) as pool:
            codes = [*pool.map(lambda _: self.join(board), range(206))]
        assert codes.count(201) >= 200, "forty, and more, behind one router"
        assert set(codes[-3:]) == {429}
        assert order(board, "POST", "code") == 204
        assert self.join(board) == 403, "the joker has the old code"
        board.code = board.store["code"]
        assert self.join(board) == 201, "newcomers have the new one"

    def join(self, board) -> int:
        body = {"code": board.code, "seat": ""}
        return requests.post(f"{board.url}/api/seats", json=body, timeout=20).status_code

    @pytest.mark.slow  # hundreds of messages
    def test_who_tries_codes_takes_no_joining_from_others_behind_the_same_router(self, board):
        for _ in range(400):
            requests.post(f"{board.url}/api/seats", data=b'{"code": "AAAAAA", "seat": ""}', headers=HEADERS, timeout=5)
        assert self.join(board) == 201

    def test_a_seat_that_sends_all_it_may_takes_nothing_from_another_of_its_address(self, board):
        loud, quiet = board.join("loud"), board.join("quiet")
        body = json.dumps(EMPTY | {"exercises": [at(1)] * 200})
        codes = [loud.put(json.loads(body)).status_code for _ in range(25)]
        assert 429 in codes
        assert [quiet.put(exercises=[at(1)] * 100).status_code for _ in range(5)] == [204] * 5

    def test_the_instructor_removes_one_with_all_it_has(self, board):
        joker, other = board.join("Joker"), board.join("Other")
        joker.put(exercises=[at(1)], hand={"lab": "07", "exercise": 1})
        assert order(board, "DELETE", "seats/1") == 204
        assert [row["seat"] for row in board.shown()["seats"]] == ["Other"]
        assert joker.put().status_code == joker.leave().status_code == 403
        assert b"Joker" not in board.path.read_bytes()
        assert other.put().status_code == 204
        assert board.join("Joker").token.partition(".")[0] == "3", "nobody gets the number of who was removed"
        assert order(board, "DELETE", "seats/99") == 204
        assert order(board, "DELETE", "seats/x") == 404

    def test_what_is_under_way_when_it_is_removed_brings_it_not_back(self, tmp_path):
        async def run() -> None:
            store = Store(tmp_path / "board.sqlite")
            await store.join("A", ())
            await asyncio.gather(store.leave(1), store.put(1, EMPTY), store.leave(1))
            assert store.seats == {}
            store.close()

        asyncio.run(run())

    def test_a_new_code_is_kept_and_seats_with_the_old_one_go_on(self, board):
        seat = board.join("A")
        assert order(board, "POST", "code") == 204
        code = board.store["code"]
        assert code != board.code
        assert board.shown()["code"] == code
        assert seat.put(exercises=[at(1)]).status_code == 204
        assert board.send_figures(message("x"), seat).status_code == 204
        board.stop()
        board.start()
        assert board.code == code


class TestHands:
    def test_the_board_says_who_came_first(self, board):
        seats = [board.join(name) for name in "ABC"]
        hand = {"lab": "07", "exercise": 1}
        for number in (1, 0, 2):
            seats[number].put(hand=hand)
        assert [row["seat"] for row in board.shown()["seats"]] == ["B", "A", "C"]
        seats[1].put(hand={"lab": "07", "exercise": 2})
        assert [row["seat"] for row in board.shown()["seats"]] == ["B", "A", "C"], "still up"
        board.stop()
        board.start()
        assert [row["seat"] for row in board.shown()["seats"]] == ["B", "A", "C"]
        for state in (None, hand):
            seats[1].put(hand=state)
        assert [row["seat"] for row in board.shown()["seats"]] == ["A", "C", "B"], "up again, behind the others"

    def test_a_clock_that_is_set_back_changes_no_order(self, board, monkeypatch):
        first, second = board.join("first"), board.join("second")
        first.put(hand={"lab": "07", "exercise": 1})
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() - 7200)
        second.put(hand={"lab": "07", "exercise": 1})
        assert [row["seat"] for row in board.shown()["seats"]] == ["first", "second"]
        assert board.seats()[1].heard >= board.seats()[0].heard
        assert [row["silent"] for row in board.shown()["seats"]] == [None, None]


class TestNames:
    def test_who_looks_like_another_gets_a_number(self, board):
        given = [board.join(name).name for name in ADA]
        assert [name.rpartition(" ")[2] for name in given[1:]] == [str(number) for number in range(2, len(ADA) + 1)]
        assert given[:2] == ["Ada", "ada 2"]
        assert board.join("Ada 2").name == "Ada 2 2"
        assert [board.join(name).name for name in ("seat 13", "")] == ["seat 13", "seat 13 2"]

    def test_a_long_name_and_its_number_fit(self, board):
        names = [board.join("W" * 24).name for _ in range(11)]
        assert len(set(names)) == 11
        assert max(map(len, names)) == 24

    def test_a_name_without_anything_to_see_is_none(self, board):
        assert board.join("\u3164\u200b\u2800").name == "seat 1"

    def test_marks_do_not_pile_up(self):
        assert protocol.seat_name("a" + "\u0335" * 20) == "a" + "\u0335" * protocol.MARKS

    def test_a_number_is_found_among_many_by_few_looks(self, tmp_path):
        async def run() -> None:
            store = Store(tmp_path / "board.sqlite")
            await asyncio.gather(*(store.join("Ada", ()) for _ in range(300)))
            looks = []
            store._database.set_trace_callback(looks.append)
            name, _ = await store.join("ada", ())
            assert len([one for one in looks if "key =" in one]) < 20
            assert name == "ada 301"
            store.close()

        asyncio.run(run())

    @settings(max_examples=200, derandomize=True)
    @given(st.lists(st.text(max_size=24) | st.sampled_from(ADA), min_size=2, max_size=2))
    def test_of_two_that_are_given_out_none_is_like_the_other(self, names):
        first, second = map(protocol.seat_name, names)
        assert protocol.name_key(first) == protocol.name_key(protocol.seat_name(first))
        if first.casefold() == second.casefold():
            assert protocol.name_key(first) == protocol.name_key(second)


PARTS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["07", "passed"])
)
KEYS = st.sampled_from(
    ["code", "seat", "exercises", "hand", "doctor", "lab", "exercise", "ticket", "cores", "isa", "x"]
)
MESSAGES = st.recursive(
    PARTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6), max_leaves=8
)


@pytest.fixture
def seat(board, monkeypatch):
    monkeypatch.setattr(limits.Limit, "allows", lambda *_: True)
    return board.join()


@pytest.mark.slow  # hundreds of messages
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=MESSAGES)
def test_whatever_json_is_sent_is_kept_by_the_schema_or_refused_in_one_line(board, seat, content):
    body = json.dumps(content).encode()
    ways = [("POST", "seats"), ("PUT", "seat"), ("POST", "figures"), ("POST", "code"), ("DELETE", "seats/1")]
    for method, path in ways:
        headers = HEADERS | seat.headers
        answer = requests.request(method, f"{board.url}/api/{path}", data=body, headers=headers, timeout=5)
        assert answer.status_code in (204, 400, 403)
        if answer.status_code != 204:
            assert set(answer.json()) == {"error"}
    assert board.shown()["people"] == 1
