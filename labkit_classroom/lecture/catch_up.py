"""A copy of a lab for whoever is behind: solved up to an exercise, with the results that the stored run had there."""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.exercises import copies, notebooks, sources
from labkit.system.errors import LabError

MARK = "not measured here"
CHECK = re.compile(r"\bcheck\(\d+, [^)]*")


def copy(source: Path, to: int) -> str:
    """Return the text of a copy in which the exercises before `to` are solved.

    Raises
    ------
    LabError
        When the lab has no such exercise, or only one before which there is nothing to solve.
    """
    exercises = sources.exercises(sources.read(source))
    if to not in exercises:
        raise LabError(f"lab {source.stem[:2]} has the exercises {', '.join(map(str, exercises))}, and no {to}.")
    before = {number: exercise for number, exercise in exercises.items() if exercise.cell < exercises[to].cell}
    if not before:
        raise LabError(f"exercise {to} is the first of lab {source.stem[:2]}: there is nothing to catch up with.")
    reached = sources.read(source).cells[exercises[to].cell].id
    solved = {cell.id: cell for cell in notebooks.solution(source).cells}
    stored = {cell.id: cell for cell in notebooks.stored(source).cells}
    notebook = notebooks.student(source)
    cells = notebook.cells[: [cell.id for cell in notebook.cells].index(reached)]
    for cell in cells:
        if cell.cell_type == "code" and cell.id in solved:
            cell.source = CHECK.sub(r"\g<0>, given=True", solved[cell.id].source)
            if cell.id in stored and stored[cell.id].outputs:
                note = nbformat.v4.new_output("stream", name="stdout", text=f"[{MARK}]\n")
                cell.outputs = [note, *stored[cell.id].outputs]
    notebook.cells.insert(1, _note(to, list(before)))
    return copies.as_copy(notebook)


def _note(to: int, solved: list[int]) -> NotebookNode:
    """Return the cell that tells what is solved in this copy."""
    *most, last = map(str, solved)
    which = f"Exercises {', '.join(most)} and {last} are" if most else f"Exercise {last} is"
    cell: NotebookNode = nbformat.v4.new_markdown_cell(
        '<div class="alert alert-block alert-warning" style="color: black">\n\n'
        f"**Catch-up.** {which} solved here. Go on with exercise {to}. Results above it say “{MARK}”: they are of "
        f"the kit's stored run. Run the cells above exercise {to} (Run, Run All Above Selected Cell) to have your own."
        "\n\n</div>",
        id="catch-up",
    )
    return cell
