"""Read and write notebooks: their sections, the exercises they check, and the times at which their cells ran."""

import ast
import functools
import re
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from labkit.system import files
from labkit.system.errors import LabError

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"  # the lines around a solution in a source
INSTRUCTOR = "instructor"  # tag of cells that are only in the solution notebook
BACKGROUND = "background"  # tag of cells that wait for what was measured while students read
TIMES = "execution"  # cell metadata with its times, as JupyterLab writes it
OPTIONAL = " · optional"  # suffix of an optional section's heading
HEADING = re.compile(r"^## (?:(\d+) · .+|(Questions))$", re.M)
QUESTIONS = "questions"  # name of the last section, which has no number
WRITES = "%%writefile "


class Cells(NamedTuple):
    """One section of a lab: its name in the plan, its heading, and its cells."""

    name: str
    heading: str
    cells: list[NotebookNode]

    @property
    def exercises(self) -> tuple[int, ...]:
        """The numbers of the exercises that are checked in its cells."""
        return tuple(number for cell in self.cells for number, _ in checks(cell))


def by_section(notebook: NotebookNode) -> list[Cells]:
    """Return a notebook's cells by section, without headings. Cells before the first heading are in a nameless section.

    A Markdown cell with a heading in the middle is split there.
    """
    parts = [Cells("", "", [])]
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            parts[-1].cells.append(cell)
            continue
        begin = 0
        for heading in HEADING.finditer(cell.source):
            _append_prose(parts[-1].cells, cell, cell.source[begin : heading.start()])
            parts.append(Cells(heading[1] or QUESTIONS, heading[0].lstrip("# "), []))
            begin = heading.end()
        _append_prose(parts[-1].cells, cell, cell.source[begin:])
    return parts


def _append_prose(cells: list[NotebookNode], cell: NotebookNode, text: str) -> None:
    """Append a cell with part of its prose, unless that is blank."""
    if text.strip():
        cells.append(NotebookNode(cell, source=text.strip("\n")))


def checks(cell: NotebookNode) -> list[tuple[int, str]]:
    """Return number and variable of each `name = check(N, …)` in a cell."""
    if cell.cell_type != "code" or "check(" not in cell.source:  # most cells have none, and parsing is slow
        return []
    results = []
    for node in ast.walk(parse(cell)):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name("check"), [ast.Constant(int(number)), *_])):
                results.append((number, name))
    return results


def parse(cell: NotebookNode) -> ast.Module:
    """Return the syntax tree of a code cell, with IPython's syntax translated into calls.

    For a `%%writefile` cell, this is the script's syntax tree; an empty one if it isn't in Python.
    """
    return _parse(cell.source)


@functools.cache
def _parse(text: str) -> ast.Module:
    if text.startswith("%%writefile"):
        text = text.partition("\n")[2] if re.match(r".*\.py$", text, re.M) else ""
    return ast.parse(TransformerManager().transform_cell(text))


def script_of(cell: NotebookNode) -> str:
    """Return the path of the script that a cell writes, such as `work/x.py`; empty if it writes none."""
    first = cell.source.partition("\n")[0]
    return first.removeprefix(WRITES).strip() if first.startswith(WRITES) else ""


def waited(notebook: NotebookNode) -> dict[str, float]:
    """Return the minutes that each section's cells took when the notebook was executed.

    Cells before the first section count towards it.

    Raises
    ------
    LabError
        If a cell has no times.
    """
    minutes = {part.name: sum(_minutes(cell) for cell in part.cells) for part in by_section(notebook)}
    before = minutes.pop("")
    minutes[next(iter(minutes))] += before
    return minutes


def _minutes(cell: NotebookNode) -> float:
    """Return the minutes that students wait for a cell; 0 for Markdown, empty cells, and those tagged `BACKGROUND`."""
    if cell.cell_type == "markdown" or not cell.source.strip() or BACKGROUND in cell.metadata.get("tags", []):
        return 0.0
    times = cell.metadata.get(TIMES, {})
    try:
        begin, end = (datetime.fromisoformat(times[f"iopub.status.{state}"]) for state in ("busy", "idle"))
    except KeyError:
        raise LabError(f"the cell {cell.source.splitlines()[0]!r} has no times: execute the lab.") from None
    return (end - begin).total_seconds() / 60


def dumps(notebook: NotebookNode) -> str:
    """Return a notebook as text, byte-identical for the same content."""
    text: str = nbformat.writes(notebook)
    return text + "\n"


def write_changed(path: Path, content: str | bytes) -> Path | None:
    """Write a file unless it already has this content; return its path if it was written."""
    if path.exists() and path.read_bytes() == (content.encode() if isinstance(content, str) else content):
        return None
    files.write(path, content)
    return path
