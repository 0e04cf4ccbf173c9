"""Extract functions and verdicts from the cells of a lab, for tests."""

import ast
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from labkit_author import sources


def functions(lab: str, *names: str, **namespace: Any) -> dict[str, Any]:
    """Return top-level functions and variables from a lab's cells, by name.

    Parameters
    ----------
    lab : str
        Its number, such as "03".
    names : str
        The functions, and variables that are assigned once.
    namespace
        The notebook's modules and variables that the functions use.
    """
    definitions = [
        node
        for cell in sources.read(sources.find(lab)).cells
        if cell.cell_type == "code" and not cell.source.startswith("%%")
        for node in ast.parse("".join(line for line in cell.source.splitlines(True) if line[:1] not in "%!")).body
        if _name(node) in names
    ]
    found = [_name(node) for node in definitions]
    assert set(found) == set(names), f"lab {lab} has {found}"
    exec(compile(ast.Module(definitions, type_ignores=[]), f"lab {lab}", "exec"), namespace)
    return {name: namespace[name] for name in names}


def _name(node: ast.stmt) -> str:
    """Return the name that a statement defines; empty if it defines none or several."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    return getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else ""


def verdict_of(cell: NotebookNode) -> str:
    """Return the text of the verdict that a cell shows."""
    return next(out.data["text/plain"] for out in cell.outputs if out.output_type == "display_data")


def write_files(lab: str, folder: Path = Path()) -> None:
    """Write the files of a lab's `%%writefile` cells, solved, into a folder: by default, the current one."""
    for cell in sources.solved(sources.read(sources.find(lab))).cells:
        head, _, text = cell.source.partition("\n")
        if head.startswith("%%writefile"):
            path = folder / head.split()[-1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n")
