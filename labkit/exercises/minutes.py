"""The plan for minutes, `solutions/minutes.toml`, in the notebooks' heads and headings and in the README's agenda.

A stored notebook has the times at which its cells ran, so that what it waited can be compared with the plan.
"""

import re
import tomllib
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode

from labkit.exercises import sources
from labkit.system import files, paths
from labkit.system.errors import LabError

FILE = "minutes.toml"  # in solutions/
HEAD = "{minutes}"  # where a lab's times go in its source
PART = re.compile(r"\{minutes (\w+)–(\w+)\}")  # the same of a part of a lab, from one section to another
OPTIONAL = " · optional"
HEADING = re.compile(r"^(?:# )?## (?:(\d+) · .+|(Questions))$", re.M)
QUESTIONS = "questions"  # the name of the last section, which has no number
TIMES = "execution"  # a cell's metadata, as JupyterLab writes it
SLOWER = 1.3  # how many times as long a lab may take on the machine that stores it as on those it was planned on
UNNOTICED = 0.1  # minutes in a section, of cells that nobody would call waiting
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Section:
    """The minutes of one section of a lab.

    Attributes
    ----------
    name : str
        Its number, or "questions".
    read, do, wait : float
        Minutes to read it and run its cells, to do its exercises, and to wait for its cells on two cores.
    core : bool
        Whether later sections or labs need it.
    heading : str
        Its heading in the lab, in Markdown.
    """

    name: str
    read: float = 0
    do: float = 0
    wait: float = 0
    core: bool = True
    heading: str = ""

    @property
    def minutes(self) -> float:
        """All its minutes."""
        return self.read + self.do + self.wait


class Cells(NamedTuple):
    """The cells of one section of a lab: its name as in the plan, its heading, and they."""

    name: str
    heading: str
    cells: list[NotebookNode]

    @property
    def exercises(self) -> tuple[int, ...]:
        """The numbers of the exercises that its cells check."""
        return tuple(number for cell in self.cells for number, _ in sources.checks(cell))


def by_section(notebook: NotebookNode) -> list[Cells]:
    """Return a notebook's cells section by section, without the headings; the first, without a name, is its beginning.

    A cell of prose that goes on over a heading is divided there.
    """
    parts = [Cells("", "", [])]
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            parts[-1].cells.append(cell)
            continue
        begin = 0
        for heading in HEADING.finditer(cell.source):
            _append_prose(parts[-1].cells, cell, cell.source[begin : heading.start()])
            parts.append(Cells(heading[1] or QUESTIONS, heading[0].lstrip("# "), []))
            begin = heading.end()
        _append_prose(parts[-1].cells, cell, cell.source[begin:])
    return parts


def _append_prose(cells: list[NotebookNode], cell: NotebookNode, text: str) -> None:
    """Append a cell with a part of its prose, if there is any."""
    if text.strip():
        cells.append(NotebookNode(cell, source=text.strip("\n")))


def section_of(notebook: NotebookNode) -> list[str]:
    """Return for each cell the section that it stands in; no name before the first, and under any other heading."""
    names, name = [], ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for heading in re.findall(r"^## .+", cell.source, re.M):
                found = HEADING.match(heading)
                name = (found[1] or QUESTIONS) if found else ""
        names.append(name)
    return names


def plan(source: Path) -> list[Section]:
    """Return the sections of a lab, in their order.

    Raises
    ------
    LabError
        When the file and the lab's headings have not the same sections, or the file has an unknown word.
    """
    path = paths.SOLUTIONS / FILE
    known = {field.name for field in fields(Section)} - {"name", "heading"}
    lab = tomllib.loads(path.read_text() if path.exists() else "").get(source.stem[:2], {})
    for name, entry in lab.items():
        if unknown := entry.keys() - known:
            raise LabError(
                f"{paths.shown(path)}: section {name} of lab {source.stem[:2]} has {', '.join(sorted(unknown))}; "
                f"it can have {', '.join(sorted(known))}."
            )
    headings = [(found[1] or QUESTIONS, found[0].lstrip("# ")) for found in HEADING.finditer(source.read_text())]
    names = [name for name, _ in headings]
    if list(lab) != names:
        raise LabError(
            f"{paths.shown(path)} has {', '.join(lab) or 'nothing'} for lab {source.stem[:2]}, whose sections are "
            f"{', '.join(names)}: give each a line, in their order."
        )
    return [Section(name, **lab[name], heading=heading) for name, heading in headings]


