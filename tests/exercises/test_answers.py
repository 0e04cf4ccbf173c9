import builtins
import linecache
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from labkit.exercises import answers
from labkit.exercises.answers import call, failure, for_all, remember_lines
from labkit.exercises.outcomes import NotYet
from labkit.exercises.values import same
from labkit.mpi.launch import RankError


def written(text: str, **notebook):
    """The function that a cell with this text defines, in a notebook that has these variables."""
    cell = f"<cell {hash(text)}>"
    remember_lines(cell, text)
    namespace = dict(notebook)
    exec(compile(text, cell, "exec"), namespace)
    return next(value for name, value in namespace.items() if name not in notebook and name != "__builtins__")


def told(answer, *args, **kwargs) -> str:
    with pytest.raises(NotYet) as error:
        call(answer, *args, **kwargs)
    return str(error.value)


def test_the_error_stands_first_then_the_students_line_then_the_call():
    answer = written("def half(x):\n    y = x / 2\n    return y.missing\n")
    assert told(answer, 4) == (
        "AttributeError: 'float' object has no attribute 'missing', in line 3: \"return y.missing\". "
        "The check called half(4)."
    )


def test_the_line_is_the_students_also_in_a_function_that_the_answer_calls():
    answer = written("def outer(x):\n    def inner(y):\n        return y[0]\n    return inner(x)\n")
    assert 'in line 3: "return y[0]"' in told(answer, 1)


def test_tensorflows_own_words_are_left_out():
    answer = written("def times(a):\n    return tf.matmul(a, a)\n", tf=tf)
    message = told(answer, np.zeros((2, 3), np.float32))
    assert "InvalidArgumentError: " in message
    assert "{{" not in message
    assert "[Op:" not in message
    assert 'in line 2: "return tf.matmul(a, a)"' in message


def test_an_error_inside_a_traced_function_is_reported_by_the_students_line():
    answer = written("@tf.function\ndef traced(x):\n    y = x + 1\n    return np.maximum(y, 0)\n", tf=tf, np=np)
    message = told(lambda x: answer(x), tf.constant([1.0]))
    assert message.startswith("NotImplementedError: Cannot convert a symbolic")
    assert 'in line 4: "return np.maximum(y, 0)"' in message


@pytest.mark.parametrize("leave", ["exit(0)", "raise SystemExit", "import sys; sys.exit('bye')"])
def test_leaving_is_reported(leave):
    assert told(written(f"def half(x):\n    {leave}\n"), 4).startswith("half called exit(), in line 2:")


GIVEN = {
    "array": np.array([3.0, 1.0, 2.0]),
    "list": [3, 1, 2],
    "nested": [np.array([1.0]), [2]],
    "dict": {"a": 1},
    "table": pd.DataFrame({"ms": [2.0, 1.0]}),
    "series": pd.Series([2.0, 1.0]),
}
CHANGES = {
    "array": "given.sort()",
    "list": "given.append(4)",
    "nested": "given[0] *= 2",
    "dict": "given['b'] = 2",
    "table": "given['share'] = 1",
    "series": "given[0] = 5",
}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_changed_argument_is_reported_and_the_checks_own_is_whole(kind):
    mine = GIVEN[kind]
    before = repr(mine)
    with pytest.raises(NotYet, match="given to stay as it was; spoil changed it") as mistake:
        call(written(f"def spoil(given):\n    {CHANGES[kind]}\n    return given\n"), mine)
    assert mistake.value.hint.startswith("Work on a copy")
    assert repr(mine) == before


def test_arrays_that_hold_nan_have_not_changed():
    call(lambda x: x + 1, np.array([math.nan, 1.0]))


# What a function must not do to the checks


class Stop(BaseException):
    """What no handler of Python's catches."""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit", "Stop('now')"])
def test_what_no_handler_catches_is_reported_too(error):
    message = told(written(f"def half(x):\n    raise {error}\n", Stop=Stop), 4)
    assert f'in line 2: "raise {error}". The check called half(4)' in message


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("np.isclose = None", "numpy.isclose"),
        ("del np.abs", "numpy.abs"),
        ("np.linalg.norm = lambda x: 0", "numpy.linalg.norm"),
        ("math.isclose = lambda *a, **b: True", "math.isclose"),
        ("import builtins; builtins.sum = max", "builtins.sum"),
        ("tf.reduce_mean = tf.reduce_sum", "tensorflow.reduce_mean"),
    ],
)
def test_a_library_that_an_answer_changes_is_put_back(change, name):
    answers.put_back()  # as it is
    before = {place: vars(place).copy() for place in (np, np.linalg, math, builtins, tf)}
    message = told(written(f"def half(x):\n    {change}\n    return x / 2\n", np=np, math=math, tf=tf), 4)
    assert message.startswith(f"Expected {name} to stay; half replaced it")
    assert all(vars(place)[key] is value for place, values in before.items() for key, value in values.items())
    assert call(lambda x: x / 2, 4) == 2


# Drawn inputs


def test_the_smallest_wrong_input_is_reported():
    def decide(n):
        same(n if n < 37 else n + 1, n, f"f({n})")

    with pytest.raises(NotYet, match=r"f\(37\) to be 37; it is 38"):
        for_all(decide, n=st.integers(0, 10**6))


def test_the_same_inputs_are_generated_each_time():
    runs = [[], []]
    for seen in runs:
        for_all(lambda n, seen=seen: seen.append(n), n=st.integers(0, 10**9), examples=20)
    assert runs[0] == runs[1]


def test_an_answer_that_is_wrong_only_now_and_then_is_not_yet():
    calls = []

    def decide(n):
        calls.append(n)
        same(len(calls) % 7 == 0, False, "it")

    with pytest.raises(NotYet):
        for_all(decide, n=st.integers())


def test_a_failure_of_the_check_itself_is_not_the_answers():
    def decide(n):
        raise KeyError(n)

    with pytest.raises(KeyError):
        for_all(decide, n=st.integers())


def test_a_syntax_error_names_the_line():
    text = "def f(:\n    pass\n"
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(keepends=True), "<cell>")
    with pytest.raises(SyntaxError) as error:
        compile(text, "<cell>", "exec")
    assert 'in line 1: "def f(:"' in failure(error.value)


def test_of_a_rank_that_mpich_ends_its_own_functions_are_not_quoted(monkeypatch):
    def run_ranks(*args, **options):
        lines = ("Assertion failed in file src/op.c at line 7: 0", "/usr/lib/libmpi.so.12(+0x3ba4) [0x7f3b3]")
        raise RankError(
            "Rank 1 failed.", (*lines, "python(PyEval_EvalCode+0x22) [0x7f]", "Abort(1) on node 1: Internal")
        )

    monkeypatch.setattr(answers, "run_ranks", run_ranks)
    with pytest.raises(NotYet) as told:
        answers.run_answer(2, Path("script.py"))
    assert "Assertion failed" in str(told.value)
    assert "[0x" not in str(told.value)
    assert str(told.value).endswith("Have the arrays on both sides the same type and length?")
