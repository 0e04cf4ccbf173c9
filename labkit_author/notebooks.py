"""Reads notebooks: their sections, the exercises that they check, and the times at which their cells ran."""

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
INSTRUCTOR = "instructor"  # tag of the cells that only the solution notebook has
TIMES = "execution"  # a cell's metadata, as JupyterLab writes it
OPTIONAL = " · optional"  # ends the heading of an optional section
HEADING = re.compile(r"^(?:# )?## (?:(\d+) · .+|(Questions))$", re.M)
QUESTIONS = "questions"  # the name of the last section, which has no number
WRITES = "%%writefile "


class Cells(NamedTuple):
    """The cells of one section of a lab: its name as in the plan, its heading, and they."""

    name: str
    heading: str
    cells: list[NotebookNode]

    @property
    def exercises(self) -> tuple[int, ...]:
        """The numbers of the exercises that its cells check."""
        return tuple(number for cell in self.cells for number, _ in checks(cell))


def by_section(notebook: NotebookNode) -> list[Cells]:
    """Return a notebook's cells section by section, without the headings; the first, without a name, is its beginning.

    A cell of prose that goes on over a heading is divided there.
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
    """Append a cell with a part of its prose, if there is any."""
    if text.strip():
        cells.append(NotebookNode(cell, source=text.strip("\n")))


def checks(cell: NotebookNode) -> list[tuple[int, str]]:
    """Return number and variable of each `name = check(N, …)` in a cell."""
    if cell.cell_type != "code" or "check(" not in cell.source:  # few have one, and walking a tree takes a while
        return []
    found = []
    for node in ast.walk(parse(cell)):
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name("check"), [ast.Constant(int(number)), *_])):
                found.append((number, name))
    return found


def parse(cell: NotebookNode) -> ast.Module:
    """Return the syntax tree of a code cell, IPython's own syntax translated into calls.

    Of a `%%writefile` cell it is the tree of the script, since that is the cell's Python.
    """
    return _parse(cell.source)


@functools.cache
def _parse(text: str) -> ast.Module:
    if text.startswith("%%writefile"):
        text = text.partition("\n")[2]
    return ast.parse(TransformerManager().transform_cell(text))


def script_of(cell: NotebookNode) -> str:
    """Return the script that a cell writes, `work/x.py`; an empty text when it writes none."""
    first = cell.source.partition("\n")[0]
    return first.removeprefix(WRITES).strip() if first.startswith(WRITES) else ""


def waited(notebook: NotebookNode) -> dict[str, float]:
    """Return the minutes that the cells of each section took when the notebook was executed.

    What stands before the first section counts to it.

    Raises
    ------
    LabError
        When a cell has no times.
    """
    took = {part.name: sum(_minutes(cell) for cell in part.cells) for part in by_section(notebook)}
    before = took.pop("")
    took[next(iter(took))] += before
    return took


def _minutes(cell: NotebookNode) -> float:
    """Return the minutes that a cell took; prose and an empty cell took none."""
    if cell.cell_type == "markdown" or not cell.source.strip():
        return 0.0
    times = cell.metadata.get(TIMES, {})
    try:
        begin, end = (datetime.fromisoformat(times[f"iopub.status.{state}"]) for state in ("busy", "idle"))
    except KeyError:
        raise LabError(f"the cell {cell.source.splitlines()[0]!r} has no times: execute the lab.") from None
    return (end - begin).total_seconds() / 60


def dumps(notebook: NotebookNode) -> str:
    """Return a notebook's text, the same to the byte for the same content."""
    text: str = nbformat.writes(notebook)
    return text + "\n"


def write_changed(path: Path, content: str | bytes) -> Path | None:
    """Write a file unless it has this content already; return its path if it was written."""
    if path.exists() and path.read_bytes() == (content.encode() if isinstance(content, str) else content):
        return None
    files.write(path, content)
    return path
