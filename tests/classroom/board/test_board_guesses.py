"""The wall shows what a room has guessed, of five people or more, and what was measured only once it may be seen."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from room_board import ASKED, guessed

from labkit.exercises import sources
from labkit_classroom.board import bins, guesses, protocol, questions, views
from labkit_classroom.board.questions import Question

NUMBER = Question("03", 1, "oneDNN against Eigen", "×")
CHOICE = Question("07", 1, "what limits it", choices=("arithmetic", "memory", "neither"))


def shown(*answers: tuple, question: Question = NUMBER) -> dict | None:
    """Return what the wall shows when seats have guessed and measured this."""
    room = guesses.Guesses([question])
    for seat, (guess, here) in enumerate(answers):
        room.replace(seat, [], [guessed(guess, here, question.lab, question.number)])
    return room.shown()


def counts(found: dict) -> dict[str, int]:
    return {bar["label"]: bar["count"] for bar in found["bars"]}


@pytest.fixture(scope="module")
def of_all_labs():
    return [question for source in sources.labs() for question in questions.read(source)]


class TestQuestions:
    def test_each_question_of_the_labs_is_known(self, of_all_labs):
        calls = sum(source.read_text().count("results.guess(") for source in sources.labs())
        assert len(of_all_labs) == calls > 50

    def test_each_has_a_unit_or_choices_that_a_seat_can_send(self, of_all_labs):
        for question in of_all_labs:
            assert bool(question.unit) != bool(question.choices), question
            assert all(0 < len(choice) <= protocol.CHOICE_LETTERS for choice in question.choices)

    def test_what_is_known_only_where_a_lab_runs_is_left_open(self, of_all_labs):
        texts = {(question.lab, question.number): question.text for question in of_all_labs}
        assert texts["07", 2] == "images per second, … ranks against one"

    @pytest.mark.parametrize(
        ("cells", "choices"),
        [
            ('results.guess(1, "q", ..., choices=("a", "b"))', ("a", "b")),
            ('K = {"a": 1, "b": 2}\nresults.guess(1, "q", ..., choices=tuple(K))', ("a", "b")),
            ('K = ("a", "b")\n\n# %%\nresults.guess(1, "q", ..., choices=K)', ("a", "b")),
        ],
    )
    def test_choices_are_read_however_they_are_written(self, tmp_path, cells, choices):
        source = tmp_path / "07_x.py"
        source.write_text(f"# %%\n{cells}\n")
        assert questions.read(source) == (Question("07", 1, "q", choices=choices),)

    def test_choices_that_cannot_be_read_are_no_question(self, tmp_path):
        source = tmp_path / "07_x.py"
        source.write_text('# %%\nresults.guess(1, "q", ..., choices=make())\nresults.guess(2, "r", ..., unit="s")\n')
        assert questions.read(source) == (Question("07", 2, "r", "s"),)

    def test_only_what_answers_a_question_is_kept(self):
        asked = {("03", 1): NUMBER, ("07", 1): CHOICE}
        sent = [
            guessed("<b>typed</b>"),
            guessed(2, "memory"),
            guessed("memory", 5, "07"),
            guessed(3, lab="07"),
            guessed(1, lab="99"),
            guessed(None, "neither", "07"),
        ]
        kept = questions.fitting(sent, asked)
        assert kept == [guessed(2, None), guessed(None, "neither", "07")]


class TestBins:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([2] * 5, [2, 2.5]),
            ([0] * 5, [0, 1]),
            ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]),
            ([1.5, 1.8, 2, 2, 2.5, 3, 10, 1e12], [1.5, 2, 2.5, 3, 3.5]),
            ([2, 2, 3, 4, 1e12], [2, 2.5, 3, 3.5, 4, 4.5]),
            ([1, 5, 10, 100, 400], [1, 2, 5, 10, 20, 50, 100, 200]),
            ([1, 10, 1000, 1e5, 1e9], [1, 10, 100, 1000, 1e4, 1e5, 1e6]),
            ([1, 10, 1e6, 1e13, 1e14], [1, 1e2, 1e4, 1e6, 1e8, 1e10, 1e12, 1e14]),
        ],
    )
    def test_they_are_round_and_few(self, values, expected):
        assert bins.edges(values) == expected

    @settings(derandomize=True, deadline=None)
    @given(st.lists(st.floats(-protocol.LARGEST, protocol.LARGEST) | st.integers(-3, 3), min_size=5, max_size=60))
    def test_whatever_is_guessed_they_rise_are_few_and_hold_the_middle_half(self, values):
        found = bins.edges(values)
        assert 2 <= len(found) <= bins.MOST + 2
        assert all(low < high for low, high in itertools.pairwise(found))
        ordered = sorted(values)
        middle = ordered[-(-(len(values) - 1) // 4) : 3 * (len(values) - 1) // 4 + 1]
        slack = 1e-9 * max(map(abs, middle))
        assert all(found[0] - slack <= value < found[-1] + slack for value in middle)


class TestWall:
    def test_of_fewer_than_five_it_shows_nothing(self):
        few = [(number, number) for number in range(views.FEW - 1)]
        assert shown(*few) is None
        assert shown(*few, (None, 3)) is None, "who has measured has not guessed"
        assert shown(*few, (3, None))["given"] == views.FEW

    def test_before_the_reveal_nothing_that_was_measured_is_in_it(self):
        found = shown((1, 7.5), (1, 7.5), (2, 7.5), (2, 7.5), (3, None), (3, None))
        assert found["measured"] == ""
        assert not any(bar["measured"] for bar in found["bars"])
        assert "7.5" not in json.dumps(found)

    def test_half_of_those_who_guessed_and_five_have_measured(self):
        answers = [(2, 1.5)] * 5 + [(3, None)] * 6
        assert not shown(*answers)["measured"]
        assert shown(*answers[:-1])["measured"]
        assert not shown(*answers, *[(None, 1.5)] * 9)["measured"], "figures alone reveal nothing"

    def test_after_it_median_and_range_stand_beside_the_guesses(self):
        found = shown(*[(guess, here) for guess, here in zip([1, 2, 2, 3, 30], [1.1, 1.2, 2.6, 2.7, 9], strict=True)])
        assert found["measured"] == "Measured on 5 machines: median 2.6×, from 1.1× to 9×"
        assert [bar["label"] for bar in found["bars"] if bar["measured"]] == ["2.5 to < 3×"]
        assert counts(found)["2 to < 2.5×"] == 2
        assert sum(counts(found).values()) == 5

    def test_one_joke_takes_no_room_from_the_others(self):
        found = shown(*[(guess, None) for guess in (1, 1.5, 2, 2.5, 3, 1e12, -1e12)])
        labels = list(counts(found))
        assert (labels[0], labels[-1]) == ("< 1×", "≥ 3.5×")
        assert len(labels) <= bins.MOST + 2

    def test_a_median_where_nobody_guessed_is_in_an_open_bar(self):
        found = shown(*[(2, 40)] * 5)
        assert [(bar["label"], bar["count"], bar["measured"]) for bar in found["bars"]] == [
            ("2 to < 2.5×", 5, False),
            ("≥ 2.5×", 0, True),
        ]

    def test_choices_are_bars_in_their_order(self):
        answers = [("memory", "memory")] * 3 + [("arithmetic", "arithmetic")] * 2
        found = shown(*answers, question=CHOICE)
        assert counts(found) == {"arithmetic": 2, "memory": 3, "neither": 0}
        assert [bar["label"] for bar in found["bars"] if bar["measured"]] == ["memory"]
        assert found["measured"] == "Measured on 5 machines: memory 3, arithmetic 2"

    def test_it_is_the_furthest_question_that_five_have_answered(self):
        room = guesses.Guesses([CHOICE, NUMBER])  # in the timetable's order
        for seat in range(9):
            first = guessed("memory", lab="07")
            room.replace(seat, [], [first])
            assert (room.shown() or {}).get("lab") == ("07" if seat >= views.FEW - 1 else None)
        for seat in range(views.FEW):
            room.replace(seat, [guessed("memory", lab="07")], [guessed("memory", lab="07"), guessed(2)])
            assert room.shown()["lab"] == ("03" if seat == views.FEW - 1 else "07")
        room.replace(0, [guessed("memory", lab="07"), guessed(2)], [])  # somebody leaves
        assert room.shown()["lab"] == "07"

    def test_it_is_worked_out_once_for_all_who_look(self, monkeypatch):
        room = guesses.Guesses(ASKED)
        for seat in range(views.FEW):
            room.replace(seat, [], [guessed(seat)])
        first = room.shown()
        monkeypatch.setattr(bins, "edges", lambda _: pytest.fail("nothing has changed"))
        assert room.shown() is first
        room.replace(0, [guessed(0)], [guessed(0)])
        assert room.shown() is first

    def test_what_seats_send_is_on_the_wall_and_nothing_that_anybody_typed(self, board):
        chance = random.Random(1)
        for number in range(8):
            typed = guessed("<img src=x>", lab="07")
            here = chance.uniform(1, 2) if number < 4 else None
            answer = board.join(f"S{number}").put(guesses=[guessed(chance.uniform(1, 4), here), typed])
            assert answer.status_code == 204
        wall = board.wall()
        assert (wall["guess"]["question"], wall["guess"]["given"]) == ("oneDNN against Eigen", 8)
        assert "img" not in json.dumps(board.shown())
        assert b"img" not in board.path.read_bytes()
