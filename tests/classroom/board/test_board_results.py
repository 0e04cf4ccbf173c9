"""The wall shows guesses and results from five people or machines on, without seats, and no results too early."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from room_board import EMPTY, guessed

from labkit.exercises import catalogue
from labkit.exercises.catalogue import Question
from labkit_classroom.board import protocol
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.results import Results, bin_edges, questions_in_order
from labkit_classroom.board.store import Seat

NUMBER = Question("03", 1, "oneDNN against Eigen", "×")
CHOICE = Question("07", 1, "what limits it", choices=("arithmetic", "memory", "neither"))


def room(*answers: tuple, questions=(NUMBER,), lab="03") -> Results:
    """Return the results of seats with these guesses and results."""
    seats = []
    for number, (guess, here) in enumerate(answers):
        state = EMPTY | {"guesses": [guessed(guess, here, lab)]}
        seats.append(Seat(number, f"S{number}", "", 0, 0, state=state))
    return Results(questions, seats)


def counts(guess: dict) -> dict[str, int]:
    return {bar["label"]: bar["count"] for bar in guess["bars"]}


def test_every_question_has_a_unit_or_valid_choices():
    questions = questions_in_order(catalogue.labs(), ())
    assert len(questions) > 50
    for question in questions:
        assert bool(question.unit) != bool(question.choices), question
        assert all(0 < len(choice) <= protocol.CHOICE_LETTERS for choice in question.choices)


class TestBins:
    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ([2] * 5, [2, 2.5]),
            ([0] * 5, [0, 0.2]),
            ([1, 2, 3, 4, 5], [2, 2.5, 3, 3.5, 4, 4.5]),
            ([1.5, 2, 2, 3, 1e12], [2, 2.2, 2.4, 2.6, 2.8, 3, 3.2]),
        ],
    )
    def test_bin_edges_are_round_and_few(self, values, expected):
        assert bin_edges(values) == expected

    @settings(derandomize=True, deadline=None)
    @given(st.lists(st.floats(-protocol.MAX_MAGNITUDE, protocol.MAX_MAGNITUDE) | st.integers(-3, 3), min_size=5))
    def test_bin_edges_are_ascending_few_and_contain_the_median(self, values):
        edges = bin_edges(values)
        assert 2 <= len(edges) <= 9
        assert all(low < high for low, high in itertools.pairwise(edges))
        middle = sorted(values)[len(values) // 2]
        slack = 1e-6 * abs(middle)
        assert edges[0] - slack <= middle <= edges[-1] + slack


class TestGuess:
    def test_nothing_is_shown_for_fewer_than_five(self):
        few = [(number, number) for number in range(FEW - 1)]
        assert room(*few).guess() is None
        assert room(*few, (None, 3)).guess() is None, "a result is not a guess"
        assert room(*few, (3, None)).guess()["given"] == FEW

    def test_a_pinned_question_is_shown_even_without_guesses(self):
        later = Question("03", 2, "later", "×")
        held = {"lab": "03", "number": 2}
        results = room(*[(2, None)] * FEW, questions=(NUMBER, later))
        assert (results.guess()["number"], results.guess(held)["number"], results.guess(held)["given"]) == (1, 2, 0)
        few = [(number, None) for number in range(FEW - 1)]
        assert room(*few).guess({"lab": "03", "number": 1})["bars"] == []
        assert results.guess({"lab": "99", "number": 1}) is None

    def test_results_are_shown_once_half_of_the_guessers_have_measured(self):
        answers = [(2, 7.5)] * 5 + [(3, None)] * 6
        before = room(*answers)
        assert "7.5" not in json.dumps([before.guess(), before.measured()])
        assert not any(bar["measured"] for bar in before.guess()["bars"])
        after = room(*answers[:-1])
        assert after.guess()["summary"] == after.measured()[0]["summary"] == "median 7.5× (7.5 to 7.5), 5 machines"
        assert not room(*[(2, 7.5)] * 4 + [(3, None)]).measured(), "nothing from four machines"

    def test_the_bar_containing_the_median_is_marked(self):
        results = room(*zip([1, 2, 2, 3, 30], [1.1, 1.2, 2.6, 2.7, 9], strict=True)).guess()
        assert results["summary"] == "median 2.6× (1.1 to 9), 5 machines"
        assert [bar["label"] for bar in results["bars"] if bar["measured"]] == ["2.6 to < 2.8×"]
        assert sum(counts(results).values()) == 5

    def test_absurd_guesses_are_in_the_open_ended_bars(self):
        labels = list(counts(room(*[(guess, None) for guess in (1, 1.5, 2, 2.5, 3, 1e12, -1e12)]).guess()))
        assert (labels[0], labels[-1]) == ("< 1×", "≥ 3.5×")

    def test_a_median_beyond_all_guesses_is_in_an_open_ended_bar(self):
        results = room(*[(2, 40)] * 5).guess()
        assert [tuple(bar.values()) for bar in results["bars"]] == [("2 to < 2.5×", 5, False), ("≥ 2.5×", 0, True)]

    def test_choices_are_bars_in_order(self):
        answers = [("memory", "memory")] * 3 + [("arithmetic", "arithmetic")] * 2
        results = room(*answers, questions=(CHOICE,), lab="07")
        assert counts(results.guess()) == {"arithmetic": 2, "memory": 3, "neither": 0}
        assert [bar["label"] for bar in results.guess()["bars"] if bar["measured"]] == ["memory"]
        assert results.measured()[0]["summary"] == "memory 3, arithmetic 2, 5 machines"
        assert results.measured()[0]["values"] == []

    def test_it_is_the_furthest_question_with_five_answers(self):
        answers = [(2, None)] * FEW
        later = Question("03", 2, "later", "×")
        assert room(*answers, questions=(NUMBER, later)).guess()["question"] == NUMBER.text
        assert room(*answers, questions=(Question("03", 2, "earlier"), NUMBER)).guess()["question"] == NUMBER.text

    def test_only_answers_to_known_questions_count(self):
        invalid = [("<b>typed</b>", "<i>"), ("memory", 5)] * FEW
        assert room(*invalid).guess() is None
        assert not room(*invalid, questions=(CHOICE,), lab="07").measured()
        assert room(*[(1, 1)] * FEW, lab="99").guess() is None


PAIRS = Question("03", 1, "promised and kept", "images/s", pairs=True)


def test_pairs_are_shown_without_seats_and_from_five_people_on():
    answers = [(9000 - number, 8000 + number) for number in range(FEW)]
    (result,) = room(*answers, questions=(PAIRS,)).measured()
    assert result["pairs"] == sorted(answers)
    assert not room(*answers).measured()[0]["pairs"], "this question doesn't ask for pairs"
    (result,) = room(*answers[1:], (None, 5), questions=(PAIRS,)).measured()
    assert (result["pairs"], len(result["values"])) == ([], FEW), "a result without a guess is not a pair"


def test_results_are_on_the_wall_without_seats(board):
    for number in range(6):
        answer = board.join(f"Person{number}").put(guesses=[guessed(2 + number / 10, 1 + number / 10)])
        assert answer.status_code == 204
    wall = board.wall()
    assert (wall["guess"]["question"], wall["guess"]["given"]) == ("oneDNN against Eigen", 6)
    (result,) = wall["results"]
    assert result["values"] == [1, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert "Person" not in json.dumps(wall)
