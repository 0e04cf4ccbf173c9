"""The labs as the board shows them, read from the students' notebooks: titles, sections, exercises, questions.

Questions, units and choices come from calls in the notebooks, `results.guess(2, "a step as a graph", ..., unit="×")`,
so that the board shows no text that a student typed.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import nbformat
from IPython.core.inputtransformer2 import TransformerManager

from labkit.system import paths
from labkit_classroom.board.timetable import Plan

UNKNOWN = "…"  # in place of what is known only where the lab runs
QUESTIONS = "questions"  # the plan's name for the section without a number
HEADING = re.compile(r"^## (?:(\d+) · .+|Questions.*)$|^### Exercise (\d+) · (.+)$", re.M)


class Question(NamedTuple):
    """A question that students guess the answer to: a number with a unit, or one of several choices."""

    lab: str
    number: int
    text: str
    unit: str = ""
    choices: tuple[str, ...] = ()

    def accepts(self, value: object) -> bool:
        """Whether a value is an answer; a kit of another version may have had another question."""
        return value in self.choices if self.choices else isinstance(value, int | float)


class Lab(NamedTuple):
    """A lab."""

    number: str
    title: str  # such as "02 · oneDNN under an MNIST CNN"
    exercises: tuple[str, ...]  # their titles
    sections: Mapping[str, tuple[int, ...]] = {}  # exercises by the section's name in the plan for minutes
    questions: tuple[Question, ...] = ()


def read_all() -> tuple[Lab, ...]:
    """Return all labs."""
    return tuple(read(path) for path in sorted(paths.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")))


def read(path: Path) -> Lab:
    """Return the lab in a notebook."""
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    title = next((line for line in prose.splitlines() if line.startswith("# ")), path.stem)
    exercises: list[str] = []
    sections: dict[str, tuple[int, ...]] = {}
    section = ""
    for heading in HEADING.finditer(prose):
        if heading[2]:
            exercises.append(heading[3].replace("`", ""))
            sections[section] = (*sections.get(section, ()), int(heading[2]))
        else:
            section = heading[1] or QUESTIONS
    lab = path.stem[:2]
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    return Lab(lab, title.removeprefix("# "), tuple(exercises), sections, tuple(questions(lab, code)))


def questions(lab: str, cells: Sequence[str]) -> Iterator[Question]:
    """Yield the questions in a lab's code cells; one whose choices cannot be read is left out."""
    known: dict[str, ast.expr] = {}
    for cell in cells:
        if cell.startswith("%%"):
            continue
        tree = ast.parse(TransformerManager().transform_cell(cell))
        for node in ast.walk(tree):
            match node:
                case ast.Assign([ast.Name(name)], value):
                    known[name] = value
                case ast.Call(ast.Attribute(attr="guess"), [ast.Constant(int(number)), text, *_], keywords):
                    more = {keyword.arg: keyword.value for keyword in keywords}
                    choices = _choices(more["choices"], known) if "choices" in more else ()
                    unit = _text(more["unit"]) if "unit" in more else ""
                    if choices is not None:
                        yield Question(lab, number, _text(text), unit, choices)


def questions_in_order(labs: Sequence[Lab], plan: Plan) -> tuple[Question, ...]:
    """Return all questions in the order of a timetable, after those of labs that are not in it."""
    planned = list(dict.fromkeys(part.lab for part in plan if part.lab))
    ordered = sorted(labs, key=lambda lab: planned.index(lab.number) if lab.number in planned else -1)
    return tuple(question for lab in ordered for question in lab.questions)


def _text(node: ast.expr) -> str:
    """Return a text; of an f-string, its constant parts."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else UNKNOWN for part in parts)


def _choices(node: ast.expr, known: Mapping[str, ast.expr]) -> tuple[str, ...] | None:
    """Return choices that are written out, have a name, or are a table's keys; None for any others."""
    match node:
        case ast.Name(name) if name in known:
            return _choices(known[name], known)
        case ast.Call(ast.Name("tuple"), [inner]):
            return _choices(inner, known)
        case ast.Tuple(parts) | ast.List(parts) | ast.Dict(parts):
            return tuple(_text(part) for part in parts if part)
    return None
