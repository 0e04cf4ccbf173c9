"""Read the labs' built notebooks by section, and identify prose for students and for instructors."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.exercises.catalogue import LabInfo
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author.notebooks import INSTRUCTOR, Cells, by_section


def read(path: Path) -> NotebookNode:
    """Return one of a lab's notebooks."""
    if not path.exists():
        raise LabError(f"there is no {paths.shown(path)}: ./lab build {path.stem[:2]} creates it.")
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def sections(lab: LabInfo) -> list[Cells]:
    """Return the cells of a lab's solution notebook, section by section; the first item is the lab's opening."""
    return by_section(read(lab.solution))


def is_instructors(cell: NotebookNode) -> bool:
    """Whether a cell is prose for the instructor, which only the solution notebook contains."""
    return cell.cell_type == "markdown" and INSTRUCTOR in cell.metadata.get("tags", [])


def is_students(cell: NotebookNode) -> bool:
    """Whether a cell is prose for students."""
    return cell.cell_type == "markdown" and not is_instructors(cell)


def has_closing_table(cell: NotebookNode) -> bool:
    """Whether a cell shows its lab's closing table."""
    return cell.cell_type == "code" and "results.table(" in cell.source
