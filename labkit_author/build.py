"""Build a lab's two notebooks from its source.

| made file | from | by |
| --- | --- | --- |
| notebooks/NN_topic.ipynb | solutions/NN_topic.py, solutions blanked, instructor's cells left out | `lab build` |
| solutions/NN_topic.ipynb | solutions/NN_topic.py without markers, executed by `stored.store` | `lab build --execute` |
"""

import hashlib
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.display import machines
from labkit.system import files, paths
from labkit_author import minutes, sources
from labkit_author.execution import with_outputs_of
from labkit_author.notebooks import INSTRUCTOR, TIMES, dumps, write_changed

KEY = "labkit_key"  # in the metadata of a stored notebook: a hash of the code and checks that it was executed with
SESSION = "labkit_session"  # also there: the session that executed it, the same for all labs stored together


def student(source: Path) -> NotebookNode:
    """Return the notebook students open: exercises blank, no instructor's cells, no outputs."""
    notebook = sources.blank(sources.read(source))
    notebook.cells = [cell for cell in notebook.cells if INSTRUCTOR not in cell.metadata.get("tags", [])]
    return minutes.fill(notebook, source)


def solution(source: Path) -> NotebookNode:
    """Return the instructor's notebook, not executed: solutions without markers, and other machines' results."""
    notebook = minutes.fill(sources.solved(sources.read(source)), source)
    if table := machines.table(source.stem[:2]):
        text, tags = f"### On other machines\n\n{table}", {"tags": [INSTRUCTOR]}
        notebook.cells.append(nbformat.v4.new_markdown_cell(text, id="on-other-machines", metadata=tags))
    return notebook


def student_path(source: Path) -> Path:
    """Return where the notebook that students open belongs."""
    return paths.NOTEBOOKS / f"{source.stem}.ipynb"


def solution_path(source: Path) -> Path:
    """Return where the executed notebook belongs."""
    return source.with_suffix(".ipynb")


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """Return a copy as it was before execution, to compare with its source."""
    bare: NotebookNode = nbformat.from_dict(notebook)
    for key_of_run in (KEY, SESSION):
        bare.metadata.pop(key_of_run, None)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.pop(TIMES, None)
    return bare


def stored(source: Path) -> NotebookNode:
    """Return a lab's solution notebook as it is stored."""
    notebook: NotebookNode = nbformat.read(solution_path(source), as_version=4)
    return notebook


def has_drifted(source: Path) -> bool:
    """Tell whether the cells of the stored solution notebook differ from its source's."""
    return dumps(without_outputs(stored(source))) != dumps(solution(source))


def is_executed(source: Path) -> bool:
    """Tell whether all code cells of the stored solution notebook have run."""
    return all(cell.execution_count for cell in stored(source).cells if cell.cell_type == "code")


def has_run(source: Path) -> bool:
    """Tell whether the stored solution notebook has outputs of a run, be it without cells that were added since."""
    return any(cell.execution_count for cell in stored(source).cells if cell.cell_type == "code")


def build(source: Path) -> list[Path]:
    """Make a lab's two notebooks; return the files that changed.

    An executed solution notebook keeps its outputs as long as no code cell was changed or removed.
    """
    student_file = write_changed(student_path(source), dumps(student(source)))
    written = [student_file] if student_file else []
    target = solution_path(source)
    if not target.exists() or has_drifted(source):
        files.write(target, dumps(with_stored_outputs(source)))
        written.append(target)
    return written


def with_stored_outputs(source: Path) -> NotebookNode:
    """Return the solution notebook with the outputs that are stored; with none when a code cell changed or went.

    Cells that were added have none: the cells before and after them are as they were executed.
    """
    fresh = solution(source)
    if not solution_path(source).exists():
        return fresh
    executed = stored(source)
    before, now = ([cell.id for cell in nb.cells if cell.cell_type == "code"] for nb in (executed, fresh))
    left = iter(now)
    if not all(cell in left for cell in before):
        return fresh
    fresh.metadata |= {name: executed.metadata[name] for name in (KEY, SESSION) if name in executed.metadata}
    return with_outputs_of(fresh, executed)


def key(source: Path) -> str:
    """Return a hash of a lab's code cells and of the modules that check its exercises and run on its ranks."""
    cells = [cell.source for cell in sources.solved(sources.read(source)).cells if cell.cell_type == "code"]
    modules = sorted((paths.ROOT / "labkit" / "exercises").glob(f"lab{source.stem[:2]}*.py"))
    return hashlib.sha256(
        "\0".join([*cells, *(path.read_text(encoding="utf-8") for path in modules)]).encode()
    ).hexdigest()


def is_stale(source: Path) -> bool:
    """Tell whether a lab's code or checks have changed since its solution notebook was executed and stored."""
    return bool(stored(source).metadata.get(KEY) != key(source))
