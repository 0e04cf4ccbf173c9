"""A file of functions that ranks import: each function is checked, and scripts get those that pass, or the kit's."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from labkit.display.results import NOT_YET, PASSED
from labkit.exercises.engine.checker import Checker, Lab
from labkit.exercises.engine.reference import Reference
from labkit.mpi.launch import run_ranks
from labkit_author import catalogue, sources

PLAN = """\
# %%writefile work/plan.py
def shard(digits, rank, size):
    ### BEGIN SOLUTION
    return digits // size
    ### END SOLUTION


def batches(digits, batch):
    ### BEGIN SOLUTION
    return digits // batch
    ### END SOLUTION
"""
CUTTING = "def even(digits, parts):\n    return [digits // parts] * parts\n"
SCRIPT = """\
from checked.plan import batches, shard
from mpi4py import MPI

ranks = MPI.COMM_WORLD
print(shard(100, ranks.rank, ranks.size), batches(100, 10))
"""
TABLES = {
    1: Reference(cases=[(10, 0, 2), (12, 1, 4)], wrong={}, also=[], hints=("Cut it.", "even")),
    2: Reference(cases=[(100, 10), (20, 4)], wrong={}, also=[], hints=("How many?", "Divide.")),
}
RIGHT = {"shard": "digits // size", "batches": "int(digits / batch)"}  # the student's own


@pytest.fixture
def check(write_source, tmp_path, monkeypatch):
    """Return the checker of a lab whose two exercises share a file; the folder has what it imports, and a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cutting", raising=False)  # another test's
    source = write_source(PLAN, 'shard = check(1, "work/plan.py")', 'batches = check(2, "work/plan.py")')
    exercises, lab = catalogue.exercises(sources.read(source)), Lab("42")
    assert {number: exercise.name for number, exercise in exercises.items()} == {1: "shard", 2: "batches"}
    for number, reference in TABLES.items():
        lab.add(exercises[number], reference)
    Path("work").mkdir()
    Path("work/cutting.py").write_text(CUTTING)
    Path("work/script.py").write_text(SCRIPT)
    Path("work/plan.py").write_text(exercises[1].stub.partition("\n")[2])
    return Checker(lab, exercises, {})


def write(**functions):
    """Write the student's file with these results of its functions."""
    arguments = {"shard": "digits, rank, size", "batches": "digits, batch"}
    texts = [f"def {name}({arguments[name]}):\n    return {result}\n" for name, result in functions.items()]
    Path("work/plan.py").write_text("from cutting import even\n\n" + "\n".join(texts))


def published():
    """Return who wrote each function that scripts import: yours, or the kit's."""
    lines = Path("work/checked/plan.py").read_text().splitlines()
    return {line.split()[3]: line.split("# ")[1] for line in lines if line.startswith("from ")}


def verdicts(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("Exercise")]


def test_untouched_file_gives_the_kits_functions(check, capsys):
    assert check(1, "work/plan.py")(100, 0, 2) == 50
    assert check(2, "work/plan.py")(100, 10) == 10
    assert verdicts(capsys) == [f"Exercise {n} · not attempted." for n in (1, 2)]
    assert published() == {"shard": "the kit's", "batches": "the kit's"}


def test_each_function_is_the_students_if_it_passes(check, capsys):
    write(shard=RIGHT["shard"], batches="digits")
    shard = check(1, "work/plan.py")
    batches = check(2, "work/plan.py")
    assert published() == {"shard": "yours", "batches": "the kit's"}
    assert (shard.__module__, batches.__module__) == ("plan", "checked.solution_plan")
    out = capsys.readouterr().out
    assert "Exercise 1 · passed." in out
    assert "Expected batches(100, 10) to be 10; it is 100." in out
    write(**RIGHT)  # edited after the check: checked again
    check(2, "work/plan.py")
    assert published() == {"shard": "yours", "batches": "yours"}
    write(shard="digits", batches=RIGHT["batches"])
    check(2, "work/plan.py")
    assert published() == {"shard": "the kit's", "batches": "yours"}


def test_ranks_import_what_passed(check):
    write(shard="digits // size + (digits == 100)", batches="digits")  # the check has no case of 100 digits
    check(1, "work/plan.py")
    check(2, "work/plan.py")
    run = run_ranks(2, "work/script.py", threads=1, show=False)
    assert [lines[-1] for lines in run.lines] == ["51 10"] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def shard(digits, rank, size)\n", "SyntaxError: expected ':', in line 1: \"def shard(digits, rank, size)\""),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("exit()\n", "called exit()"),
        ("x = 1\n", "Expected work/plan.py to define shard."),
    ],
)
def test_a_file_that_cannot_be_imported_has_one_clear_line(check, text, message, capsys):
    write(**RIGHT)
    check(1, "work/plan.py")
    Path("work/plan.py").write_text(text)
    capsys.readouterr()
    assert check(1, "work/plan.py")(100, 0, 2) == 50
    assert published() == {"shard": "the kit's", "batches": "the kit's"}
    out = capsys.readouterr().out
    assert message in out
    assert "Traceback" not in out


def test_modules_of_another_folder_are_not_mistaken_for_this_ones(check, monkeypatch):
    for name in ("checked.solution_plan", "plan"):  # imported from elsewhere, such as another lab's folder
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    write(shard=RIGHT["shard"], batches="digits")
    assert check(1, "work/plan.py").__module__ == "plan"
    assert published() == {"shard": "yours", "batches": "the kit's"}


def test_another_path_is_refused(check):
    Path("work/other.py").write_text(Path("work/plan.py").read_text())
    outcome, message = check.judge(1, "work/other.py")
    assert outcome == NOT_YET
    assert message.startswith("Expected the file work/plan.py, which scripts import; the answer is work/other.py.")
    assert check.judge(1, "work/missing.py")[1].startswith("Expected the script work/missing.py to exist")


def test_what_the_file_imports_is_fresh(check):
    write(shard="even(digits, size)[rank]", batches=RIGHT["batches"])
    assert check.judge(1, "work/plan.py")[0] == PASSED
    Path("work/cutting.py").write_text("def even(digits, parts):\n    return [digits] * parts  # changed\n")
    assert check.judge(1, "work/plan.py")[0] == NOT_YET


def test_the_solution_that_is_shown_is_the_exercises_own_function(check):
    assert check._solution_text(2) == "def batches(digits, batch):\n    return digits // batch"


def test_checking_one_function_is_no_attempt_at_another(check, capsys):
    write(shard="digits", batches=RIGHT["batches"])
    check(2, "work/plan.py")
    capsys.readouterr()
    check(1, "work/plan.py")
    assert "Hint 1 of 2" in capsys.readouterr().out
