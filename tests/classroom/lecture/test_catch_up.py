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


class TestWhatCounts:
    """Solutions that a copy came with are nobody's answers; what a student writes in their place is."""

    OWN = """
def learning_rate(step, base, size, warmup):
    done = min(1, step / warmup) if warmup else 1
    return base * (1 + (size - 1) * done)
"""

    @pytest.fixture
    def check(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        notebook, namespace = caught_up(6), {"np": np}

        def run(exercise: int, code: str = "") -> str:
            solved, checked = self.cells(notebook, exercise)
            code = code or solved
            if code.startswith("%%writefile"):
                path = tmp_path / code.split()[1]
                path.parent.mkdir(exist_ok=True)
                path.write_text(code.partition("\n")[2])
            else:
                answers.remember_lines("<cell>", code)
                exec(compile(code, "<cell>", "exec"), namespace)
            exec(checked, namespace)
            return json.loads((tmp_path / "work/results-07.json").read_text())["exercises"][str(exercise)]

        namespace["check"] = core.checker("07", namespace, quick=True)
        return run

    @staticmethod
    def cells(notebook: nbformat.NotebookNode, exercise: int) -> tuple[str, str]:
        """Return the cell that is solved, and the one that checks it."""
        solved = next(cell.source for cell in notebook.cells if cell.id == LAB.exercises[exercise].cell)
        return solved, next(cell.source for cell in notebook.cells if f"check({exercise}, " in cell.source)

    @pytest.mark.parametrize("exercise", [1, 2, 4])
    def test_what_was_given_is_not_attempted(self, check, exercise, capsys):
        assert check(exercise) == "not attempted"
        assert "It was solved when you got it." in capsys.readouterr().out

    def test_an_own_answer_in_its_place_passes(self, check):
        assert check(2) == "not attempted"
        assert check(2, self.OWN) == "passed"

    def test_a_number_changed_in_what_was_given_is_the_students_answer(self, check, capsys):
        solved = LAB.exercises[2].solution
        assert check(2, solved.replace("(size - 1)", "(size - 2)")) == "not yet"

    def test_what_was_taken_out_again_is_not_attempted(self, check):
        assert (
            check(2, "def learning_rate(step, base, size, warmup):\n    raise NotImplementedError()") == "not attempted"
        )

    def test_what_was_passed_before_stays_so(self, check):
        assert check(2, self.OWN) == "passed"
        assert check(2) == "passed"
