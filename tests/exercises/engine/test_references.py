"""Exercises that are data: right answers of any type pass, wrong ones are refused by the name of their mistake."""

import itertools
import math
from collections import namedtuple
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies as st

from labkit.display.results import NOT_YET, PASSED
from labkit.exercises import catalogue, labs
from labkit.exercises.catalogue import Exercise
from labkit.exercises.engine import answers
from labkit.exercises.engine.checker import Checker, Lab
from labkit.exercises.engine.modules import function_text
from labkit.exercises.engine.reference import Case, Reference, Result, function_of, script_of
from labkit.system.errors import LabError

TABLES = {(info.number, n): table for info in catalogue.labs() for n, table in labs.references(info.number).items()}
WRONG = [(*key, why) for key, reference in TABLES.items() for why in reference.wrong]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(answers, "CPU_LIMIT_S", 0.1)


def judge(exercise, reference, answer):
    lab = Lab("42")
    lab.add(exercise, reference)
    return Checker(lab, {exercise.number: exercise}, {}).judge(exercise.number, answer)


def table(lab, number):
    exercise = catalogue.find(lab).exercises[number]
    if exercise.solution.startswith("%%writefile"):  # a file of functions that ranks import
        solution, stub = script_of(exercise.solution), script_of(exercise.stub)
        imports = "\n".join(line for line in solution.splitlines() if line.startswith(("import ", "from ")))
        solution, stub = (function_text(text, exercise.name) for text in (solution, stub))
        exercise = replace(exercise, solution=solution, stub=stub, imports=imports)
    if "tensorflow" in exercise.imports:
        pytest.importorskip("tensorflow")  # so that --fast skips the test, not the answer
    return exercise, TABLES[lab, number]


@pytest.mark.parametrize(("lab", "number"), TABLES)
def test_right_answers_pass(lab, number):
    exercise, reference = table(lab, number)
    assert reference.also, "no right answer that is written differently"
    assert all(reference.hints)
    for answer in ({}, *reference.also):
        assert judge(exercise, reference, function_of(exercise, answer)) == (PASSED, "")


@pytest.mark.parametrize(("lab", "number"), TABLES)
def test_wrong_answers_differ_from_the_right_one_and_from_each_other(lab, number):
    exercise, reference = table(lab, number)
    cases, parts = reference.examples(), range(len(reference.returns))
    answers = {"it were right": {}, **reference.wrong}.items()
    functions = {why: function_of(exercise, answer) for why, answer in answers}
    outcomes = {why: [reference.outcome(function, case) for case in cases] for why, function in functions.items()}
    for first, second in itertools.combinations(outcomes, 2):
        pairs = zip(outcomes[first], outcomes[second], strict=True)
        differ = any(a and b and not reference.same(a, b, parts) for a, b in pairs)
        assert differ, f"no case tells these apart: it is as if {first}; it is as if {second}"


@pytest.mark.parametrize(("lab", "number", "why"), WRONG)
def test_wrong_answer_is_refused_by_its_name(lab, number, why):
    exercise, reference = table(lab, number)
    outcome, message = judge(exercise, reference, function_of(exercise, reference.wrong[why]))
    assert outcome == NOT_YET, message
    assert f" It is as if {why}.\n" in message
    assert reference.hint_for.get(why, "") in message


# The engine itself, with exercises made up for it


def exercise_with(solution, name="answer"):
    stub = f"def {name}(*args):\n    raise NotImplementedError()"
    return Exercise(1, name, "", stub, solution, "1", "", "import numpy as np")


NUMBER = exercise_with("def answer(x):\n    return x / 2")
ARRAY = exercise_with("def answer(x):\n    return x * np.arange(6.0).reshape(2, 3)")
TEXT = exercise_with("def answer(x):\n    return 'yes' if x > 0 else 'no'")
PAIR = exercise_with("def answer(x):\n    return x, 2 * x")
REFERENCE = Reference(cases=[(3,), (-1,)], more=st.tuples(st.integers(-99, 99)), wrong={}, also=(), hints=("think",))
PAIR_REFERENCE = Reference(
    cases=[Case((3,)), Case((1,), "the case of 1", "as 1 is 1")],
    wrong={
        "x were left out": lambda x: (0, 2 * x),
        "the second were the first": lambda x: (x, x),
        "both were 4": lambda x: (4, 4),
        "it stopped at 2": lambda x: [x, 9] if x > 2 else 1 / 0,
    },
    also=(),
    hints=("think", "twice"),
    returns=(Result("first", hint="Look at the first."), Result("second")),
    hint_for={"both were 4": "Is 4 special?"},
)


