"""The labs' notebooks as `./lab build` has made them, section by section, and who their prose is for."""

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
        raise LabError(f"there is no {paths.shown(path)}: ./lab build {path.stem[:2]} makes it.")
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def sections(lab: LabInfo) -> list[Cells]:
    """Return the cells of a lab's solution notebook, section by section; the first part is the lab's beginning."""
    return by_section(read(lab.solution))


def is_instructors(cell: NotebookNode) -> bool:
    """Whether a cell is prose that only the solution notebook has, for the instructor."""
    return cell.cell_type == "markdown" and INSTRUCTOR in cell.metadata.get("tags", [])


def is_students(cell: NotebookNode) -> bool:
    """Whether a cell is prose that students read."""
    return cell.cell_type == "markdown" and not is_instructors(cell)


def has_closing_table(cell: NotebookNode) -> bool:
    """Whether a cell shows its lab's closing table."""
    return cell.cell_type == "code" and "results.table(" in cell.source
