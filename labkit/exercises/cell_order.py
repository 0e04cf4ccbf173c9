"""An IPython extension that adds a hint to a NameError, for when the cell that defines the name has not run.

The kernels of `lab start` load it: after a kernel restart, no name is defined.
"""

from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell

HINT = (
    "Is it defined in a cell above? That cell has not run since the kernel started: use the menu Run ▸ Run All Above "
    "Selected Cell."
)


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the handler for name errors; IPython calls this."""
    shell.set_custom_exc((NameError,), _show_name_error)


def _show_name_error(
    shell: InteractiveShell,
    kind: type[NameError],
    error: NameError,
    traceback: TracebackType,
    tb_offset: int | None = None,
) -> None:
    if kind is NameError:  # not for an unbound local variable
        error.add_note(HINT)
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)
