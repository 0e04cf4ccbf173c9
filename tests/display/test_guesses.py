import json

import pytest

from labkit.display import guesses
from labkit.display.results import Results, find_problem
from labkit.measure.figures import Measured

FIGURE = Measured(1.31, 1.2, 1.4, "×")


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("labkit.system.terminal._seen", set())
    return Results("02")


def stored(results):
    return json.loads(results.path.read_text())["guesses"]


def test_numbers_and_choices_are_guesses_in_any_notation():
    for answer in (2, 2.0, "2", "2×", "2x", " 2 × "):
        assert guesses.parse(answer, "×") == ("2×", 2.0, "")
    for answer in ("memory", "Memory", " MEMORY "):
        assert guesses.parse(answer, choices=("arithmetic", "memory")) == ("memory", "memory", "")


@pytest.mark.parametrize("answer", [..., None])
@pytest.mark.parametrize("choices", [(), ("a", "b")])
def test_three_dots_are_not_a_guess(answer, choices):
    guess = guesses.parse(answer, "×", choices)
    assert (guess.text, guess.value) == ("", None)
    assert guess.advice.startswith("No guess yet")


@pytest.mark.parametrize("answer", ["two", True, float("nan"), float("inf"), 10**400, [2], print, "", object(), 1j])
@pytest.mark.parametrize("choices", [(), ("a", "b")])
def test_invalid_guesses_are_explained_and_the_lab_continues(results, capsys, answer, choices):
    results.guess(1, "threads", answer, unit="×", choices=choices)
    assert "Guess 1 · none.\n   A guess is " in capsys.readouterr().out
    assert stored(results)["1"]["guess"] == ""
    assert stored(results)["1"]["values"] == [None, None]


def test_a_guess_is_shown_with_its_figure_and_both_are_stored(results, capsys):
    results.guess(1, "two threads vs one", 2, unit="×")
    results.compare_guess(1, FIGURE)
    assert capsys.readouterr().out == (
        "Guess 1 · you: 2×.\nGuess 1 · two threads vs one · you: 2×, measured: 1.31× (1.20 to 1.40).\n"
    )
    assert stored(results) == {
        "1": {
            "question": "two threads vs one",
            "guess": "2×",
            "here": "1.31× (1.20 to 1.40)",
            "values": [2.0, 1.31],
        }
    }
    assert find_problem(json.loads(results.path.read_text())) == ""


def test_without_a_guess_only_the_figure_is_shown(results, capsys):
    results.guess(1, "what limits it", ..., choices=("arithmetic", "memory"))
    results.compare_guess(1, "memory")
    results.compare_guess(2, FIGURE)  # its question's cell was skipped
    output = capsys.readouterr().out.splitlines()
    assert output[-2:] == [
        "Guess 1 · what limits it · measured: memory.",
        "Guess 2 · measured: 1.31× (1.20 to 1.40).",
    ]


def test_a_new_guess_keeps_the_figure(results):
    results.guess(1, "threads", 2, unit="×")
    results.compare_guess(1, FIGURE)
    results.guess(1, "threads", 3, unit="×")
    assert stored(results)["1"] == {"question": "threads", "guess": "3×", "here": str(FIGURE), "values": [3.0, 1.31]}


def test_measured_choices_and_figures_that_are_not_finite_are_stored(results):
    results.guess(1, "what limits it", "memory", choices=("arithmetic", "memory"))
    results.compare_guess(1, "arithmetic")
    results.guess(2, "threads", 2, unit="×")
    results.compare_guess(2, Measured(float("nan"), unit="×"))
    assert [stored(results)[number]["values"] for number in "12"] == [["memory", "arithmetic"], [2.0, None]]


def test_the_lab_continues_if_nothing_can_be_stored(results, capsys):
    results.path.parent.write_text("a file where the folder should be")
    results.guess(1, "threads", 2, unit="×")
    results.compare_guess(1, FIGURE)
    assert "measured: 1.31×" in capsys.readouterr().out
