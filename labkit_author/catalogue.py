"""Write `solutions/labs.json`, the catalogue that `labkit.exercises.catalogue` reads, from the labs' sources."""

import ast
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from labkit.exercises.catalogue import FILE, Exercise
from labkit.system import paths
from labkit_author import minutes, questions, sources
from labkit_author.notebooks import by_section, parse, write_changed

TITLE = re.compile(r"^### Exercise (\d+) · (.+)$", re.M)


def text() -> str:
    """Return the file's text."""
    entries = {source.stem: entry(source) for source in sources.labs()}
    return json.dumps(entries, indent=1, ensure_ascii=False) + "\n"


def write() -> Path | None:
    """Write the file; return its path if it changed."""
    return write_changed(paths.SOLUTIONS / FILE, text())


def entry(source: Path) -> dict[str, Any]:
    """Return one lab's entry: see `labkit.exercises.catalogue.LabInfo`."""
    notebook = sources.read(source)
    return {
        "title": sources.title(source),
        **sources.about(source),
        "sections": [dataclasses.asdict(section) for section in minutes.plan(source)],
        "exercises": [dataclasses.asdict(exercise) for exercise in exercises(notebook).values()],
        "questions": questions.read(notebook),
    }


def exercises(notebook: NotebookNode) -> dict[int, Exercise]:
    """Return the exercises of a lab's source, by number."""
    blank, solved = sources.blank(notebook).cells, sources.solved(notebook).cells
    section_of = {number: part.name for part in by_section(notebook) for number in part.exercises}
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    titles = {int(number): title for number, title in TITLE.findall(prose)}
    return {
        number: Exercise(
            number,
            exercise.name,
            cell=notebook.cells[exercise.cell].id,
            stub=blank[exercise.cell].source,
            solution=solved[exercise.cell].source,
            section=section_of[number],
            title=titles.get(number, ""),
            imports=_imports(notebook, solved[exercise.cell].source),
        )
        for number, exercise in sources.exercises(notebook).items()
    }


def _imports(notebook: NotebookNode, solution: str) -> str:
    """Return the imports of a lab's cells that a solution, a function, uses."""
    if solution.startswith("%%"):
        return ""
    used = {node.id for node in ast.walk(ast.parse(solution)) if isinstance(node, ast.Name)}
    lines = {}
    for cell in notebook.cells:
        if cell.cell_type == "code" and not cell.source.startswith("%%"):
            for node in parse(cell).body:
                for name in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                    if (name.asname or name.name) in used:
                        lines[name.asname or name.name] = ast.unparse(type(node)(**vars(node) | {"names": [name]}))
    return "\n".join(lines.values())
