"""A catch-up copy has the student's own exercise and those after it untouched, and says what was not measured here."""

import json

import nbformat
import numpy as np
import pytest

from labkit import cli
from labkit.exercises import answers, catalogue, core, working_copies
from labkit.system.errors import LabError
from labkit_classroom.lecture import catch_up, labs

LAB = catalogue.find("07")


def caught_up(to: int) -> nbformat.NotebookNode:
    return nbformat.reads(catch_up.copy(LAB, to), as_version=4)


@pytest.mark.parametrize("to", [2, 4, 6])
def test_what_is_before_is_solved_and_the_rest_is_the_students(to):
    notebook, exercises = caught_up(to), LAB.exercises
    stubs = [cell.source for cell in notebook.cells if "YOUR CODE HERE" in cell.source]
    assert len(stubs) == len(exercises) - to + 1
    text = "\n".join(cell.source for cell in notebook.cells)
    for number in range(1, to):
        assert exercises[number].name in text


def test_all_results_are_marked_and_none_comes_after_the_exercise():
    notebook = caught_up(4)
    places = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.outputs]
    assert places
    for index in places:
        assert catch_up.MARK in notebook.cells[index].outputs[0].text
    first_stub = next(index for index, cell in enumerate(notebook.cells) if "YOUR CODE HERE" in cell.source)
    assert max(places) < first_stub


def test_its_note_says_what_is_solved_and_where_to_go_on():
    assert "Solved here: exercise 1, 2, 3. Go on with exercise 4." in caught_up(4).cells[1].source


def test_it_has_no_instructors_cells():
    assert not any(labs.INSTRUCTOR in cell.metadata.get("tags", []) for cell in caught_up(6).cells)


@pytest.mark.parametrize(("to", "part"), [(1, "is the first"), (99, "and no 99")])
def test_exercises_to_which_nothing_leads(to, part):
    with pytest.raises(LabError, match=part):
        catch_up.copy(LAB, to)


@pytest.mark.slow
def test_the_students_own_is_kept_and_the_copy_is_refreshed_by_nothing(tmp_path, monkeypatch):
    working_copies.update(tmp_path)
    own = working_copies.copy_path(LAB, tmp_path)
    edited = own.read_text().replace("Horovod", "Horovod!", 1)
    own.write_text(edited)
    monkeypatch.setattr("sys.argv", ["lab", "catchup", "07", "--to", "4", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit):
        cli.main()
    assert [kept.read_text() for kept in tmp_path.glob("07*.backup-1.ipynb")] == [edited]
    caught_up = own.read_text()
    assert "Go on with exercise 4" in caught_up
    working_copies.update(tmp_path)
    assert own.read_text() == caught_up


OWN = """
def learning_rate(step, base, size, warmup):
    done = min(1, step / warmup) if warmup else 1
    return base * (1 + (size - 1) * done)
"""
EMPTY = "def learning_rate(step, base, size, warmup):\n    raise NotImplementedError()"


def test_solutions_that_a_copy_came_with_are_not_answers_and_what_a_student_writes_in_their_place_is(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    notebook, namespace = caught_up(6), {"np": np}
    namespace["check"] = core.checker("07", namespace, quick=True)
    (given,) = (cell.source for cell in notebook.cells if cell.id == LAB.exercises[2].cell)
    (checked,) = (cell.source for cell in notebook.cells if "check(2, " in cell.source)

    def verdict(code: str) -> str:
        answers.remember_lines("<cell>", code)
        exec(compile(code, "<cell>", "exec"), namespace)
        exec(checked, namespace)
        return json.loads((tmp_path / "work/results-07.json").read_text())["exercises"]["2"]

    assert verdict(given) == "not attempted"
    assert "It was solved when you got it." in capsys.readouterr().out
    assert verdict(given.replace("(size - 1)", "(size - 2)")) == "not yet"
    assert verdict(EMPTY) == "not attempted"
    assert verdict(OWN) == "passed"
    assert verdict(given) == "passed"  # stays so
