"""The plan for minutes, `solutions/minutes.toml`, in the notebooks' heads and headings and in the README's agenda.

A stored notebook has the times at which its cells ran, so that what it waited can be compared with the plan.
"""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from nbformat import NotebookNode

from labkit.exercises.catalogue import Section
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import sources
from labkit_author.notebooks import HEADING, OPTIONAL, QUESTIONS, checks, waited, write_changed

FILE = "minutes.toml"  # in solutions/
HEAD = "{minutes}"  # where a lab's times go in its source
PART = re.compile(r"\{minutes (\w+)–(\w+)\}")  # the same of a part of a lab, from one section to another
SLOWER = 1.3  # how many times as long a lab may take on the machine that stores it as on those it was planned on
UNNOTICED = 0.1  # minutes in a section, of cells that nobody would call waiting
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def plan(source: Path) -> list[Section]:
    """Return the sections of a lab, in their order.

    Raises
    ------
    LabError
        When the file and the lab's headings have not the same sections, or the file has an unknown word.
    """
    path = paths.SOLUTIONS / FILE
    known = {field.name for field in fields(Section)} - {"name", "heading"}
    lab = tomllib.loads(path.read_text(encoding="utf-8") if path.exists() else "").get(source.stem[:2], {})
    for name, entry in lab.items():
        if unknown := entry.keys() - known:
            raise LabError(
                f"{paths.shown(path)}: section {name} of lab {source.stem[:2]} has {', '.join(sorted(unknown))}; "
                f"it can have {', '.join(sorted(known))}."
            )
    headings = [
        (found[1] or QUESTIONS, found[0].lstrip("# ")) for found in HEADING.finditer(source.read_text(encoding="utf-8"))
    ]
    names = [name for name, _ in headings]
    if list(lab) != names:
        raise LabError(
            f"{paths.shown(path)} has {', '.join(lab) or 'nothing'} for lab {source.stem[:2]}, whose sections are "
            f"{', '.join(names)}: give each a line, in their order."
        )
    return [Section(name, **lab[name], heading=heading) for name, heading in headings]


def total(sections: Sequence[Section]) -> int:
    """Return the minutes of some sections together, to the next five."""
    return 5 * round(math.fsum(section.minutes for section in sections) / 5)


def head(sections: list[Section], exercises: int) -> str:
    """Return a lab's times in two sentences or three, as its first cell has them."""
    # Not by `sum`, whose last digits are other ones since Python 3.12: half a minute was rounded up or down.
    added = {part: math.fsum(getattr(section, part) for section in sections) for part in ("read", "do", "wait")}
    minutes = {part: round(value) for part, value in added.items()}
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
    exercises = sum(len(checks(cell)) for cell in notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(HEAD, head(sections, exercises), 1)
            cell.source = PART.sub(lambda found: part(sections, *found.groups()), cell.source)
            cell.source = HEADING.sub(lambda heading: heading[0] + OPTIONAL * (heading[1] in optional), cell.source)
    return notebook


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
    text = readme.read_text(encoding="utf-8")
    for source in sources.labs():
        line = rf"^(\| \[{source.stem[:2]} .* \| )\d+( \|)$"
        text = re.sub(line, rf"\g<1>{total(plan(source))}\g<2>", text, flags=re.M)
    return write_changed(readme, text)


def _listed(names: list[str]) -> str:
    """Return sections in words, with their verb: "section 7 is", "sections 3, 4 and 6 are"."""
    if len(names) == 1:
        return f"section {names[0]} is"
    return f"sections {', '.join(names[:-1])} and {names[-1]} are"
