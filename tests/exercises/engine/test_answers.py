import builtins
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from labkit.exercises.engine import answers
from labkit.exercises.engine.answers import call, for_all, remember_lines
from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.engine.values import expect_equal
from labkit.mpi.failure import RankError


def define(text: str, **notebook):
    """Return the function that a cell with this text defines, in a notebook with these variables."""
    cell = f"<cell {hash(text)}>"
    remember_lines(cell, text)
    namespace = dict(notebook)
    exec(compile(text, cell, "exec"), namespace)
    return next(value for name, value in namespace.items() if name not in notebook and name != "__builtins__")


def message_of(answer, *args) -> str:
    with pytest.raises(NotYet) as error:
        call(answer, *args)
    return str(error.value)


def test_message_has_error_then_students_line_also_of_a_nested_function_then_call():
    answer = define("def half(x):\n    y = x / 2\n    return y.missing\n")
    assert message_of(answer, 4) == (
        "AttributeError: 'float' object has no attribute 'missing', in line 3: \"return y.missing\". "
        "The check called half(4)."
    )
    answer = define("def outer(x):\n    def inner(y):\n        return y[0]\n    return inner(x)\n")
    assert 'in line 3: "return y[0]"' in message_of(answer, 1)


def test_tensorflow_details_are_removed():
    answer = define("def times(a):\n    return tf.matmul(a, a)\n", tf=tf)
    message = message_of(answer, np.zeros((2, 3), np.float32))
    assert "InvalidArgumentError: " in message
    assert "{{" not in message
    assert "[Op:" not in message
    assert 'in line 2: "return tf.matmul(a, a)"' in message


def test_error_in_traced_function_has_students_line():
    answer = define("@tf.function\ndef traced(x):\n    y = x + 1\n    return np.maximum(y, 0)\n", tf=tf, np=np)
    message = message_of(lambda x: answer(x), tf.constant([1.0]))
    assert message.startswith("NotImplementedError: Cannot convert a symbolic")
    assert 'in line 4: "return np.maximum(y, 0)"' in message


@pytest.mark.parametrize("statement", ["exit(0)", "raise SystemExit", "import sys; sys.exit('bye')"])
def test_exit_is_reported(statement):
    assert message_of(define(f"def half(x):\n    {statement}\n"), 4).startswith("half called exit(), in line 2:")


@pytest.mark.parametrize(
    ("original", "change"),
    [
        (np.array([3.0, 1.0, 2.0]), "argument.sort()"),
        ([3, 1, 2], "argument.append(4)"),
        ([np.array([1.0]), [2]], "argument[0] *= 2"),
        ({"a": 1}, "argument['b'] = 2"),
        (pd.DataFrame({"ms": [2.0, 1.0]}), "argument['share'] = 1"),
        (pd.Series([2.0, 1.0]), "argument[0] = 5"),
    ],
)
def test_changed_argument_is_reported_and_the_original_is_unchanged(original, change):
    before = repr(original)
    with pytest.raises(NotYet, match="argument to stay unchanged; spoil changed it") as mistake:
        call(define(f"def spoil(argument):\n    {change}\n    return argument\n"), original)
    assert mistake.value.hint.startswith("Work on a copy")
    assert repr(original) == before
    call(lambda x: x + 1, np.array([math.nan, 1.0]))  # nan counts as unchanged


# Things that a function must not do to the checks


class Stop(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit", "Stop('now')"])
def test_base_exceptions_are_reported(error):
    message = message_of(define(f"def half(x):\n    raise {error}\n", Stop=Stop), 4)
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
def test_library_changed_by_an_answer_is_reported(change, name):
    answers.changed_libraries()  # records the libraries
    before = {module: vars(module).copy() for module in (np, np.linalg, math, builtins, tf)}
    try:
        message = message_of(define(f"def half(x):\n    {change}\n    return x / 2\n", np=np, math=math, tf=tf), 4)
    finally:
        for module, values in before.items():
            vars(module).update(values)
    assert message.startswith(f"Expected {name} to stay; half replaced it. Restart the kernel")


# Generated inputs


def test_smallest_wrong_input_is_reported():
    def decide(n):
        expect_equal(n if n < 37 else n + 1, n, f"f({n})")

    with pytest.raises(NotYet, match=r"f\(37\) to be 37; it is 38"):
        for_all(decide, st.integers(0, 10**6))


def test_generated_inputs_are_the_same_each_time():
    runs = [[], []]
    for inputs in runs:
        for_all(inputs.append, st.integers(0, 10**9))
    assert runs[0] == runs[1]


def test_answer_that_is_sometimes_wrong_is_not_yet():
    calls = []

    def decide(n):
        calls.append(n)
        expect_equal(len(calls) % 7 == 0, False, "it")

    with pytest.raises(NotYet):
        for_all(decide, st.integers())


def test_error_in_the_check_is_not_blamed_on_the_answer():
    def decide(n):
        raise KeyError(n)

    with pytest.raises(KeyError):
        for_all(decide, st.integers())


def test_stack_of_mpich_is_not_quoted_when_it_aborts(monkeypatch):
    def run_ranks(*args, **options):
        lines = ("Assertion failed in file src/op.c at line 7: 0", "/usr/lib/libmpi.so.12(+0x3ba4) [0x7f3b3]")
        raise RankError(
            "Rank 1 failed.", (*lines, "python(PyEval_EvalCode+0x22) [0x7f]", "Abort(1) on node 1: Internal")
        )

    monkeypatch.setattr(answers, "run_ranks", run_ranks)
    with pytest.raises(NotYet) as error:
        answers.run_answer(2, Path("script.py"))
    assert "Assertion failed" in str(error.value)
    assert "[0x" not in str(error.value)
    assert str(error.value).endswith("Do the arrays on both sides have the same type and length?")
