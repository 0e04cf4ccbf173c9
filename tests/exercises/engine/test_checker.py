import functools
import json
import operator
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from labkit.exercises.engine import answers
from labkit.exercises.engine import checker as checker_module
from labkit.exercises.engine.answers import call, for_all, remember_lines, run_answer
from labkit.exercises.engine.checker import Check, Checker, Lab
from labkit.exercises.engine.outcomes import expect
from labkit.system.errors import LabError
from labkit_author import catalogue, sources

ANSWER = "def double(x):\n    ### BEGIN SOLUTION\n    return scale * x\n    ### END SOLUTION"
SCRIPT = "# %%writefile work/two.py\n### BEGIN SOLUTION\nprint(2)\n### END SOLUTION"


def exercises_of(source):
    return catalogue.exercises(sources.read(source))


@pytest.fixture
def check(write_source, tmp_path, monkeypatch):
    """Return the checker of a lab with two exercises: a function that doubles, a script that prints 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    lab = Lab("42")

    def doubles(answer):
        result = call(answer, 3)
        expect(result == 6, f"double(3) to be 6; it is {result}")

    lab.checks[1] = Check(doubles, ("think", "twice", "2 * x"))

    def prints(answer):
        run = run_answer(1, answer, timeout=60)
        expect(run.lines[0] == ("2",), f"2; it printed {run.lines[0]}")

    lab.checks[2] = Check(prints, ("print",))

    source = write_source(ANSWER, "double = check(1, double)", SCRIPT, 'two = check(2, "work/two.py")')
    return Checker(lab, exercises_of(source), {"scale": 2})


def stub(x):
    raise NotImplementedError()


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x + x,
        functools.partial(operator.mul, 2),
        functools.lru_cache(lambda x: 2 * x),
        type("Doubled", (int,), {"__new__": lambda cls, x: int.__new__(cls, 2 * x)}),
        type("Double", (), {"__call__": lambda self, x: 2 * x, "__bool__": lambda self: False})(),
        (2).__mul__,
    ],
)
def test_right_answer_passes_and_is_returned(check, capsys, answer):
    assert check(1, answer) is answer
    assert capsys.readouterr().out == "Exercise 1 · passed.\n"


def test_untouched_answer_is_not_attempted_and_solution_is_returned(check, capsys):
    assert check(1, stub)(5) == 10
    assert capsys.readouterr().out.startswith("Exercise 1 · not attempted.")


def hints_of(out: str) -> list[str]:
    return [line.strip() for line in out.splitlines() if "hint" in line.lower()]


LAST = "The last hint is nearly the answer. To see it, run check.hint(1) in a new cell."


def test_each_new_wrong_answer_gets_a_hint_except_the_last(check, capsys):
    for answer in (lambda x: x, lambda x: x + 1, lambda x: x + 2, lambda x: x + 4):
        assert check(1, answer)(5) == 10
    assert hints_of(capsys.readouterr().out) == ["Hint 1 of 3: think", "Hint 2 of 3: twice", LAST, LAST]


def test_same_answer_gets_same_hint_and_one_that_raises_none(check, capsys):
    for answer in (lambda x: missing, lambda x: x.missing, *[lambda x: x] * 3):  # noqa: F821
        check(1, answer)
    assert hints_of(capsys.readouterr().out) == ["Hint 1 of 3: think"] * 3


def test_script_is_a_new_answer_only_when_its_text_changes(tmp_path, write_source, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lab = Lab("42")

    def never(script):
        expect(False, "more")

    lab.checks[1] = Check(never, ("think", "twice", "2 * x"))

    cells = "%%writefile work/it.py\n### BEGIN SOLUTION\nprint(2)\n### END SOLUTION", 'it = check(1, work / "it.py")'
    check = Checker(lab, exercises_of(write_source(*cells)), {})
    script = tmp_path / "it.py"
    for text in ("print(1)", "print(1)", "print(3)"):
        script.write_text(text)
        check(1, script)
    expected = ["Hint 1 of 3: think", "Hint 1 of 3: think", "Hint 2 of 3: twice"]
    assert hints_of(capsys.readouterr().out) == expected


def test_requested_hints_come_in_order_and_the_last_repeats(check, capsys):
    check(1, lambda x: x)
    capsys.readouterr()
    for _ in range(3):
        check.hint(1)
    hints = ["Hint 2 of 3: twice", "Hint 3 of 3: 2 * x", "Hint 3 of 3: 2 * x"]
    assert capsys.readouterr().out == "".join(f"Exercise 1.\n   {line}\n" for line in hints)
    assert json.loads(Path("work/results-42.json").read_text())["progress"]["1"]["hint"] == 3
    check(1, lambda x: x + 1)
    assert hints_of(capsys.readouterr().out) == ["Hint 3 of 3: 2 * x"]  # it was requested


def test_hint_for_an_unknown_exercise_is_an_error(check):
    with pytest.raises(LabError, match="no exercise 9"):
        check.hint(9)


def test_hint_for_the_mistake_comes_first_and_once_then_the_others_in_order(
    write_source, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    lab = Lab("42")

    def doubles(answer):
        result = call(answer, 3)
        expect(result is not None, "a number", hint="Is a return missing?")
        expect(result < 9, "less", hint="twice")
        for_all(lambda x: expect(call(answer, x) > 0, "more", hint="Is there a minus?"), st.just(3))

    lab.checks[1] = Check(doubles, ("think", "twice", "thrice", "2 * x"))

    check = Checker(lab, exercises_of(write_source(ANSWER, "double = check(1, double)")), {"scale": 2})
    returns_none = lambda x: None  # noqa: E731
    for answer in (returns_none, lambda x: 9, lambda x: 10, returns_none, lambda x: -3, lambda x: -4):
        check(1, answer)
    assert hints_of(capsys.readouterr().out) == [
        "Hint: Is a return missing?",
        "Hint 2 of 4: twice",
        "Hint 1 of 4: think",
        "Hint 3 of 4: thrice",
        "Hint: Is there a minus?",
        LAST,
    ]
    assert json.loads(Path("work/results-42.json").read_text())["progress"]["1"]["hint"] == 5


def test_error_in_the_check_is_not_blamed_on_the_student(write_source, capsys, monkeypatch):
    monkeypatch.setattr(
        answers, "is_student_code", lambda file: file.startswith("<cell")
    )  # so that this file counts as the kit's
    lab = Lab("42")

    def broken(answer):
        raise KeyError("the library changed")

    lab.checks[1] = Check(broken, ("none",))

    check = Checker(lab, exercises_of(write_source(ANSWER, "double = check(1, double)")), {"scale": 2})
    assert check(1, lambda x: 2 * x)(5) == 10
    out = capsys.readouterr().out
    assert "the check itself failed" in out
    assert "the library changed" in out
    assert "not yet" not in out


@pytest.mark.parametrize(
    "text", [sources.STUB, f"{sources.STUB}\n\n# I don't know yet", "raise NotImplementedError()\n"]
)
def test_untouched_script_is_not_attempted_and_solution_is_written_next_to_it(check, tmp_path, capsys, text):
    (tmp_path / "work" / "two.py").write_text(text)
    solution = check(2, "work/two.py")
    assert "not attempted" in capsys.readouterr().out
    assert Path(solution).read_text() == "print(2)\n"
    assert Path(solution).parent.name == "work"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print(3)", "it printed ('3',)"),
        ("print(1 / 0)", "ZeroDivisionError"),
        ("print(", "SyntaxError"),
        (f"{sources.STUB}\nprint(2)", "NotImplementedError"),
    ],
)
def test_wrong_script_is_not_yet(check, tmp_path, capsys, text, message):
    (tmp_path / "work" / "two.py").write_text(text)
    check(2, "work/two.py")
    out = capsys.readouterr().out
    assert "not yet" in out
    assert message in out


def test_missing_script_is_reported_with_the_cell_to_run_and_one_that_passes_is_returned(check, tmp_path, capsys):
    check(2, "work/two.py")
    assert "run the cell that writes it" in capsys.readouterr().out
    (tmp_path / "work" / "two.py").write_text("print(1 + 1)")
    assert check(2, "work/two.py") == "work/two.py"


def test_interrupt_is_not_swallowed_and_ends_an_endless_loop(check):
    threads = []

    def endless(x):
        threads.append(threading.current_thread())
        signal.raise_signal(signal.SIGINT)  # as from Jupyter's button: the main thread gets it
        while True:
            pass

    def waits(x):
        signal.raise_signal(signal.SIGINT)
        threading.Event().wait()

    for answer in (endless, waits):
        with pytest.raises(KeyboardInterrupt):
            check(1, answer)
    threads[0].join(60)
    assert not threads[0].is_alive()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "message"), [("while waits: pass", ""), ("go.wait()", checker_module.STILL_RUNS)])
def test_thread_that_cannot_be_ended_is_reported(check, capsys, monkeypatch, answer, message):
    monkeypatch.setattr(checker_module, "ANSWER_LIMIT_S", 0.5)
    waits, go = [1], threading.Event()
    check(1, define(f"def double(x):\n    {answer}", waits=waits, go=go))
    waits.clear()
    go.set()
    assert message in (out := capsys.readouterr().out)
    assert (checker_module.STILL_RUNS in out) == bool(message)


class Lazy(int):
    """A number that raises when the check compares it."""

    def __eq__(self, other):
        raise KeyboardInterrupt

    __hash__ = int.__hash__


@pytest.mark.parametrize("answer", ["raise KeyboardInterrupt", "exit()", "quit()", "return Lazy()"])
def test_exit_and_interrupt_end_only_the_answer(check, capsys, monkeypatch, answer):
    exits = []
    shell = type("Shell", (), {"ask_exit": lambda self: exits.append(1)})()  # as IPython's exit() calls it
    monkeypatch.setattr(checker_module, "get_ipython", lambda: shell)
    exit_kernel = lambda: shell.ask_exit()  # noqa: E731
    text = f"def double(x):\n    {answer}\n"
    function = define(text, exit=exit_kernel, quit=exit_kernel, Lazy=Lazy)
    assert check(1, function)(5) == 10
    out = capsys.readouterr().out
    assert "not yet" in out
    assert "double called exit(), in line" in out or "KeyboardInterrupt, in line" in out
    assert not exits
    exit_kernel()
    assert exits == [1]  # in a cell, it ends the kernel as before


DATA = [np.arange(3), pd.DataFrame({"ms": [1]}), pd.Series([1, 2]), tf.constant([1, 2])]


@pytest.mark.parametrize("value", [*DATA, None, 3, "double", [stub]])
def test_answer_that_is_not_a_function_is_reported_each_time(check, capsys, value):
    for answer in (value, value, lambda x: x):
        assert check(1, answer)(5) == 10
    out = capsys.readouterr().out
    assert (out.count("not yet"), out.count("Expected a function; ")) == (3, 2)


def test_library_changed_by_the_notebook_is_reported_with_each_verdict(check, capsys, monkeypatch):
    monkeypatch.setattr(np, "isclose", lambda *args, **options: False)
    for answer in (lambda x: 2 * x, lambda x: x):
        check(1, answer)
        note = "Your notebook replaced numpy.isclose, which checks use: restart the kernel."
        assert note in (out := capsys.readouterr().out)
        assert ("passed" in out) == (answer(1) == 2)


def define(text: str, **namespace):
    """Return the function `double` that a cell with this text defines."""
    cell = f"<cell {hash(text)}>"
    remember_lines(cell, text)
    namespace["__name__"] = "__main__"
    exec(compile(text, cell, "exec"), namespace)
    return namespace["double"]


def test_stub_of_a_notebook_is_recognised(check, tmp_path, capsys):
    function = sources.blank(sources.read(tmp_path / "42_made_up.py")).cells[0].source
    assert "# ───" in function
    check(1, define(function))
    assert "not attempted" in capsys.readouterr().out
    check(1, define(function.replace("    raise", "    y = 2 * x\n    raise")))
    assert 'Line 4 still says "raise NotImplementedError()": replace it' in capsys.readouterr().out


def test_output_of_an_answer_is_quoted(check, capsys):
    check(1, define("def double(x):\n    print('twice:', 2 * x)\n"))
    out = capsys.readouterr().out
    assert "None" in out
    assert "It printed: twice: 6" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "line"),
    [
        ("while True:\n        pass", '"'),
        ("while True:\n        try:\n            x += 1\n        except Exception:\n            pass", '"'),
        ("import time; time.sleep(3600)", 'line 2: "import time; time.sleep(3600)"'),
        ("import threading; threading.Event().wait()", "line 2"),
    ],
)
def test_answer_that_hangs_is_reported_with_its_line_and_the_lab_continues(check, capsys, monkeypatch, loop, line):
    monkeypatch.setattr(checker_module, "ANSWER_LIMIT_S", 1.0)
    assert check(1, define(f"def double(x):\n    {loop}\n"))(5) == 10
    out = capsys.readouterr().out
    assert "not yet" in out
    assert "Expected double(3) to finish" in out
    assert line in out
    print("still visible")  # the redirection of the answer's thread is undone
    assert capsys.readouterr().out == "still visible\n"


@pytest.mark.slow
def test_slow_call_is_reported_with_the_number_of_calls_before_it(write_source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checker_module, "ANSWER_LIMIT_S", 1.0)
    lab = Lab("42")

    def doubles(answer):
        for x in range(1000):
            expect(call(answer, x) == 2 * x, "twice")

    lab.checks[1] = Check(doubles, ("none",))

    check = Checker(lab, exercises_of(write_source(ANSWER, "double = check(1, double)")), {"scale": 2})
    check(1, define("def double(x):\n    while x == 3:\n        pass\n    return 2 * x\n"))
    out = capsys.readouterr().out
    assert "Expected double(3) to finish; it was still running after 3 calls and " in out
    assert "It was in line " in out


@pytest.mark.slow
def test_time_of_the_check_itself_does_not_count(write_source, capsys, monkeypatch):
    monkeypatch.setattr(checker_module, "ANSWER_LIMIT_S", 0.5)
    monkeypatch.setattr(
        checker_module, "is_student_code", lambda file: file.startswith("<cell")
    )  # so that this file counts as the kit's
    lab = Lab("42")

    def slow(answer):
        time.sleep(1.5)
        expect(call(answer, 3) == 6, "6")

    lab.checks[1] = Check(slow, ("none",))

    check = Checker(lab, exercises_of(write_source(ANSWER, "double = check(1, double)")), {"scale": 2})
    check(1, define("def double(x):\n    return 2 * x\n"))
    assert "passed" in capsys.readouterr().out


def test_fallback_script_is_not_the_students(check, tmp_path, capsys):
    (tmp_path / "work" / "two.py").write_text("print(3)")
    check(2, check(2, "work/two.py"))
    assert "This is the kit's solution, not yours." in capsys.readouterr().out
