"""Read the questions for students' guesses from the calls `results.guess(…)` in a lab's cells."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from nbformat import NotebookNode

from labkit_author.notebooks import parse

UNKNOWN = "…"  # replaces values that are known only when the lab runs


def read(notebook: NotebookNode) -> list[dict[str, Any]]:
    """Return a lab's questions in order, in the form of `solutions/labs.json`.

    Questions whose choices can't be read are left out.
    """
    known: dict[str, ast.expr] = {}
    questions = []
    for cell in notebook.cells:
        if cell.cell_type != "code" or cell.source.startswith("%%writefile"):
            continue
        tree = parse(cell)
        known |= _assigned(tree)
        if "results.guess(" in cell.source:
            questions += [_question(*call, known) for call in _calls(tree)]
    return [question for question in questions if question]


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the assigned expressions, by name."""
    return {node.targets[0].id: node.value for node in tree.body if _is_assignment(node)}  # type: ignore[attr-defined]


def _is_assignment(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)


def _calls(tree: ast.Module) -> Iterator[tuple[int, ast.expr, dict[str | None, ast.expr]]]:
    """Yield number, question and keyword arguments of each `results.guess(1, "question", ..., unit="×")`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr="guess"), [ast.Constant(int(number)), text, *_], keywords):
                yield number, text, {keyword.arg: keyword.value for keyword in keywords}


def _question(
    number: int, text: ast.expr, more: Mapping[str | None, ast.expr], known: Mapping[str, ast.expr]
) -> dict[str, Any] | None:
    unit = _text(more["unit"]) if "unit" in more else ""
    choices = _choices(more["choices"], known) if "choices" in more else ()
    pairs = {"pairs": True} if "pairs" in more else {}
    if choices is None:
        return None
    return {"number": number, "text": _text(text), "unit": unit, "choices": list(choices)} | pairs


def _text(node: ast.expr) -> str:
    """Return a string's text; for an f-string, its constant parts."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in parts)


def _choices(node: ast.expr, known: Mapping[str, ast.expr]) -> tuple[str, ...] | None:
    """Return choices given as a literal, a name, or a dict's keys; None for any others."""
    match node:
        case ast.Name(name) if name in known:
            return _choices(known[name], known)
        case ast.Call(ast.Name("tuple"), [inner]):
            return _choices(inner, known)
        case ast.Tuple(parts) | ast.List(parts) | ast.Dict(parts) | ast.Constant(str(parts)):
            return tuple(part if isinstance(part, str) else _text(part) for part in parts if part)
    return None
