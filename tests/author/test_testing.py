import re
import subprocess
import sys
from types import SimpleNamespace

import order
import pytest

from labkit import cli
from labkit.exercises import sources
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import testing


def test_a_labs_tests_are_its_exercises_its_source_and_both_its_notebooks():
    for source in sources.labs():
        ((*chosen,),) = testing.runs(lab=source.stem[:2])
        assert any(path.startswith(f"tests/exercises/test_lab{source.stem[:2]}") for path in chosen)
        assert f"solutions/{source.stem}.ipynb" in chosen
        assert not any(other.stem in " ".join(chosen) for other in sources.labs() if other != source)


@pytest.mark.slow
def test_an_exercises_tests_are_its_own_alone():
    ((file, chosen),) = testing.runs(lab="9", exercise=4)
    collected = ["-q", "--collect-only", "-p", "no:cacheprovider", f"--rootdir={paths.ROOT}", file, chosen]
    command = [sys.executable, "-m", "pytest", *collected]
    out = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True).stdout
    cases = re.findall(r"::(test_\w+)(?:\[(\d+)\S*\])?", out)
    assert {number for _, number in cases} == {"4", ""}
    assert {test for test, _ in cases} == {
        "test_untouched_is_not_attempted",
        "test_mistakes_are_reported",
        "test_right_answers_pass",
        "test_each_exercise_has_mistakes_a_solution_and_another_right_answer",
    }


@pytest.mark.parametrize(
    ("lab", "exercise", "told"),
    [("09", 99, "lab 09 has no exercise 99, only 1, 2, 3"), (None, 4, "exercise 4 of which lab"), ("77", 1, "no lab")],
)
def test_an_exercise_that_there_is_not_is_refused(lab, exercise, told):
    with pytest.raises(LabError, match=told):
        testing.runs(lab=lab, exercise=exercise)


def test_the_command_asks_for_an_exercises_tests(monkeypatch):
    ran = []
    monkeypatch.setattr("sys.argv", ["lab", "test", "--lab", "09", "--exercise", "4", "-v"])
    monkeypatch.setattr(subprocess, "run", lambda command: ran.append(command) or SimpleNamespace(returncode=0))
    monkeypatch.setattr(testing, "as_others_can", list)
    monkeypatch.chdir(paths.ROOT)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    assert ran == [[sys.executable, "-m", "pytest", *testing.runs(lab="09", exercise=4)[0], "-v"]]


def test_fast_tests_start_no_notebook():
    for runs in (testing.runs(fast=True), testing.runs(fast=True, lab="09")):
        assert not any("solutions" in argument for arguments in runs for argument in arguments)


@pytest.mark.parametrize("fast", [True, False])
def test_style_comes_first_and_only_once(fast):
    style, tests = testing.runs(fast)
    assert style == [testing.STYLE]
    assert f"--ignore={testing.STYLE}" in tests
    assert (paths.ROOT / testing.STYLE).is_file()


def test_what_is_asked_for_is_one_run():
    assert testing.runs(more=["tests/mpi"]) == [["tests/mpi"]]
    ((*narrow,),) = testing.runs(fast=True, more=["tests/test_cli.py::test_it"])
    assert "--fast" in narrow
    assert "tests" not in narrow
    ((*chosen,),) = testing.runs(fast=True, more=["-k", "sources"])
    assert chosen[-2:] == ["-k", "sources"]
    assert "--fast" in chosen


def test_both_executions_of_a_lab_stay_together_and_other_files_whole():
    untouched = "tests/author/test_untouched.py::test_it[08_cluster]"
    assert order.unit(untouched) == order.unit("solutions/08_cluster.ipynb::Cell 3") == "solutions/08_cluster.ipynb"
    assert order.unit("tests/mpi/test_typed.py::TestIt::test_it[a[0]]") == "tests/mpi/test_typed.py"


def test_what_is_begun_first_is_there():
    found = [*(paths.ROOT / "tests").rglob("*.py"), *paths.SOLUTIONS.glob("*.ipynb")]
    files = [str(path.relative_to(paths.ROOT)) for path in found]
    assert [start for start in order.FIRST if not any(file.startswith(start) for file in files)] == []
