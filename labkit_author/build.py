"""Build a lab's two notebooks from its source.

| file | made from | by |
| --- | --- | --- |
| notebooks/NN_topic.ipynb | solutions/NN_topic.py, solutions blanked, instructor's cells left out | `lab build` |
| solutions/NN_topic.ipynb | solutions/NN_topic.py without markers, executed by `stored.store` | `lab build --execute` |
"""

import hashlib
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.system import files, paths
from labkit_author import minutes, sources
from labkit_author.execution import with_outputs_of
from labkit_author.notebooks import INSTRUCTOR, TIMES, dumps, write_changed

KEY = "labkit_key"  # metadata of a stored notebook: a hash of the code and checks that it was executed with
SESSION = "labkit_session"  # metadata of a stored notebook: its session, the same for all labs stored together


def student(source: Path) -> NotebookNode:
    """Return the students' notebook: blank exercises, no instructor's cells, no outputs."""
    notebook = sources.blank(sources.read(source))
    notebook.cells = [cell for cell in notebook.cells if INSTRUCTOR not in cell.metadata.get("tags", [])]
    return minutes.fill(notebook, source)


def solution(source: Path) -> NotebookNode:
    """Return the instructor's notebook before execution: solutions without markers."""
    return minutes.fill(sources.solved(sources.read(source)), source)


def student_path(source: Path) -> Path:
    """Return the path of the students' notebook."""
    return paths.NOTEBOOKS / f"{source.stem}.ipynb"


def solution_path(source: Path) -> Path:
    """Return the path of the executed notebook."""
    return source.with_suffix(".ipynb")


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """Return a copy without the results of execution, to compare with its source."""
    bare: NotebookNode = nbformat.from_dict(notebook)
    for run_metadata in (KEY, SESSION):
        bare.metadata.pop(run_metadata, None)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.pop(TIMES, None)
    return bare


def stored(source: Path) -> NotebookNode:
    """Return a lab's stored solution notebook."""
    notebook: NotebookNode = nbformat.read(solution_path(source), as_version=4)
    return notebook


def has_drifted(source: Path) -> bool:
    """Return whether the cells of the stored solution notebook differ from its source."""
    return dumps(without_outputs(stored(source))) != dumps(solution(source))


def is_executed(source: Path) -> bool:
    """Return whether all code cells of the stored solution notebook have run."""
    return all(cell.execution_count for cell in stored(source).cells if cell.cell_type == "code")


def has_run(source: Path) -> bool:
    """Return whether any code cell of the stored solution notebook has run."""
    return any(cell.execution_count for cell in stored(source).cells if cell.cell_type == "code")


def build(source: Path) -> list[Path]:
    """Build a lab's two notebooks; return the files that changed.

    An executed solution notebook keeps its outputs until a code cell is changed or removed.
    """
    student_file = write_changed(student_path(source), dumps(student(source)))
    written = [student_file] if student_file else []
    target = solution_path(source)
    if not target.exists() or has_drifted(source):
        files.write(target, dumps(with_stored_outputs(source)))
        written.append(target)
    return written


def with_stored_outputs(source: Path) -> NotebookNode:
    """Return the solution notebook with its stored outputs, or with none if a code cell was changed or removed.

    New cells have no outputs; the cells around them are unchanged since their execution.
    """
    fresh = solution(source)
    if not solution_path(source).exists():
        return fresh
    executed = stored(source)
    executed_ids, ids = ([cell.id for cell in nb.cells if cell.cell_type == "code"] for nb in (executed, fresh))
    remaining = iter(ids)
    if not all(cell in remaining for cell in executed_ids):
        return fresh
    fresh.metadata |= {name: executed.metadata[name] for name in (KEY, SESSION) if name in executed.metadata}
    return with_outputs_of(fresh, executed)


def key(source: Path) -> str:
    """Return a hash of a lab's code cells, its checks, and the modules that it runs on ranks."""
    cells = [cell.source for cell in sources.solved(sources.read(source)).cells if cell.cell_type == "code"]
    modules = sorted((paths.ROOT / "labkit" / "exercises").rglob(f"lab{source.stem[:2]}*.py"))
    return hashlib.sha256(
        "\0".join([*cells, *(path.read_text(encoding="utf-8") for path in modules)]).encode()
    ).hexdigest()


def is_stale(source: Path) -> bool:
    """Return whether a lab's code or checks have changed since its solution notebook was executed and stored."""
    return bool(stored(source).metadata.get(KEY) != key(source))
