import json

import pytest

from labkit.display import guesses
from labkit.display.measured import Measured
from labkit.display.results import Results, find_problem
from labkit.system import files

HERE = Measured(1.31, 1.2, 1.4, "×")


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "_warned", set())
    return Results("02")


def kept(results):
    return json.loads(results.path.read_text())["guesses"]


@pytest.mark.parametrize("answer", [2, 2.0, "2", "2×", "2x", " 2 × "])
def test_a_number_is_a_guess_however_it_is_written(answer):
    assert guesses.parse(answer, "×") == ("2×", 2.0, "")


@pytest.mark.parametrize("answer", ["memory", "Memory", " MEMORY "])
def test_a_choice_is_a_guess_however_it_is_written(answer):
    assert guesses.parse(answer, choices=("arithmetic", "memory")) == ("memory", "memory", "")


@pytest.mark.parametrize("answer", [..., None])
@pytest.mark.parametrize("choices", [(), ("a", "b")])
def test_dots_are_no_guess(answer, choices):
    guess = guesses.parse(answer, "×", choices)
    assert (guess.text, guess.value) == ("", None)
    assert guess.what_to_do.startswith("No guess yet")


@pytest.mark.parametrize("answer", ["two", True, float("nan"), float("inf"), 10**400, [2], print, "", object(), 1j])
@pytest.mark.parametrize("choices", [(), ("a", "b")])
def test_what_is_no_guess_says_what_one_is_and_the_lab_goes_on(results, capsys, answer, choices):
    results.guess(1, "threads", answer, unit="×", choices=choices)
    assert "Guess 1 · none.\n   A guess is " in capsys.readouterr().out
    assert kept(results)["1"]["guess"] == ""
    assert kept(results)["1"]["values"] == [None, None]


def test_a_guess_is_shown_beside_the_figure_and_both_are_kept(results, capsys):
    results.guess(1, "two threads against one", 2, unit="×")
    results.compare_guess(1, HERE)
    assert capsys.readouterr().out == (
        "Guess 1 · you: 2×.\nGuess 1 · two threads against one · you: 2×, here: 1.31× (1.20 to 1.40).\n"
    )
    assert kept(results) == {
        "1": {
            "question": "two threads against one",
            "guess": "2×",
            "here": "1.31× (1.20 to 1.40)",
            "values": [2.0, 1.31],
        }
    }
    assert find_problem(json.loads(results.path.read_text())) == ""


def test_who_ran_on_without_a_guess_sees_the_figure_alone(results, capsys):
    results.guess(1, "what limits it", ..., choices=("arithmetic", "memory"))
    results.compare_guess(1, "memory")
    results.compare_guess(2, HERE)  # whose question was left out
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == ["Guess 1 · what limits it · here: memory.", "Guess 2 · here: 1.31× (1.20 to 1.40)."]


def test_another_guess_keeps_the_figure(results):
    results.guess(1, "threads", 2, unit="×")
    results.compare_guess(1, HERE)
    results.guess(1, "threads", 3, unit="×")
    assert kept(results)["1"] == {"question": "threads", "guess": "3×", "here": str(HERE), "values": [3.0, 1.31]}


def test_a_choice_that_was_measured_and_a_figure_that_is_none_are_kept(results):
    results.guess(1, "what limits it", "memory", choices=("arithmetic", "memory"))
    results.compare_guess(1, "arithmetic")
    results.guess(2, "threads", 2, unit="×")
    results.compare_guess(2, Measured(float("nan"), unit="×"))
    assert [kept(results)[number]["values"] for number in "12"] == [["memory", "arithmetic"], [2.0, None]]


def test_what_an_earlier_kit_has_kept_goes_on(results):
    results.guess(1, "threads", 2, unit="×")
    text = json.loads(results.path.read_text())
    del text["guesses"]["1"]["values"]
    assert find_problem(text) == ""
    results.path.write_text(json.dumps(text))
    results.compare_guess(1, HERE)
    assert kept(results)["1"] == {"question": "threads", "guess": "2×", "here": str(HERE), "values": [None, 1.31]}


def test_the_lab_goes_on_where_nothing_can_be_kept(results, capsys):
    results.path.parent.write_text("a file where the folder should be")
    results.guess(1, "threads", 2, unit="×")
    results.compare_guess(1, HERE)
    assert "here: 1.31×" in capsys.readouterr().out


@pytest.mark.parametrize(
    "damaged",
    [
        [],
        {"1": 2},
        {"1": {"question": "a"}},
        {"1": dict.fromkeys(["question", "guess", "here"], 1)},
        *(
            {"1": dict.fromkeys(["question", "guess", "here"], "") | {"values": wrong}}
            for wrong in ([1], 1, [[], {}], [10**400, None])
        ),
        {"1": dict.fromkeys(["question", "guess", "here"], "") | {"values": ["\ud800", None]}},
    ],
)
def test_damaged_guesses_are_found_and_replaced(results, damaged):
    results.guess(1, "threads", 2)
    text = json.loads(results.path.read_text()) | {"guesses": damaged}
    assert "guesses" in find_problem(text)
    results.path.write_text(json.dumps(text))
    results.compare_guess(1, HERE)
    assert find_problem(json.loads(results.path.read_text())) == ""
