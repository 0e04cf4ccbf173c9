"""A catch-up copy is solved up to an exercise, and marks results that were not measured here."""

import json

import nbformat
import numpy as np
import pytest
from lab_command import run_lab

from labkit.exercises import catalogue, working_copies
from labkit.exercises.engine.answers import remember_lines
from labkit.exercises.engine.checker import checker
from labkit.system.errors import LabError
from labkit_classroom.lecture import catch_up, labs

LAB = catalogue.find("07")


def caught_up(to: int) -> nbformat.NotebookNode:
    return nbformat.reads(catch_up.copy(LAB, to), as_version=4)


@pytest.mark.parametrize("to", [4, 6])
def test_earlier_exercises_are_solved_and_the_rest_are_stubs(to):
    notebook, exercises = caught_up(to), LAB.exercises
    stubs = [cell.source for cell in notebook.cells if "YOUR CODE HERE" in cell.source]
    assert len(stubs) == len(exercises) - to + 1
    text = "\n".join(cell.source for cell in notebook.cells)
    for number in range(1, to):
        assert exercises[number].name in text


def test_all_results_are_marked_and_precede_the_exercise():
    notebook = caught_up(4)
    places = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.outputs]
    assert places
    for index in places:
        assert catch_up.MARK in notebook.cells[index].outputs[0].text
    first_stub = next(index for index, cell in enumerate(notebook.cells) if "YOUR CODE HERE" in cell.source)
    assert max(places) < first_stub


def test_its_note_lists_solved_exercises_and_the_next_one():
    assert "Solved here: exercise 1, 2, 3. Continue with exercise 4." in caught_up(4).cells[1].source


def test_it_contains_no_instructors_cells():
    assert not any(labs.INSTRUCTOR in cell.metadata.get("tags", []) for cell in caught_up(6).cells)


@pytest.mark.parametrize(("to", "part"), [(1, "is the first"), (99, "has no exercise 99")])
def test_a_first_or_unknown_exercise_is_refused(to, part):
    with pytest.raises(LabError, match=part):
        catch_up.copy(LAB, to)


@pytest.mark.slow
def test_the_students_copy_is_backed_up_and_the_new_one_is_never_refreshed(tmp_path):
    working_copies.update(tmp_path)
    copy = working_copies.copy_path(LAB, tmp_path)
    edited = copy.read_text().replace("Horovod", "Horovod!", 1)
    copy.write_text(edited)
    assert run_lab("catchup", "07", "--to", "4", "--folder", tmp_path) == 0
    assert [backup.read_text() for backup in tmp_path.glob("07*.backup-1.ipynb")] == [edited]
    caught_up = copy.read_text()
    assert "Continue with exercise 4" in caught_up
    working_copies.update(tmp_path)
    assert copy.read_text() == caught_up


OWN = "def threads_per_rank(cores, ranks):\n    return cores // ranks or 1"
EMPTY = "def threads_per_rank(cores, ranks):\n    raise NotImplementedError()"


def test_included_solutions_do_not_count_as_answers_until_edited(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lab, namespace = catalogue.find("00"), {"np": np}
    notebook = nbformat.reads(catch_up.copy(lab, 3), as_version=4)
    namespace["check"] = checker("00", namespace, quick=True)
    (solution,) = (cell.source for cell in notebook.cells if cell.id == lab.exercises[2].cell)
    (checked,) = (cell.source for cell in notebook.cells if "check(2, " in cell.source)

    def verdict(code: str) -> str:
        remember_lines("<cell>", code)
        exec(compile(code, "<cell>", "exec"), namespace)
        exec(checked, namespace)
        return json.loads((tmp_path / "work/results-00.json").read_text())["exercises"]["2"]

    assert verdict(solution) == "not attempted"
    assert "Your copy came with the solution." in capsys.readouterr().out
    assert verdict(solution.replace("max(1, ", "max(2, ")) == "not yet"
    assert verdict(EMPTY) == "not attempted"
    assert verdict(OWN) == "passed"
    assert verdict(solution) == "passed"  # passed stays passed
