"""The instructor's guide and the helpers' page, made from the labs' sources: they need no other file and no network."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from labkit.exercises.minutes import Section
from nbformat import NotebookNode

from labkit.display import markdown
from labkit.display.results import COLUMNS, find_problem, read, texts, without_empty_columns
from labkit.exercises import core, minutes, notebooks, sources
from labkit_author import mistakes as planted_mistakes
from labkit_classroom.lecture import agenda_view, prose
from labkit_classroom.lecture.agenda import Day
from labkit_classroom.lecture.routes import Route

PAGES = Path(__file__).parent  # where the templates are
SHOWN = 2  # mistakes of an exercise on the helpers' page: the first of those that its tests plant
TITLE = re.compile(r"^#* ?(Exercise (\d+) · .+)$", re.M)


class Mistake(NamedTuple):
    """A mistake that students make: what was changed in the solution, if that is told in words, and what they see."""

    before: str
    after: str
    message: str


class Exercise(NamedTuple):
    """An exercise: number, title, planned minutes, solution, hints, mistakes."""

    number: int
    title: str
    minutes: float
    solution: str
    hints: tuple[str, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def question(self) -> str:
        """What a helper can ask in place of the answer: the first hint, where it asks something."""
        return self.hints[0] if "?" in self.hints[0] else ""

    @property
    def patience(self) -> int:
        """The minutes after which to show the solution: twice those planned."""
        return round(2 * self.minutes)


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
    labs, done = _taught(days, results)
    return _page(
        "guide.html", route=route, days=days, advice=advice, labs=labs, done=done, helping=_helping(labs, done)
    )


def render_helpers(route: Route, days: Sequence[Day], results: Path) -> str:
    """Return the helpers' page: for each exercise of a route what goes wrong, what to ask, when to show the answer."""
    labs, done = _taught(days, results)
    return _page("helpers.html", route=route, helping=_helping(labs, done))


def _page(template: str, **values: object) -> str:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=jinja2.FileSystemLoader(PAGES)
    )
    environment.filters |= {"markdown": prose.to_html, "inline": prose.inline, "code": prose.code, "hint": prose.hint}
    return environment.get_template(template).render(section_name=agenda_view.section_name, shown=SHOWN, **values)


def _taught(days: Sequence[Day], results: Path) -> tuple[list[Lab], set[tuple[str, str]]]:
    """Return the labs of some days, and which of their sections are done, as (lab, section)."""
    done = {(entry.part.lab, section.name) for day in days for entry in day.entries for _, section in entry.sections}
    numbers = dict.fromkeys(entry.part.lab for day in days for entry in day.entries if entry.part.lab)
    return [lab(sources.find(number), results) for number in numbers], done


def _helping(labs: Sequence[Lab], done: Collection[tuple[str, str]]) -> dict[str, list[Exercise]]:
    """Return the exercises that are done, by their lab's title."""
    return {
        lab.title: [
            exercise for part in lab.parts if (lab.number, part.section.name) in done for exercise in part.exercises
        ]
        for lab in labs
    }


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
        said = _said(section.cells)
        titles = {int(found[2]): found[1] for found in TITLE.finditer(said)}
        of_section = tuple(
            Exercise(
                number=exercise,
                title=titles.get(exercise, f"Exercise {exercise}"),
                minutes=plan[section.name].do / len(section.exercises),
                solution=notebook.cells[exercises[exercise].cell].source,
                hints=checks[exercise].hints,
                mistakes=tuple(planted.get(exercise, ())),
            )
            for exercise in section.exercises
        )
        parts.append(Part(section.heading, plan[section.name], said, of_section, notes(section.cells)))
    said = _said(opening.cells).split("\n", 1)[-1]  # without the title
    return Lab(number, sources.title(source), said, tuple(parts), *closing_table(source, results))


def mistakes(number: str) -> dict[int, list[Mistake]]:
    """Return the planted mistakes of a lab's exercises."""
    return {
        exercise: [Mistake(change.before, change.after, change.message) for change in changes]
        for exercise, changes in planted_mistakes.planted(number).items()
    }


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
