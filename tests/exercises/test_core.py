import pytest

from labkit.errors import LabError
from labkit.exercises.answers import call, run_answer
from labkit.exercises.core import Checker, Lab
from labkit.exercises.verdicts import expect

ANSWER = "def double(x):\n    ### BEGIN SOLUTION\n    return scale * x\n    ### END SOLUTION"
SCRIPT = "# %%writefile work/two.py\n### BEGIN SOLUTION\nprint(2)\n### END SOLUTION"


@pytest.fixture
def check(write_source, tmp_path, monkeypatch):
    """A lab with two exercises: a function that doubles, a script that prints 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    lab = Lab("42")

    @lab.exercise(1, hints=("think", "twice", "2 * x"))
    def doubles(answer):
        got = call(answer, 3)
        expect(got == 6, f"double(3) to be 6; it is {got}")

    @lab.exercise(2, hints=("print",))
    def prints(answer):
        run = run_answer(1, answer, timeout=60)
        expect(run.lines[0] == ("2",), f"2; it printed {run.lines[0]}")

    source = write_source(ANSWER, "double = check(1, double)", SCRIPT, 'two = check(2, "work/two.py")')
    return Checker(lab, source, {"scale": 2})


def stub(x):
    raise NotImplementedError()


def test_a_right_answer_passes_and_is_given_back(check, capsys):
    def other_way(x):
        return x + x

    assert check(1, other_way) is other_way
    assert capsys.readouterr().out == "Exercise 1 · passed.\n"


def test_an_untouched_answer_is_not_attempted_and_the_solution_stands_in(check, capsys):
    assert check(1, stub)(5) == 10
    assert capsys.readouterr().out.startswith("Exercise 1 · not attempted.")


def test_a_stand_in_given_back_is_still_not_attempted(check, capsys):
    check(1, check(1, stub))
    told = capsys.readouterr().out
    assert told.count("not attempted") == 2
    assert told.count("Run your own cell again first") == 1


def test_hints_come_one_at_a_time_and_the_last_one_stays(check, capsys):
    for _ in range(4):
        assert check(1, lambda x: x)(5) == 10
    told = capsys.readouterr().out
    assert told.count("Expected double(3) to be 6; it is 3.") == 4
    assert [told.count(f"Hint {n} of 3") for n in (1, 2, 3)] == [1, 1, 2]


def test_what_an_answer_raises_is_not_yet_and_names_the_line(check, capsys):
    check(1, lambda x: x.missing)
    told = capsys.readouterr().out
    assert "not yet" in told
    assert "AttributeError" in told
    assert "x.missing" in told


def test_an_answer_of_the_wrong_kind_is_not_yet(check, capsys):
    check(1, 6)
    assert "Expected a function; 6 is of type int." in capsys.readouterr().out


def test_a_checks_own_failure_is_not_the_students(write_source, capsys):
    lab = Lab("42")

    @lab.exercise(1, hints=("none",))
    def broken(answer):
        raise KeyError("the library changed")

    check = Checker(lab, write_source(ANSWER, "double = check(1, double)"), {"scale": 2})
    assert check(1, lambda x: 2 * x)(5) == 10
    told = capsys.readouterr().out
    assert "the check itself failed" in told
    assert "the library changed" in told
    assert "not yet" not in told


def test_a_script_still_as_written_is_not_attempted_and_the_solution_lies_beside_it(check, tmp_path, capsys):
    (tmp_path / "work" / "two.py").write_text("# YOUR CODE HERE\nraise NotImplementedError()\n")
    solution = check(2, "work/two.py")
    assert "not attempted" in capsys.readouterr().out
    assert solution.read_text() == "### BEGIN SOLUTION\nprint(2)\n### END SOLUTION\n"
    assert solution.parent.name == "work"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("print(3)", "it printed ('3',)"),
        ("print(1 / 0)", "ZeroDivisionError"),
        ("print(", "SyntaxError"),
        ("# YOUR CODE HERE\nraise NotImplementedError()\nprint(2)", "NotImplementedError"),
    ],
)
def test_a_script_that_does_something_else_is_not_yet(check, tmp_path, capsys, text, told):
    (tmp_path / "work" / "two.py").write_text(text)
    check(2, "work/two.py")
    out = capsys.readouterr().out
    assert "not yet" in out
    assert told in out


def test_a_script_that_passes_is_given_back(check, tmp_path):
    (tmp_path / "work" / "two.py").write_text("print(1 + 1)")
    assert check(2, "work/two.py") == "work/two.py"


def test_a_missing_script_says_which_cell_to_run(check, capsys):
    check(2, "work/two.py")
    assert "run the cell that writes it" in capsys.readouterr().out


def test_an_exercise_that_is_not_there(check):
    with pytest.raises(LabError, match=r"no exercise 7, only \[1, 2\]"):
        check(7, stub)


def test_interrupting_an_answer_is_not_swallowed(check):
    def endless(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(1, endless)


