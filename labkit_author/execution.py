"""Executes notebooks by Papermill: strictly, and with this environment's kernel."""

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
    """A notebook did not run to its end: which cell, why, and where the notebook is kept for reading."""


def execute(notebook: NotebookNode, name: str, cwd: Path, **parameters: Any) -> NotebookNode:
    """Run a notebook from its first cell to its last, strictly, and return it with its outputs.

    Strictly: parameters it does not have are refused, a kernel that leaves early is noticed, the kernel is this
    environment's whatever the notebook names, and a failing notebook is kept for reading.

    Parameters
    ----------
    notebook : NotebookNode
        The notebook, which is left unchanged.
    name : str
        Its name in messages, and that of the kept file.
    cwd : Path
        The folder its cells run in.
    **parameters
        Values for its cell tagged `parameters`, such as `QUICK=True` for a small run of a lab.

    Raises
    ------
    ExecutionError
        A cell failed, or the kernel ended before the last cell.
    LabError
        A parameter that the notebook does not have.
    """
    scratch = paths.STATE / "executed"
    input_file, output_file = scratch / f"{name}.in.ipynb", scratch / f"{name}.ipynb"
    with files.writing(input_file):
        scratch.mkdir(parents=True, exist_ok=True)
        input_file.write_text(dumps(notebook), encoding="utf-8")
    _refuse_unknown(parameters, input_file, name)
    before = dict(os.environ)
    # The environment's own kernel, also where a user-level kernel of the same name points elsewhere.
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
            raise ExecutionError(f"{name}: ended early, cell {index} was never run (kept: {paths.shown(output_file)})")
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
            raise LabError(f"{name} has no parameter {parameter!r}: it has {', '.join(known) or 'none'}.")


def with_outputs_of(notebook: NotebookNode, done: NotebookNode) -> NotebookNode:
    """Return `notebook` with the outputs of `done` and its cells' times, without papermill's own cells and paths."""
    outputs = {cell.id: cell for cell in done.cells if cell.cell_type == "code"}
    executed: NotebookNode = nbformat.from_dict(notebook)
    for cell in executed.cells:
        if cell.cell_type == "code" and (ran := outputs.get(cell.id)):
            cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
            if TIMES in ran.metadata:
                cell.metadata[TIMES] = ran.metadata[TIMES]
    return executed