class Ours(np.ndarray):
    """An array with a comparison of its own."""

    def __eq__(self, other):
        return True


class Equal:
    """Mixed into a type, makes its objects equal to everything."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = object.__hash__


class EqualText(Equal, str):
    pass


class EqualNumber(Equal, float):
    pass


class EqualDict(Equal, dict):
    pass


def as_tensor(value):
    import tensorflow as tf

    return tf.constant(value)


tensor = pytest.param(as_tensor, marks=pytest.mark.slow)  # --fast would skip the answer, not the test


def objects(array):
    return np.array([[Fraction(x) for x in row] for row in array], object)


@pytest.mark.parametrize("convert", [Fraction, Decimal, np.float32, np.array, tensor, EqualNumber, np.longdouble])
def test_numbers_of_any_type_pass(convert):
    assert judge(NUMBER, REFERENCE, lambda x: convert(x / 2)) == (PASSED, "")


@pytest.mark.parametrize(
    "convert",
    [
        *(np.ma.array, np.matrix, tensor, objects, pd.DataFrame, np.ndarray.tolist),
        *(lambda array: array.astype(">f8"), lambda array: array.view(Ours), lambda array: array.astype(int)),
    ],
)
def test_arrays_of_any_type_pass(convert):
    assert judge(ARRAY, REFERENCE, lambda x: convert(x * np.arange(6.0).reshape(2, 3))) == (PASSED, "")


@pytest.mark.parametrize("convert", [list, np.array, tensor, pd.Series, namedtuple("Both", "a b")._make])
def test_results_of_any_type_that_unpacks_pass(convert):
    assert judge(PAIR, PAIR_REFERENCE, lambda x: convert([x, 2 * x])) == (PASSED, "")


@pytest.mark.parametrize(
    ("exercise", "answer", "message"),
    [
        (NUMBER, lambda x: math.nan, "answer(3) to be 1.5; it is nan"),
        (NUMBER, lambda x: EqualNumber(7), "to be 1.5; it is 7"),
        (NUMBER, lambda x: EqualText("7"), "to be a number; it is '7'"),
        (NUMBER, lambda x: Equal(), "to be a number; it is an Equal"),
        (NUMBER, lambda x: EqualDict(), "to be a number; it is an EqualDict"),
        (NUMBER, lambda x: True, "to be a number; it is True"),
        (NUMBER, lambda x: np.array([x / 2]), "to be a number; it is an array of shape (1,)"),
        (NUMBER, lambda x: [x / 2], "to be a number; it is a list"),
        (NUMBER, lambda x: (x / 2 for _ in "1"), "to be a number; it is a generator"),
        (NUMBER, lambda x: print("half:", x / 2), "is a return missing?\nIt printed: half: 1.5"),
        (NUMBER, lambda x: x / 2 if x == 3 else x, "to be -0.5; it is -1"),
        (NUMBER, lambda x: x / 2 if x < 20 else 0, "answer(20) to be 10; it is 0"),
        (TEXT, lambda x: EqualText("no"), "to be 'yes'; it is 'no'"),
        (TEXT, lambda x: Equal(), "to be 'yes'; it is an Equal"),
        (TEXT, lambda x: None, "to be 'yes'; it is None: is a return missing?"),
        (ARRAY, lambda x: np.full((2, 3), math.nan).view(Ours), "to have 0 at [0, 0]; it has nan there"),
        (ARRAY, lambda x: np.ma.masked_all((2, 3)), "to have 0 at [0, 0]; it has nan there"),
        (ARRAY, lambda x: np.array([Equal()] * 6).reshape(2, 3), "to be an array of shape (2, 3)"),
        (ARRAY, lambda x: np.ones(1), "to have the shape (2, 3); it has (1,)"),
        (ARRAY, lambda x: EqualText(), "to be an array of shape (2, 3); it is ''"),
    ],
)  # fmt: skip
def test_wrong_results_of_any_type_are_refused(exercise, answer, message):
    outcome, text = judge(exercise, REFERENCE, answer)
    assert outcome == NOT_YET, text
    assert message in text.replace("<lambda>", "answer").replace("your function", "answer")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: (0, 2 * x), "first of your function(3) to be 3; it is 0. It is as if x were left out.\nHint: Look"),
        (lambda x: (x, x), "second of your function(3) to be 6; it is 3. It is as if the second were the first."),
        (lambda x: (4, 4), "It is as if both were 4.\nHint: Is 4 special?"),
        (lambda x: (5, x), "to be 3; it is 5.\n"),  # two mistakes, of which the first has no name
        (lambda x: (0, x), "It is as if x were left out."),  # two mistakes, each with a name
        (lambda x: (0 if x == 3 else 9, 2 * x), "to be 3; it is 0.\n"),  # a mistake's result in one case, not in all
        (lambda x: (x, 2 if x == 1 else 5), "to be 6; it is 5.\n"),
        (lambda x: (x, 9 / (x > 2)), "to be 6; it is 9. It is as if it stopped at 2."),
        (lambda x: (x, 9 if x > 2 else 2), "to be 6; it is 9.\n"),  # the mistake raises in the other case
        (lambda x: (x, 2 * x + (x == 1)), "the second of the case of 1 to be 2 (as 1 is 1); it is 3.\n"),
        (lambda x: x, "Expected first and second of your function(3); it is 3, of type int."),
        (lambda x: iter((x, 2 * x)), "Expected first and second of your function(3); it is a tuple_iterator."),
    ],
)  # fmt: skip
def test_mistake_is_named_if_the_answer_makes_it_in_all_cases(answer, message):
    outcome, text = judge(PAIR, PAIR_REFERENCE, answer)
    assert outcome == NOT_YET, text
    assert message in text


def test_expected_values_come_after_the_answer_and_answers_cannot_change_each_other():
    order = []
    use = lambda function, x: order.append(function.__class__.__name__) or function(x)  # noqa: E731
    reference = Reference(cases=[(np.ones(3),)], wrong={}, also=(), hints=("",), use=use)
    exercise = exercise_with("def answer(x):\n    return x + 1")
    shared = np.ones(3)
    assert judge(exercise, reference, lambda x: np.add(x, 1, out=shared)) == (PASSED, "")
    assert order == ["partial", "function"]
    outcome, text = judge(exercise, reference, lambda x: np.add(x, 1, out=x))
    assert (outcome, "x to stay unchanged" in text) == (NOT_YET, True)


def test_list_will_not_do_where_a_later_cell_needs_an_array_or_prints_a_number():
    class Exact(Fraction):
        __format__ = object.__format__

    array = Reference(cases=[(3,)], wrong={}, also=(), hints=("",), returns=(Result(array=True),))
    outcome, text = judge(ARRAY, array, lambda x: [[0, 3, 6], [9, 12, 15]])
    assert (outcome, "to be an array of shape (2, 3); it is a list" in text) == (NOT_YET, True)
    number = Reference(cases=[(3,)], wrong={}, also=(), hints=("",), returns=(Result(format=".1f"),))
    outcome, text = judge(NUMBER, number, lambda x: Exact(x, 2))
    assert (outcome, "to be an int or a float, for later cells to print; it is Exact(3, 2)" in text) == (NOT_YET, True)


def test_closed_output_is_not_the_checks_failure():
    def closes(x):
        import sys

        sys.stdout.close()
        return x

    outcome, text = judge(NUMBER, REFERENCE, closes)
    assert (outcome, "to be 1.5; it is 3" in text) == (NOT_YET, True)


def test_edit_of_missing_text_is_refused():
    with pytest.raises(LabError, match="doesn't contain 'x / 3'"):
        function_of(NUMBER, {"x / 3": "x"})


def test_failure_of_the_solution_is_not_blamed_on_the_answer():
    outcome, text = judge(exercise_with("def answer(x):\n    return x.missing"), REFERENCE, lambda x: x)
    assert (outcome, "AttributeError" in text) == ("the check itself failed", True)
