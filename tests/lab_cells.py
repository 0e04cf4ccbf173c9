"""What tests take from the cells of a lab: functions, to call with results of their own, and verdicts."""

import ast
from typing import Any

from nbformat import NotebookNode

from labkit_author import sources


def functions(lab: str, *names: str, **given: Any) -> dict[str, Any]:
    """Return functions that stand at the top of a lab's cells, by their names.

    Parameters
    ----------
    lab : str
        Its number, such as "03".
    names : str
        The functions.
    given
        What the functions use of the notebook: modules and variables.
    """
    found = [
        node
        for cell in sources.read(sources.find(lab)).cells
        if cell.cell_type == "code" and not cell.source.startswith("%%")
        for node in ast.parse("".join(line for line in cell.source.splitlines(True) if line[:1] not in "%!")).body
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    assert {node.name for node in found} == set(names), f"lab {lab} has {[node.name for node in found]}"
    exec(compile(ast.Module(found, type_ignores=[]), f"lab {lab}", "exec"), given)
    return {name: given[name] for name in names}


def verdict_of(cell: NotebookNode) -> str:
    """Return the words of the verdict that a cell shows."""
    return next(out.data["text/plain"] for out in cell.outputs if out.output_type == "display_data")
