"""The questions to which students guess an answer, read from the calls `results.guess(…)` in a lab's cells."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from nbformat import NotebookNode

from labkit_author.notebooks import parse

UNKNOWN = "…"  # in place of what is known only where the lab runs


def read(notebook: NotebookNode) -> list[dict[str, Any]]:
    """Return a lab's questions in their order, as `solutions/labs.json` has them.

    One whose choices can't be read is left out.
    """
    known: dict[str, ast.expr] = {}
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "code" or cell.source.startswith("%%writefile"):
            continue
        tree = parse(cell)
        known |= _assigned(tree)
        if "results.guess(" in cell.source:
            found += [_question(*call, known) for call in _calls(tree)]
    return [question for question in found if question]


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Return what is assigned to each name, by names."""
    return {node.targets[0].id: node.value for node in tree.body if _is_assignment(node)}  # type: ignore[attr-defined]


def _is_assignment(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)


def _calls(tree: ast.Module) -> Iterator[tuple[int, ast.expr, dict[str | None, ast.expr]]]:
    """Yield number, question and further arguments of each `results.guess(1, "question", ..., unit="×")`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr="guess"), [ast.Constant(int(number)), text, *_], keywords):
                yield number, text, {keyword.arg: keyword.value for keyword in keywords}


def _question(
    number: int, text: ast.expr, more: Mapping[str | None, ast.expr], known: Mapping[str, ast.expr]
) -> dict[str, Any] | None:
    unit = _text(more["unit"]) if "unit" in more else ""
    choices = _choices(more["choices"], known) if "choices" in more else ()
    return None if choices is None else {"number": number, "text": _text(text), "unit": unit, "choices": list(choices)}


def _text(node: ast.expr) -> str:
    """Return a text; of an f-string, what stands in it."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in parts)


def _choices(node: ast.expr, known: Mapping[str, ast.expr]) -> tuple[str, ...] | None:
    """Return choices that are written as such, have a name, or are a table's keys; None for any others."""
    match node:
        case ast.Name(name) if name in known:
            return _choices(known[name], known)
        case ast.Call(ast.Name("tuple"), [inner]):
            return _choices(inner, known)
        case ast.Tuple(parts) | ast.List(parts) | ast.Dict(parts):
            return tuple(_text(part) for part in parts if part)
    return None