def total(sections: list[Section]) -> int:
    """Return the minutes of some sections together, to the next five."""
    return 5 * round(sum(section.minutes for section in sections) / 5)


def head(sections: list[Section], exercises: int) -> str:
    """Return a lab's times in two sentences or three, as its first cell has them."""
    minutes = {part: round(sum(getattr(section, part) for section in sections)) for part in ("read", "do", "wait")}
    count = "one exercise" if exercises == 1 else f"{dict(enumerate(NUMBERS)).get(exercises, exercises)} exercises"
    waiting = f"{minutes['wait']} of waiting" if minutes["wait"] else "under one of waiting"
    text = (
        f"about {total(sections)} minutes: {minutes['read']} to read and run, {minutes['do']} for {count}, {waiting}."
    )
    core = [section for section in sections if section.core]
    if optional := [section.name for section in sections if not section.core]:
        text += f" Short of time? The core takes {total(core)}: {_listed(optional)} optional."
    return text


def part(sections: list[Section], first: str, last: str) -> str:
    """Return the minutes of a part of a lab in a few words: "about 45 minutes, its core 40".

    Parameters
    ----------
    sections : list of Section
        All of the lab.
    first, last : str
        The names of the part's first and last section.

    Raises
    ------
    LabError
        When the lab has no such section.
    """
    names = [section.name for section in sections]
    if first not in names or last not in names:
        raise LabError(f"a part of a lab goes from section {first} to {last}; it has {', '.join(names)}.")
    own = sections[names.index(first) : names.index(last) + 1]
    core = [section for section in own if section.core]
    return f"about {total(own)} minutes" + f", its core {total(core)}" * (len(core) < len(own))


def fill(notebook: NotebookNode, source: Path) -> NotebookNode:
    """Put a lab's times where `HEAD` stands, and mark the headings of what is optional; return the notebook.

    A part's times are put where `PART` stands.
    """
    if not any(HEAD in cell.source for cell in notebook.cells):
        return notebook
    sections = plan(source)
    optional = {section.name for section in sections if not section.core}
    exercises = sum(len(sources.checks(cell)) for cell in notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(HEAD, head(sections, exercises), 1)
            cell.source = PART.sub(lambda found: part(sections, *found.groups()), cell.source)
            cell.source = HEADING.sub(lambda heading: heading[0] + OPTIONAL * (heading[1] in optional), cell.source)
    return notebook


def waited(notebook: NotebookNode) -> dict[str, float]:
    """Return the minutes that the cells of each section took when the notebook was executed.

    What stands before the first section counts to it.

    Raises
    ------
    LabError
        When a cell has no times.
    """
    took = {part.name: sum(_minutes(cell) for cell in part.cells) for part in by_section(notebook)}
    before = took.pop("")
    took[next(iter(took))] += before
    return took


def _minutes(cell: NotebookNode) -> float:
    """Return the minutes that a cell took; prose and an empty cell took none."""
    if cell.cell_type == "markdown" or not cell.source.strip():
        return 0.0
    times = cell.metadata.get(TIMES, {})
    try:
        begin, end = (datetime.fromisoformat(times[f"iopub.status.{state}"]) for state in ("busy", "idle"))
    except KeyError:
        raise LabError(f"the cell {cell.source.splitlines()[0]!r} has no times: execute the lab.") from None
    return (end - begin).total_seconds() / 60


def overruns(source: Path, notebook: NotebookNode) -> list[str]:
    """Return a line for each section of an executed lab that waited for longer than its plan says, by far."""
    took = waited(notebook)
    return [
        f"section {section.name} of lab {source.stem[:2]} waited {took[section.name]:.2f} minutes, "
        f"and {FILE} says {section.wait:g}"
        for section in plan(source)
        if took[section.name] > max(SLOWER * section.wait, UNNOTICED)
    ]


def write_agenda() -> Path | None:
    """Put each lab's minutes into its line of the README's agenda; return the README when that changed it."""
    readme = paths.ROOT / "README.md"
    text = before = readme.read_text()
    for source in sources.labs():
        line = rf"^(\| \[{source.stem[:2]} .* \| )\d+( \|)$"
        text = re.sub(line, rf"\g<1>{total(plan(source))}\g<2>", text, flags=re.M)
    if text == before:
        return None
    files.write(readme, text)
    return readme


def _listed(names: list[str]) -> str:
    """Return sections in words, with their verb: "section 7 is", "sections 3, 4 and 6 are"."""
    if len(names) == 1:
        return f"section {names[0]} is"
    return f"sections {', '.join(names[:-1])} and {names[-1]} are"
