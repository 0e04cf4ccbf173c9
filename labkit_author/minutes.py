"""Put the planned minutes, which the sources have after their headings, into the notebooks and the README.

A stored notebook contains the times at which its cells ran, so its waiting times can be compared with the plan.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from nbformat import NotebookNode

from labkit.exercises.catalogue import Section
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import sources
from labkit_author.notebooks import HEADING, OPTIONAL, QUESTIONS, checks, waited, write_changed

MINUTES = re.compile(r"(read|do|wait) (\d+(?:\.\d+)?)")  # in the braces after a heading, with `optional`
HEAD = "{minutes}"  # placeholder for a lab's times in its source
PART = re.compile(r"\{minutes (\w+)–(\w+)\}")  # placeholder for a part's times, from one section to another
MAX_SLOWDOWN = 1.3  # how much longer than planned a lab may wait on the machine that stores it
COUNTS = re.compile(r"^\*\*\d+ labs, .*$", re.M)  # in the README
AGENDA = re.compile(r"^(\| lab \|.*\n\| ---.*\n)(?:\|.*\n)*", re.M)  # in the README
UNNOTICED_MIN = 0.1  # minutes per section that don't count as waiting
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def plan(source: Path) -> list[Section]:
    """Return the sections of a lab, in order.

    Raises
    ------
    LabError
        If a section has no minutes, or they can't be read.
    """
    return [_section(source, heading) for heading in sources.HEADING.finditer(source.read_text(encoding="utf-8"))]


def _section(source: Path, heading: re.Match[str]) -> Section:
    parts, minutes = (heading["plan"] or "").split(", "), {}
    for part in parts:
        if match := MINUTES.fullmatch(part):
            minutes[match[1]] = float(match[2])
        elif part != "optional":
            raise LabError(
                f"{paths.shown(source)}: add minutes such as {{read 5, do 7, wait 0.2, optional}} after the heading "
                f"{heading['heading']!r}; it has {heading['plan']!r}."
            )
    core = "optional" not in parts
    return Section(heading["number"] or QUESTIONS, **minutes, core=core, heading=heading["heading"])


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
        f"its heading plans {section.wait:g}"
        for section in plan(source)
        if minutes[section.name] > max(MAX_SLOWDOWN * section.wait, UNNOTICED_MIN)
    ]


def with_agenda(text: str) -> str:
    """Return the README's text with the counts of labs, exercises and hours, and a row for each lab in its agenda."""
    plans = {source: plan(source) for source in sources.labs()}
    sections = [section for planned in plans.values() for section in planned]
    hours, core = (round(total(part) / 60) for part in (sections, [section for section in sections if section.core]))
    exercises = sum(len(sources.exercises(sources.read(source))) for source in plans)
    counts = f"**{len(plans)} labs, {exercises} exercises, about {hours} hours** ({core} without optional sections),"
    rows = [
        f"| [{sources.title(source).replace(' · ', ' ', 1)}](notebooks/{source.stem}.ipynb) | {total(planned)} |\n"
        for source, planned in plans.items()
    ]
    return AGENDA.sub(lambda head: head[1] + "".join(rows), COUNTS.sub(counts, text))


def write_agenda() -> Path | None:
    """Update the README's counts and agenda; return its path if it changed."""
    readme = paths.ROOT / "README.md"
    return write_changed(readme, with_agenda(readme.read_text(encoding="utf-8")))


def _listed(names: list[str]) -> str:
    """Return section names as a phrase with its verb: "section 7 is", "sections 3, 4 and 6 are"."""
    if len(names) == 1:
        return f"section {names[0]} is"
    return f"sections {', '.join(names[:-1])} and {names[-1]} are"
