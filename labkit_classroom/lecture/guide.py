"""The instructor's guide and the helpers' page, made from the labs' notebooks: one page that needs no network."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from nbformat import NotebookNode

from labkit.display import markdown
from labkit.display.results import COLUMNS, find_problem, read, texts, without_empty_columns
from labkit.exercises import catalogue, core
from labkit.exercises.catalogue import LabInfo, Section
from labkit_author import mistakes as planted_mistakes
from labkit_classroom.lecture import agenda_view, labs, prose
from labkit_classroom.lecture.agenda import Day
from labkit_classroom.lecture.routes import Route

PAGES = Path(__file__).parent  # where the templates are
SHOWN = 2  # mistakes of an exercise on the helpers' page: the first of those that its tests plant


class Exercise(NamedTuple):
    """An exercise: number, title, planned minutes, solution, hints and planted mistakes.

    A mistake has the text of the solution that was changed (`before`, `after`) and a part of what students see
    (`message`).
    """

    number: int
    title: str
    minutes: float
    solution: str
    hints: tuple[str, ...]
    mistakes: Sequence[dict[str, str]]

    @property
    def question(self) -> str:
        """The first hint, if it asks something: a helper can ask it in place of giving the answer."""
        return self.hints[0] if "?" in self.hints[0] else ""

    @property
    def patience(self) -> int:
        """The minutes after which to show the solution: twice those planned."""
        return round(2 * self.minutes)


class Part(NamedTuple):
    """A section of a lab: heading, minutes, what to say, exercises, the instructor's notes, whether it is taught."""

    heading: str
    section: Section
    say: str
    exercises: tuple[Exercise, ...]
    notes: str
    is_taught: bool


class Lab(NamedTuple):
    """A lab: number, title, its beginning, sections, closing table (Markdown) and where that was measured."""

    number: str
    title: str
    opening: str
    parts: tuple[Part, ...]
    table: str
    measured: str

    @property
    def taught_exercises(self) -> list[Exercise]:
        """The exercises of the sections that are taught."""
        return [exercise for part in self.parts if part.is_taught for exercise in part.exercises]


def render(route: Route, days: Sequence[Day], advice: Sequence[str], results: Path, template: str = "guide") -> str:
    """Return the guide, as a page; with the template "helpers", the page for helpers alone.

    Parameters
    ----------
    route, days, advice
        What is taught, and when.
    results : Path
        Where a rehearsal on this machine has left its `results-NN.json`; without one, figures are the stored run's.
    template : str
        The page's template.
    """
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=jinja2.FileSystemLoader(PAGES)
    )
    environment.filters |= {"markdown": prose.to_html, "inline": prose.inline, "code": prose.code, "hint": prose.hint}
    environment.globals |= {"day_title": agenda_view.day_title, "section_name": agenda_view.section_name}
    taught = {(entry.part.lab, section.name) for day in days for entry in day.entries for _, section in entry.sections}
    of_route = [lab(catalogue.find(number), results, taught) for number in route.labs]
    page = environment.get_template(f"{template}.html")
    return page.render(route=route, days=days, advice=advice, labs=of_route, shown=SHOWN)


def lab(info: LabInfo, results: Path, taught: Iterable[tuple[str, str]] = ()) -> Lab:
    """Return a lab as the guide shows it; `taught` has the sections that are taught, as (lab, section)."""
    checks = core.checker(info.number, {}).lab.checks
    planted = mistakes(info.number)
    opening, *sections = labs.sections(info)
    parts = []
    for plan, section in zip(info.sections, sections, strict=True):
        own = [exercise for exercise in info.exercises.values() if exercise.section == plan.name]
        exercises = tuple(
            Exercise(
                number=exercise.number,
                title=f"Exercise {exercise.number} · {exercise.title}",
                minutes=plan.do / len(own),
                solution=exercise.solution,
                hints=checks[exercise.number].hints,
                mistakes=planted.get(exercise.number, ()),
            )
            for exercise in own
        )
        notes = _joined(filter(labs.is_instructors, section.cells))
        is_taught = (info.number, plan.name) in taught
        said = _joined(filter(labs.is_students, section.cells))
        parts.append(Part(section.heading, plan, said, exercises, notes, is_taught))
    said = _joined(filter(labs.is_students, opening.cells)).split("\n", 1)[-1]  # without the title
    return Lab(info.number, info.title, said, tuple(parts), *closing_table(info, results))


def mistakes(number: str) -> dict[int, list[dict[str, str]]]:
    """Return the planted mistakes of a lab's exercises, as `./lab build` has written them down."""
    planted = json.loads(planted_mistakes.FILE.read_text()).get(number, {})
    return {int(exercise): mistakes for exercise, mistakes in planted.items()}


def _joined(cells: Iterable[NotebookNode]) -> str:
    return "\n\n".join(cell.source for cell in cells)


def closing_table(info: LabInfo, results: Path) -> tuple[str, str]:
    """Return a lab's closing table in Markdown, and where it was measured."""
    try:
        measured = read(results / f"results-{info.number}.json")
        if not find_problem(measured) and measured.get("table") and not measured["quick"]:
            table = measured["table"]
            shown = markdown.table(*without_empty_columns((table["what"], *COLUMNS), texts(table["rows"])))
            return shown.data, f"on this machine, {measured['when']}"
    except (OSError, ValueError):
        pass  # no rehearsal here
    for cell in labs.read(info.solution).cells:
        for output in cell.outputs if labs.has_closing_table(cell) else ():
            if text := output.get("data", {}).get("text/markdown"):
                return text, "for the kit's stored run, on another machine: ./lab rehearse measures here"
    return "", ""
