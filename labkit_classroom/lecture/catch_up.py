"""Copies of labs for students who are behind: solved up to an exercise, with the stored run's results."""

import re

import nbformat
from nbformat import NotebookNode

from labkit.exercises import working_copies
from labkit.exercises.catalogue import LabInfo
from labkit.system.errors import LabError
from labkit_classroom.lecture.labs import read

MARK = "not measured here"
CHECK = re.compile(r"\bcheck\(\d+, [^)]*")


def copy(lab: LabInfo, to: int) -> str:
    """Return the text of a student's copy in which the exercises before `to` are solved.

    Raises
    ------
    LabError
        If the lab has no such exercise, or it is the first one.
    """
    if to not in lab.exercises:
        raise LabError(f"lab {lab.number} has no exercise {to}, only {', '.join(map(str, lab.exercises))}.")
    notebook = read(lab.notebook)
    ids = [cell.id for cell in notebook.cells]
    reached = ids.index(lab.exercises[to].cell)
    before = [number for number, exercise in lab.exercises.items() if ids.index(exercise.cell) < reached]
    if not before:
        raise LabError(f"exercise {to} is the first of lab {lab.number}: there is nothing to catch up with.")
    solved = {cell.id: cell for cell in read(lab.solution).cells}
    for cell in notebook.cells[:reached]:
        if cell.cell_type == "code" and cell.id in solved:
            cell.source = CHECK.sub(r"\g<0>, given=True", solved[cell.id].source)
            if outputs := solved[cell.id].outputs:
                cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"[{MARK}]\n"), *outputs]
    notebook.cells.insert(1, _note(to, before))
    return working_copies.as_copy(nbformat.writes(notebook))


def _note(to: int, solved: list[int]) -> NotebookNode:
    """Return the cell that lists what is solved in this copy."""
    cell: NotebookNode = nbformat.v4.new_markdown_cell(
        '<div class="alert alert-block alert-warning" style="color: black">\n\n'
        f"**Catch-up.** Solved here: exercise {', '.join(map(str, solved))}. Continue with exercise {to}. Results "
        f"above it are marked “{MARK}”: they are from the kit's stored run. To get your own, run the cells above "
        f"exercise {to} (Run, Run All Above Selected Cell).\n\n</div>",
        id="catch-up",
    )
    return cell
