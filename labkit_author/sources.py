"""Read a lab's source: its cells, its exercises, its solutions.

A source is `solutions/NN_topic.py` in Jupytext's percent format. Its header says what the lab is about and needs, and
braces after a section's heading its minutes. `### BEGIN SOLUTION` and `### END SOLUTION` enclose a solution; the line
`name = check(N, …)` after it makes its cell exercise N.
"""

import copy
import functools
import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jupytext
import nbformat
from nbformat import NotebookNode

from labkit.exercises import catalogue
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author.notebooks import BEGIN, END, checks

# A section's heading, and its planned minutes, which the notebooks don't have.
HEADING = re.compile(r"^# ## (?P<heading>(?P<number>\d+) · .+?|Questions)(?: \{(?P<plan>.+)\})?$", re.M)
STUB = f"# {'─' * 20} YOUR CODE HERE {'─' * 20}\nraise NotImplementedError()"
STUB_IN_C = STUB.partition("\n")[0].replace("#", "//")
KEPT_METADATA = ("tags", "jupyter")  # cell metadata; `jupyter={"source_hidden": true}` folds a cell in JupyterLab


class Answer(NamedTuple):
    """The answer to an exercise in a lab's source."""

    name: str  # the variable that it is bound to
    cell: int  # the index of its cell
    solution: str  # the cell's text, with the markers


def find(lab: str) -> Path:
    """Return the source of a lab, given as `7`, `07`, `07_horovod_mnist` or the path of one of its files."""
    return catalogue.match(lab, {source.stem: source for source in labs()})


def labs() -> list[Path]:
    """Return the sources of all labs, in order."""
    return sorted(paths.SOLUTIONS.glob("[0-9][0-9]_*.py"))


def title(source: Path) -> str:
    """Return a lab's title, such as `02 · oneDNN under an MNIST CNN`."""
    heading = next((line for line in source.read_text(encoding="utf-8").splitlines() if line.startswith("# # ")), None)
    if heading is None:
        raise LabError(f"{paths.shown(source)} has no title: a first line of prose such as `# # 02 · …`.")
    return heading.removeprefix("# # ")


def about(source: Path) -> dict[str, Any]:
    """Return a lab's header: its `goal`, and the doctor's checks that it `needs` or is `better_with`.

    Raises
    ------
    LabError
        If the header is incomplete, or has other keys.
    """
    header: dict[str, Any] = _read(source.read_text(encoding="utf-8"))[1]
    if header.keys() != {"goal", "needs", "better_with"}:
        raise LabError(f"the header of {paths.shown(source)} needs `lab:` with goal, needs and better_with.")
    return header


def read(source: Path) -> NotebookNode:
    """Return the notebook that a source describes: all cells, no outputs, the same ids each time.

    A cell's id is a hash of its text, so it stays when other cells come and go.
    """
    return copy.deepcopy(_read(source.read_text(encoding="utf-8"))[0])


@functools.cache
def _read(text: str) -> tuple[NotebookNode, dict[str, Any]]:
    """Return the notebook, and the lab's header."""
    parsed = jupytext.reads(HEADING.sub(r"# ## \g<heading>", text), fmt="py:percent")
    notebook: NotebookNode = nbformat.v4.new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
            "language_info": {"name": "python"},
        }
    )
    seen: Counter[str] = Counter()
    for cell in parsed.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
        seen[digest] += 1
        metadata = {key: cell.metadata[key] for key in KEPT_METADATA if key in cell.metadata}
        if writes_c(cell.source):
            cell.source = re.sub(r"^#( |$)", "", cell.source, flags=re.M)  # jupytext has done it for `#!`
        new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        notebook.cells.append(new(cell.source, id=f"{digest}-{seen[digest]}", metadata=metadata))
    return notebook, dict(parsed.metadata.get("lab", {}))


def writes_c(cell_source: str) -> bool:
    """Return whether a cell writes a C file or a job script; in a source, all its lines are comments."""
    return bool(re.match(r"%%writefile \S+\.(c|sbatch)$", cell_source, re.M))


def blank(notebook: NotebookNode) -> NotebookNode:
    """Return a copy with a stub in place of each solution.

    Raises
    ------
    LabError
        If a solution's markers are unpaired or nested. The message has the cell.
    """
    from nbgrader.preprocessors import ClearSolutions  # imported late because it takes a second, and few calls need it

    clear = ClearSolutions(
        enforce_metadata=False,
        begin_solution_delimeter=BEGIN,
        end_solution_delimeter=END,
        code_stub={"python": STUB, "c": STUB_IN_C},
    )
    clear.log.disabled = True  # its messages are in the error below
    blanked = copy.deepcopy(notebook)
    for index, cell in enumerate(blanked.cells):
        if cell.source.count(END) > cell.source.count(BEGIN):
            raise LabError(f"cell {index} has '{END}' without '{BEGIN}' before it:\n{cell.source}")
        try:
            clear.preprocess_cell(cell, {"language": "c" if writes_c(cell.source) else "python"}, index)
        except RuntimeError as error:
            raise LabError(f"cell {index}: {error}:\n{cell.source}") from error
    return blanked


def solved(notebook: NotebookNode) -> NotebookNode:
    """Return a copy with the solutions, without their markers."""
    copied = copy.deepcopy(notebook)
    for cell in copied.cells:
        cell.source = "\n".join(line for line in cell.source.split("\n") if line.strip() not in (BEGIN, END))
    return copied


def exercises(notebook: NotebookNode) -> dict[int, Answer]:
    """Return the answers to a notebook's exercises, by number.

    Raises
    ------
    LabError
        If a check has no solution before it, a solution has no check after it, or a number is used twice.
    """
    results: dict[int, Answer] = {}
    solution, is_checked = None, True  # the last cell with a solution
    for index, cell in enumerate(notebook.cells):
        for number, name in checks(cell):
            shared = solution is not None and notebook.cells[solution].source.startswith("%%writefile")
            if solution is None or (is_checked and not shared):  # a file may have the functions of several exercises
                raise LabError(f"cell {index} checks exercise {number}, but no cell before it has a '{BEGIN}'.")
            if number in results:
                raise LabError(f"cell {index}: exercise {number} is checked twice.")
            results[number] = Answer(name, solution, notebook.cells[solution].source)
            is_checked = True
        if BEGIN in cell.source:
            if not is_checked:
                raise LabError(f"cell {solution} has a solution without a `name = check(N, …)` after it.")
            solution, is_checked = index, False
    if not is_checked:
        raise LabError(f"cell {solution} has a solution without a `name = check(N, …)` after it.")
    return results
