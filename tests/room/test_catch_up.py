"""A catch-up copy has the student's own exercise and those after it untouched, and says what was not measured here."""

import nbformat
import pytest

from labkit.authoring import copies, notebooks
from labkit.exercises import sources
from labkit.room import catch_up
from labkit.system.errors import LabError

SOURCE = sources.find("07")


def caught_up(to: int) -> nbformat.NotebookNode:
    return nbformat.reads(catch_up.copy(SOURCE, to), as_version=4)


@pytest.mark.parametrize("to", [2, 4, 6])
def test_what_is_before_is_solved_and_the_rest_is_the_students(to):
    notebook, exercises = caught_up(to), sources.exercises(sources.read(SOURCE))
    stubs = [cell.source for cell in notebook.cells if "YOUR CODE HERE" in cell.source]
    assert len(stubs) == len(exercises) - to + 1
    text = "\n".join(cell.source for cell in notebook.cells)
    for number in range(1, to):
        assert exercises[number].name in text
    assert sources.BEGIN not in text


def test_all_results_are_marked_and_none_comes_after_the_exercise():
    notebook = caught_up(4)
    places = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.outputs]
    assert places
    for index in places:
        assert catch_up.MARK in notebook.cells[index].outputs[0].text
    first_stub = next(index for index, cell in enumerate(notebook.cells) if "YOUR CODE HERE" in cell.source)
    assert max(places) < first_stub


def test_it_has_no_instructors_cells():
    assert not any(notebooks.INSTRUCTOR in cell.metadata.get("tags", []) for cell in caught_up(6).cells)


@pytest.mark.parametrize(("to", "part"), [(1, "is the first"), (99, "and no 99")])
def test_exercises_to_which_nothing_leads(to, part):
    with pytest.raises(LabError, match=part):
        catch_up.copy(SOURCE, to)


def test_the_students_own_is_kept_and_the_copy_is_refreshed_by_nothing(tmp_path):
    copies.update(tmp_path)
    own = copies.copy_path(SOURCE, tmp_path)
    edited = own.read_text().replace("Horovod", "Horovod!", 1)
    own.write_text(edited)
    kept = copies.reset(SOURCE, tmp_path, catch_up.copy(SOURCE, 4))
    assert kept.read_text() == edited
    copies.update(tmp_path)
    assert own.read_text() == catch_up.copy(SOURCE, 4)
