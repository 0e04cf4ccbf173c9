"""Put the planned minutes, `solutions/minutes.toml`, into the notebooks and the README's agenda.

A stored notebook contains the times at which its cells ran, so its waiting times can be compared with the plan.
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
HEAD = "{minutes}"  # placeholder for a lab's times in its source
PART = re.compile(r"\{minutes (\w+)–(\w+)\}")  # placeholder for a part's times, from one section to another
MAX_SLOWDOWN = 1.3  # how much longer than planned a lab may wait on the machine that stores it
UNNOTICED_MIN = 0.1  # minutes per section that don't count as waiting
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def plan(source: Path) -> list[Section]:
    """Return the sections of a lab, in order.

    Raises
    ------
    LabError
        If the file and the lab's headings have different sections, or the file has an unknown key.
    """
    path = paths.SOLUTIONS / FILE
    known = {field.name for field in fields(Section)} - {"name", "heading"}
    lab = tomllib.loads(path.read_text(encoding="utf-8") if path.exists() else "").get(source.stem[:2], {})
    for name, entry in lab.items():
        if unknown := entry.keys() - known:
            raise LabError(
                f"{paths.shown(path)}: section {name} of lab {source.stem[:2]} has unknown keys: "
                f"{', '.join(sorted(unknown))}; known keys: {', '.join(sorted(known))}."
            )
    headings = [
        (match[1] or QUESTIONS, match[0].lstrip("# ")) for match in HEADING.finditer(source.read_text(encoding="utf-8"))
    ]
    names = [name for name, _ in headings]
    if list(lab) != names:
        raise LabError(
            f"{paths.shown(path)} has {', '.join(lab) or 'nothing'} for lab {source.stem[:2]}, whose sections are "
            f"{', '.join(names)}: add one line for each, in order."
        )
    return [Section(name, **lab[name], heading=heading) for name, heading in headings]


def total(sections: Sequence[Section]) -> int:
    """Return the total minutes of sections, rounded to a multiple of five."""
    return 5 * round(math.fsum(section.minutes for section in sections) / 5)


def head(sections: list[Section], exercises: int) -> str:
    """Return the text about a lab's times for its first cell."""
    # Not `sum`: its last digits changed in Python 3.12, so half minutes were rounded differently.
    added = {part: math.fsum(getattr(section, part) for section in sections) for part in ("read", "do", "wait")}
    minutes = {part: round(value) for part, value in added.items()}
    count = "one exercise" if exercises == 1 else f"{dict(enumerate(NUMBERS)).get(exercises, exercises)} exercises"
    waiting = f"{minutes['wait']} of waiting" if minutes["wait"] else "less than a minute of waiting"
    text = (
        f"about {total(sections)} minutes: {minutes['read']} to read and run, {minutes['do']} for {count}, {waiting}."
    )
    core = [section for section in sections if section.core]
    if optional := [section.name for section in sections if not section.core]:
        text += f" Short of time? The core takes {total(core)}: {_listed(optional)} optional."
    return text


def part(sections: list[Section], first: str, last: str) -> str:
    """Return the minutes of a part of a lab as text: "about 45 minutes, its core 40".

    Parameters
    ----------
    sections : list of Section
        All sections of the lab.
    first, last : str
        The names of the part's first and last section.

    Raises
    ------
    LabError
        If the lab has no such section.
    """
    names = [section.name for section in sections]
    if first not in names or last not in names:
        raise LabError(f"a part of the lab goes from section {first} to {last}, but it has {', '.join(names)}.")
    chosen = sections[names.index(first) : names.index(last) + 1]
    core = [section for section in chosen if section.core]
    return f"about {total(chosen)} minutes" + f", its core {total(core)}" * (len(core) < len(chosen))


def fill(notebook: NotebookNode, source: Path) -> NotebookNode:
    """Replace `HEAD` and `PART` with a lab's times, and mark the headings of optional sections; return the notebook."""
    if not any(HEAD in cell.source for cell in notebook.cells):
        return notebook
    sections = plan(source)
    optional = {section.name for section in sections if not section.core}
    exercises = sum(len(checks(cell)) for cell in notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(HEAD, head(sections, exercises), 1)
            cell.source = PART.sub(lambda match: part(sections, *match.groups()), cell.source)
            cell.source = HEADING.sub(lambda heading: heading[0] + OPTIONAL * (heading[1] in optional), cell.source)
    return notebook


def overruns(source: Path, notebook: NotebookNode) -> list[str]:
    """Return a line for each section of an executed lab that waited much longer than planned."""
    minutes = waited(notebook)
    return [
        f"section {section.name} of lab {source.stem[:2]} waited {minutes[section.name]:.2f} minutes; "
        f"{FILE} plans {section.wait:g}"
        for section in plan(source)
        if minutes[section.name] > max(MAX_SLOWDOWN * section.wait, UNNOTICED_MIN)
    ]


def write_agenda() -> Path | None:
    """Update each lab's minutes in the README's agenda; return the README's path if it changed."""
    readme = paths.ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    for source in sources.labs():
        line = rf"^(\| \[{source.stem[:2]} .* \| )\d+( \|)$"
        text = re.sub(line, rf"\g<1>{total(plan(source))}\g<2>", text, flags=re.M)
    return write_changed(readme, text)


def _listed(names: list[str]) -> str:
    """Return section names as a phrase with its verb: "section 7 is", "sections 3, 4 and 6 are"."""
    if len(names) == 1:
        return f"section {names[0]} is"
    return f"sections {', '.join(names[:-1])} and {names[-1]} are"
