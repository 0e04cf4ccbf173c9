"""A lab's two notebooks, as they are made from its source, and as they are stored.

| notebook | is the source |
| --- | --- |
| notebooks/NN_topic.ipynb | with solutions blanked, and without the instructor's cells and outputs |
| solutions/NN_topic.ipynb | without the solutions' markers, executed |
"""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.exercises import minutes, sources
from labkit.exercises.minutes import TIMES
from labkit.system import paths

INSTRUCTOR = "instructor"  # tag of the cells that only the solution notebook has


def student(source: Path) -> NotebookNode:
    """Return the notebook students open: exercises blank, no instructor's cells, no outputs."""
    notebook = sources.blank(sources.read(source))
    notebook.cells = [cell for cell in notebook.cells if INSTRUCTOR not in cell.metadata.get("tags", [])]
    return minutes.fill(notebook, source)


def solution(source: Path) -> NotebookNode:
    """Return the instructor's notebook, not executed: solutions without their markers."""
    return minutes.fill(sources.solved(sources.read(source)), source)


def student_path(source: Path) -> Path:
    """Return where the notebook that students open belongs."""
    return paths.NOTEBOOKS / f"{source.stem}.ipynb"


def solution_path(source: Path) -> Path:
    """Return where the executed notebook belongs."""
    return source.with_suffix(".ipynb")


def dumps(notebook: NotebookNode) -> str:
    """Return a notebook's text, the same to the byte for the same content."""
    text: str = nbformat.writes(notebook)
    return text + "\n"


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """Return a copy as it was before execution, to compare with its source."""
    bare: NotebookNode = nbformat.from_dict(notebook)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.pop(TIMES, None)
    return bare


def stored(source: Path) -> NotebookNode:
    """Return a lab's solution notebook as it is stored."""
    notebook: NotebookNode = nbformat.read(solution_path(source), as_version=4)
    return notebook


def drifted(source: Path) -> bool:
    """Tell whether the cells of the stored solution notebook differ from its source's."""
    return dumps(without_outputs(stored(source))) != dumps(solution(source))


def is_executed(source: Path) -> bool:
    """Tell whether all code cells of the stored solution notebook have run."""
    return all(cell.execution_count for cell in stored(source).cells if cell.cell_type == "code")


def has_run(source: Path) -> bool:
    """Tell whether the stored solution notebook has outputs of a run, be it without cells that were added since."""
    return any(cell.execution_count for cell in stored(source).cells if cell.cell_type == "code")


def has_text(path: Path, text: str) -> bool:
    """Tell whether a file is there and has this text."""
    return path.exists() and path.read_bytes() == text.encode()
