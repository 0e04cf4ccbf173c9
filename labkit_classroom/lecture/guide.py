"""The instructor's guide: one page, made from the labs' sources, that needs no other file and no network."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from nbformat import NotebookNode

from labkit.display import markdown
from labkit.display.results import COLUMNS, find_problem, read, texts, without_empty_columns
from labkit.exercises import core, minutes, notebooks, sources
from labkit.exercises.minutes import Section
from labkit_author import mistakes as planted_mistakes
from labkit_classroom.lecture import prose
from labkit_classroom.lecture.agenda import Day
from labkit_classroom.lecture.routes import Route

TEMPLATE = Path(__file__).with_suffix(".html")


class Mistake(NamedTuple):
    """A mistake that students make: what was changed in the solution, if that is told in words, and what they see."""

    before: str
    after: str
    message: str


class Exercise(NamedTuple):
    """An exercise: number, solution, hints, mistakes."""

    number: int
    solution: str
    hints: tuple[str, ...]
    mistakes: tuple[Mistake, ...]


class Part(NamedTuple):
    """A section of a lab as the instructor needs it: its heading, minutes, what to say, exercises, own notes."""

    heading: str
    section: Section
    say: str
    exercises: tuple[Exercise, ...]
    notes: str


class Lab(NamedTuple):
    """A lab: number, title, its beginning, sections, closing table (Markdown) and where that was measured."""

    number: str
    title: str
    opening: str
    parts: tuple[Part, ...]
    table: str
    measured: str


def render(route: Route, days: Sequence[Day], advice: Sequence[str], results: Path) -> str:
    """Return the guide, as a page.

    Parameters
    ----------
    route, days, advice
        What is taught, and when.
    results : Path
        Where a rehearsal on this machine has left its `results-NN.json`; without one, figures are the stored run's.
    """
    numbers = list(dict.fromkeys(entry.part.lab for day in days for entry in day.entries if entry.part.lab))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"markdown": prose.to_html, "inline": prose.inline, "code": prose.code}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    labs = [lab(sources.find(number), results) for number in numbers]
    done = {(entry.part.lab, section.name) for day in days for entry in day.entries for _, section in entry.sections}
    return template.render(route=route, days=days, advice=advice, labs=labs, done=done)


def lab(source: Path, results: Path) -> Lab:
    """Return a lab as the guide shows it."""
    number = source.stem[:2]
    plan = {section.name: section for section in minutes.plan(source)}
    checks = core.checker(number, {}).lab.checks
    planted = mistakes(number)
    notebook = notebooks.solution(source)
    opening, *sections = minutes.by_section(notebook)
    exercises = sources.exercises(sources.read(source))
    parts = []
    for section in sections:
        of_section = tuple(
            Exercise(
                number=exercise,
                solution=notebook.cells[exercises[exercise].cell].source,
                hints=checks[exercise].hints,
                mistakes=tuple(planted.get(exercise, ())),
            )
            for exercise in section.exercises
        )
        parts.append(Part(section.heading, plan[section.name], _said(section.cells), of_section, notes(section.cells)))
    said = _said(opening.cells).split("\n", 1)[-1]  # without the title
    return Lab(number, sources.title(source), said, tuple(parts), *closing_table(source, results))


def mistakes(number: str) -> dict[int, list[Mistake]]:
    """Return the planted mistakes of a lab's exercises, as `./lab build` has written them down."""
    planted = json.loads(planted_mistakes.FILE.read_text()).get(number, {})
    return {int(exercise): [Mistake(**mistake) for mistake in mistakes] for exercise, mistakes in planted.items()}


def _said(cells: Sequence[NotebookNode]) -> str:
    """Return the Markdown that students read."""
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown" and not is_instructors(cell))


def notes(cells: Sequence[NotebookNode]) -> str:
    """Return the Markdown that is for the instructor alone."""
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown" and is_instructors(cell))


def is_instructors(cell: NotebookNode) -> bool:
    """Whether a cell is in the instructor's notebook alone."""
    return notebooks.INSTRUCTOR in cell.metadata.get("tags", [])


def has_closing_table(cell: NotebookNode) -> bool:
    """Whether a cell shows its lab's closing table."""
    return cell.cell_type == "code" and "results.table(" in cell.source


def closing_table(source: Path, results: Path) -> tuple[str, str]:
    """Return a lab's closing table in Markdown, and where it was measured."""
    try:
        measured = read(results / f"results-{source.stem[:2]}.json")
        if not find_problem(measured) and measured.get("table") and not measured["quick"]:
            table = measured["table"]
            shown = markdown.table(*without_empty_columns((table["what"], *COLUMNS), texts(table["rows"])))
            return shown.data, f"on this machine, {measured['when']}"
    except (OSError, ValueError):
        pass  # no rehearsal here
    for cell in notebooks.stored(source).cells:
        if has_closing_table(cell):
            for output in cell.outputs:
                if text := output.get("data", {}).get("text/markdown"):
                    return text, "for the kit's stored run, on another machine: ./lab rehearse measures here"
    return "", ""
