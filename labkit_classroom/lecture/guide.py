"""The instructor's guide and the helpers' page, built from the labs' notebooks as one offline page."""

from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from nbformat import NotebookNode

from labkit.display import markdown
from labkit.display.results import COLUMNS, find_problem, read, texts, without_empty_columns
from labkit.exercises import catalogue
from labkit.exercises import labs as tables
from labkit.exercises.catalogue import LabInfo, Section
from labkit.exercises.engine.checker import checks_of
from labkit.exercises.engine.on_ranks import Script
from labkit_classroom.lecture import labs, prose
from labkit_classroom.lecture.agenda import Day
from labkit_classroom.lecture.routes import Route

PAGES = Path(__file__).parent  # where the templates are
SHOWN = 2  # mistakes per exercise on the helpers' page: the first that its check names, or that its tests plant


class Exercise(NamedTuple):
    """An exercise with its hints, its mistakes (those that its check names, those that tests plant), and patience.

    A planted mistake is a message and a change to the solution; patience, the minutes until the solution is shown.
    """

    info: catalogue.Exercise
    hints: tuple[str, ...]
    named: tuple[str, ...]
    planted: Sequence[tuple[str, Script]]
    patience: int


class Part(NamedTuple):
    """A section of a lab: heading, minutes, prose, exercises, instructor's notes, and whether it is taught."""

    heading: str
    section: Section
    say: str
    exercises: list[Exercise]
    notes: str
    is_taught: bool


class Lab(NamedTuple):
    """A lab: opening prose, sections, closing table (Markdown), and where that was measured."""

    info: LabInfo
    opening: str
    parts: list[Part]
    table: str
    measured: str


def render(route: Route, days: Sequence[Day], agenda: str, results: Path, template: str = "guide") -> str:
    """Return the guide as a page or, with the template "helpers", only the page for helpers.

    Parameters
    ----------
    route, days, agenda
        The route and its timetable; the agenda is Markdown.
    results : Path
        The folder with this machine's rehearsal results; without one, the stored run's figures are shown.
    template : str
        The page's template.
    """
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=jinja2.FileSystemLoader(PAGES)
    )
    environment.filters |= {"markdown": prose.to_html, "inline": prose.inline, "code": prose.code, "hint": prose.hint}
    taught = {(entry.part.lab, section.name) for day in days for entry in day.entries for _, section in entry.sections}
    lab_pages = [lab(catalogue.find(number), results, taught) for number in route.labs]
    page = environment.get_template(f"{template}.html")
    return page.render(route=route, agenda=agenda, labs=lab_pages, shown=SHOWN)


def lab(info: LabInfo, results: Path, taught: Container[tuple[str, str]] = ()) -> Lab:
    """Return a lab for the guide's template; `taught` contains the taught sections as (lab, section)."""
    checks = checks_of(info.number).checks
    planted = _planted(info.number)
    opening, *sections = labs.sections(info)
    parts = []
    for plan, section in zip(info.sections, sections, strict=True):
        infos = {n: exercise for n, exercise in info.exercises.items() if exercise.section == plan.name}
        exercises = [
            Exercise(exercise, checks[n].hints, checks[n].mistakes, planted.get(n, ()), round(2 * plan.do / len(infos)))
            for n, exercise in infos.items()
        ]
        say, notes = (_joined(filter(kind, section.cells)) for kind in (labs.is_students, labs.is_instructors))
        parts.append(Part(section.heading, plan, say, exercises, notes, (info.number, plan.name) in taught))
    introduction = _joined(filter(labs.is_students, opening.cells)).split("\n", 1)[-1]  # without the title
    return Lab(info, introduction, parts, *closing_table(info, results))


def _planted(number: str) -> dict[int, list[tuple[str, Script]]]:
    """Return the mistakes in scripts and C files that tests plant, by exercise: what is wrong, and the change."""
    scripts = {
        n: [((invariant.__doc__ or "").strip().rstrip("."), script) for invariant, script in exercise.wrong]
        for n, exercise in tables.on_ranks(number).items()
    }
    return scripts | {n: list(exercise.wrong) for n, exercise in tables.in_c(number).items()}


def _joined(cells: Iterable[NotebookNode]) -> str:
    return "\n\n".join(cell.source for cell in cells)


def closing_table(info: LabInfo, results: Path) -> tuple[str, str]:
    """Return a lab's closing table in Markdown, and where it was measured."""
    try:
        measured = read(results / f"results-{info.number}.json")
        if not find_problem(measured) and measured.get("table") and not measured["quick"]:
            table = measured["table"]
            rendered = markdown.table(*without_empty_columns((table["what"], *COLUMNS), texts(table["rows"])))
            return rendered.data, f"on this machine, {measured['when']}"
    except (OSError, ValueError):
        pass  # no rehearsal here
    for cell in labs.read(info.solution).cells:
        for output in cell.outputs if labs.has_closing_table(cell) else ():
            if text := output.get("data", {}).get("text/markdown"):
                return text, "in the kit's stored run, on another machine: ./lab rehearse measures here"
    return "", ""
