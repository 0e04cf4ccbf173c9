import linecache
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from labkit.exercises import answers
from labkit.exercises.answers import call, failure, for_all, isolate, remember_lines
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


# A function in a module


def test_a_function_in_a_module_has_its_imports_and_the_earlier_functions_alone():
    shard = written("def shard(n):\n    return np.arange(n)\n", np=np)
    answer = written("def half(n):\n    return len(shard(n)) // 2\n", shard=shard)
    assert isolate(answer, "import numpy as np", [shard])(10) == 5


def test_a_variable_of_the_notebook_is_missing_in_a_module():
    answer = written("# a comment\n\ndef half(n):\n    return n // parts\n", parts=2)
    message = told(isolate(answer, "import math"), 10)
    assert message.startswith(
        "NameError: name 'parts' is not defined. half moves into a module, which has only: import"
    )
    assert 'in line 4: "return n // parts"' in message


@pytest.mark.parametrize("answer", [lambda n: n // 2, len, np.floor])
def test_what_has_no_text_to_move_is_reported(answer):
    with pytest.raises(NotYet, match="a function that a cell defines by `def"):
        isolate(answer, "import math")


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
