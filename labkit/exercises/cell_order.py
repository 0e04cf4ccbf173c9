"""An IPython extension: tells a name that is undefined only because its cell has not run from one that is unknown.

The kernels of `lab start` load it. A kernel that was restarted has forgotten all names; JupyterLab tells it which
notebook it runs.
"""

import math
import os
import symtable
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from labkit.system import files


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Have `shell` say of such a name which cells to run. IPython calls this."""
    shell.set_custom_exc((NameError,), _show_name_error)


def _show_name_error(
    shell: InteractiveShell,
    kind: type[NameError],
    error: NameError,
    traceback: TracebackType,
    tb_offset: int | None = None,
) -> None:
    """Show `error`: in two lines when the notebook defines the name, with its traceback otherwise."""
    if (
        kind is NameError
        and _globals_where_raised(traceback) is shell.user_global_ns
        and error.name in _names_defined(shell)
    ):
        message = (
            f"{error.name} is not defined: the cell that defines it has not run since the kernel started.\n"
            "Run the notebook's first cells: menu Run ▸ Run All Above Selected Cell."
        )
        error.__dict__["_render_traceback_"] = lambda: [message]  # IPython shows this instead
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


def _globals_where_raised(traceback: TracebackType) -> dict[str, Any]:
    """Return the globals of the function that raised."""
    while traceback.tb_next:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals


def _names_defined(shell: InteractiveShell) -> set[str]:
    """Return the names that the notebook's cells define, but for the one that runs."""
    running = shell.history_manager.input_hist_raw[-1] if shell.history_manager else ""
    return {name for cell in _code_cells() if cell != running for name in _names_assigned(shell.transform_cell(cell))}


def _code_cells() -> list[str]:
    """Return the code cells of the notebook as it was last saved; none where it can't be read."""
    try:
        cells = files.read_json(Path(os.environ["JPY_SESSION_NAME"]), math.inf)["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _names_assigned(code: str) -> Iterator[str]:
    try:
        table = symtable.symtable(code, "cell", "exec")
    except SyntaxError:
        return
    yield from (name.get_name() for name in table.get_symbols() if name.is_assigned() or name.is_imported())
