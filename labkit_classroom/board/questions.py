"""The questions to which students guess an answer, as the kit's own labs ask them.

What the board shows of a guess is its question, its unit and its choices, and those stand in the labs' code cells,
`results.guess(2, "what limits it", ..., choices=("arithmetic", "memory"))`: nothing that a student typed is shown.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.exercises import sources

UNKNOWN = "…"  # in place of what is known only where the lab runs


class Question(NamedTuple):
    """A question: lab, its number there, its text, and the unit of a number, or the choices."""

    lab: str
    number: int
    text: str
    unit: str = ""
    choices: tuple[str, ...] = ()


def read(source: Path) -> tuple[Question, ...]:
    """Return a lab's questions in their order; one whose choices can't be read is left out."""
    known: dict[str, ast.expr] = {}
    found = []
    for cell in sources.read(source).cells:
        if cell.cell_type != "code" or cell.source.startswith("%%writefile"):
            continue
        tree = sources.parse(cell)
        known |= _assigned(tree)
        if "results.guess(" in cell.source:
            found += [_question(source.stem[:2], *call, known) for call in _calls(tree)]
    return tuple(question for question in found if question)


def fitting(guesses: Sequence[dict[str, Any]], questions: Mapping[tuple[str, int], Question]) -> list[dict[str, Any]]:
    """Return the guesses of a state that answer a question, each once, without what is no answer to it.

    A kit of another version may have asked other questions.
    """
    kept = {}
    for guess in guesses:
        place = guess["lab"], guess["number"]
        if question := questions.get(place):
            answers = {key: guess[key] if _answers(guess[key], question) else None for key in ("guess", "here")}
            if any(answer is not None for answer in answers.values()):
                kept[place] = guess | answers
    return list(kept.values())


def _answers(value: Any, question: Question) -> bool:
    return value in question.choices if question.choices else isinstance(value, int | float)


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
    lab: str, number: int, text: ast.expr, more: Mapping[str | None, ast.expr], known: Mapping[str, ast.expr]
) -> Question | None:
    unit = _text(more["unit"]) if "unit" in more else ""
    choices = _choices(more["choices"], known) if "choices" in more else ()
    return None if choices is None else Question(lab, number, _text(text), unit, choices)


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
