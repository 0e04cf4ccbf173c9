"""The labs' notebooks as `./lab build` has made them, and where students' answers go in them."""

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.system import paths
from labkit.system.errors import LabError

INSTRUCTOR = "instructor"  # tag of the cells that only the solution notebook has
STUB = "YOUR CODE HERE"  # in a student's notebook, where an answer goes
CHECK = re.compile(r"^\w+ = check\((\d+), ", re.M)


def student(source: Path) -> NotebookNode:
    """Return the notebook that students open."""
    return _read(paths.NOTEBOOKS / f"{source.stem}.ipynb")


def solution(source: Path) -> NotebookNode:
    """Return the solution notebook, with the outputs of its stored run."""
    return _read(source.with_suffix(".ipynb"))


def _read(path: Path) -> NotebookNode:
    if not path.exists():
        raise LabError(f"there is no {paths.shown(path)}: ./lab build {path.stem[:2]} makes it.")
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def exercises(source: Path) -> dict[int, str]:
    """Return the id of the cell that each exercise of a lab is answered in, which has the solution in the solution."""
    answered, cell_id = {}, ""
    for cell in student(source).cells:
        if cell.cell_type == "code":
            cell_id = cell.id if STUB in cell.source else cell_id
            answered.update(dict.fromkeys(map(int, CHECK.findall(cell.source)), cell_id))
    return answered


def is_instructors(cell: NotebookNode) -> bool:
    """Whether a cell is prose in the instructor's notebook alone."""
    return cell.cell_type == "markdown" and INSTRUCTOR in cell.metadata.get("tags", [])


def is_students_prose(cell: NotebookNode) -> bool:
    """Whether a cell is prose that students read."""
    return cell.cell_type == "markdown" and not is_instructors(cell)
