"""Execute notebooks strictly, with Papermill and this environment's kernel."""

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

from labkit.system import files, kernels, paths
from labkit.system.errors import LabError
from labkit_author.notebooks import TIMES, dumps

CELL_TIMEOUT_S = 900


class ExecutionError(LabError):
    """A notebook did not run to its end. The message has the cell, the reason, and the path of the failed notebook."""


def execute(notebook: NotebookNode, name: str, cwd: Path, **parameters: Any) -> NotebookNode:
    """Run a notebook from its first cell to its last, strictly, and return it with its outputs.

    Strictly: unknown parameters are refused, a kernel that exits early is an error, the kernel is always this
    environment's, and a failed notebook is kept for reading.

    Parameters
    ----------
    notebook : NotebookNode
        The notebook, which is not modified.
    name : str
        Its name in messages and file names.
    cwd : Path
        The working directory of its cells.
    **parameters
        Values for its cell tagged `parameters`, such as `QUICK=True` for a small run of a lab.

    Raises
    ------
    ExecutionError
        If a cell fails, or the kernel exits before the last cell.
    LabError
        If the notebook lacks a parameter.
    """
    scratch = paths.STATE / "executed"
    input_file, output_file = scratch / f"{name}.in.ipynb", scratch / f"{name}.ipynb"
    with files.writing(input_file):
        scratch.mkdir(parents=True, exist_ok=True)
        input_file.write_text(dumps(notebook), encoding="utf-8")
    _refuse_unknown(parameters, input_file, name)
    before = dict(os.environ)
    # This environment's kernel, even if a user-level kernel of the same name points elsewhere.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    try:
        _require_own_kernel()
        with kernels.private_folder() as folder:
            papermill.execute_notebook(
                input_file,
                output_file,
                parameters=parameters,
                kernel_name="python3",
                cwd=cwd,
                progress_bar=sys.stderr.isatty(),
                execution_timeout=CELL_TIMEOUT_S,
                config=Config(KernelManager=kernels.options(folder)),
            )
    except PapermillExecutionError as error:
        raise ExecutionError(
            f"{name}: cell {error.cell_index} failed: {error.ename}: {error.evalue} (kept: {paths.shown(output_file)})"
        ) from error
    finally:
        os.environ.clear()
        os.environ.update(before)
    done = nbformat.read(output_file, as_version=4)
    for index, cell in enumerate(done.cells):
        if cell.cell_type == "code" and cell.source.strip() and cell.execution_count is None:
            raise ExecutionError(f"{name}: ended early, cell {index} never ran (kept: {paths.shown(output_file)})")
    output_file.unlink()
    input_file.unlink()
    return with_outputs_of(notebook, done)


def _require_own_kernel() -> None:
    argv = KernelSpecManager().get_kernel_spec("python3").argv
    if argv[0] not in ("python", "python3", sys.executable):
        raise LabError(f"the kernel 'python3' starts {argv[0]}, not this environment's Python: run ./lab doctor.")


def _refuse_unknown(parameters: dict[str, Any], notebook: Path, name: str) -> None:
    known = papermill.inspect_notebook(notebook)
    for parameter in parameters:
        if parameter not in known:
            raise LabError(f"{name} has no parameter {parameter!r}, only {', '.join(known) or 'none'}.")


def with_outputs_of(notebook: NotebookNode, done: NotebookNode) -> NotebookNode:
    """Return `notebook` with the outputs and cell times of `done`, without Papermill's cells and paths."""
    outputs = {cell.id: cell for cell in done.cells if cell.cell_type == "code"}
    executed: NotebookNode = nbformat.from_dict(notebook)
    for cell in executed.cells:
        if cell.cell_type == "code" and (ran := outputs.get(cell.id)):
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
            if TIMES in ran.metadata:
                cell.metadata[TIMES] = ran.metadata[TIMES]
    return executed
