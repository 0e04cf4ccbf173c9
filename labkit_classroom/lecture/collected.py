"""How far a class is, from files that students hand in: the labs' `results-NN.json`, and what `lab doctor --json` says.

A student is a folder, a zip that `lab class --zip` made, or the beginning of the file's name: `ada/results-07.json`,
`ada-results.zip`, `ada-results-07.json`.

What `./lab room close` keeps of a board is no substitute: that takes a network and a board, and has counts without
names, of five people and more. This tells of each student, and of a class without either.
"""

import contextlib
import functools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from labkit.display.results import PASSED, WORK, find_problem
from labkit.exercises import sources
from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit_classroom.lecture import handed_in

MAX_DEPTH = 20  # levels of folders in the folder
RESULTS = re.compile(r"(?:(.+?)[-_. ]+)?results-(\d\d)\.json", re.ASCII)


class Collected(NamedTuple):
    """The results and machines of a class, as read from files.

    Attributes
    ----------
    results : dict
        What a lab has left, by (student, lab).
    machines : dict
        The doctor's verdicts by student.
    students : set of str
        All of them, those who handed in nothing too.
    unread : list of str
        The files that are neither.
    """

    results: dict[tuple[str, str], dict[str, Any]]
    machines: dict[str, list[dict[str, Any]]]
    students: set[str]
    unread: list[str]

    @property
    def labs(self) -> list[str]:
        """The numbers of the labs of which there are results."""
        return sorted({lab for _, lab in self.results})

    def passed(self, student: str, lab: str) -> list[str]:
        """Return the exercises of a lab that a student has passed, in their order."""
        verdicts = self.results.get((student, lab), {}).get("exercises", {})
        return sorted(
            (number for number, verdict in verdicts.items() if verdict == PASSED), key=lambda text: text.zfill(3)
        )


class Document(NamedTuple):
    """A JSON file, in a folder or in a zip: whose it is by its place, its name, where it is, how it is read."""

    within: str
    name: str
    place: str
    read: Callable[[], Any]


def collect(folder: Path) -> Collected:
    """Read all that is in a folder.

    Raises
    ------
    LabError
        When there are neither results nor verdicts of the doctor.
    """
    collected = Collected({}, {}, set(), [])
    for file in sorted(_files(folder)):
        for document in _documents(file, folder, collected):
            _add(collected, document)
    if not collected.results and not collected.machines:
        raise LabError(f"{paths.shown(folder)} has no results-NN.json and nothing of ./lab doctor --json.")
    collected.students.update(student for student, _ in collected.results)
    collected.students.update(collected.machines)
    for name in _folders(folder):
        if not any(student == name or student.startswith(f"{name} / ") for student in collected.students):
            collected.students.add(name)
    return collected


def _documents(file: Path, folder: Path, collected: Collected) -> Iterator[Document]:
    """Yield what a file has: itself, or what a zip has in it. One that can't be read is noted."""
    place = file.relative_to(folder)
    parts = [part for part in place.parts[:-1] if part != WORK.name]
    if file.suffix != ".zip":
        yield Document(" / ".join(parts), file.name, str(place), lambda: files.read_json(file))
        return
    within = " / ".join(dict.fromkeys([*parts, handed_in.student(file)]))  # in the folder of their own name, once
    collected.students.add(within)
    try:
        packed = handed_in.documents(file)
    except (OSError, ValueError):
        packed = {}
    if not packed:
        collected.unread.append(str(place))
    for name, content in packed.items():
        yield Document(within, Path(name).name, f"{place}, {name}", functools.partial(_parse, content))


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error


def _add(collected: Collected, document: Document) -> None:
    """Add what a document says; of a lab that was handed in twice, what is passed in one of them stays so."""
    try:
        content = document.read()
    except (OSError, ValueError):
        content = None
    if name := RESULTS.fullmatch(document.name):
        student = " / ".join(filter(None, (document.within, name[1]))) or "?"
        known = {source.stem[:2] for source in sources.labs()}
        if name[2] in known and isinstance(content, dict) and not find_problem(content):
            before = collected.results.get((student, name[2]), {}).get("exercises", {})
            kept = {number: verdict for number, verdict in before.items() if verdict == PASSED}
            collected.results[student, name[2]] = content | {"exercises": content.get("exercises", {}) | kept}
            return
    elif _is_doctors(content):
        collected.machines[document.within or Path(document.name).stem] = content["labs"]
        return
    collected.unread.append(document.place)


def tables(folder: Path) -> Iterator[Table | Text]:
    """Yield the tables of a class, and the files that could not be read."""
    collected = collect(folder)
    if collected.results:
        yield _progress(collected)
    if collected.machines:
        yield _machines(collected)
    for file in collected.unread:
        yield Text(f"Not read: {file}")


def _files(folder: Path, depth: int = MAX_DEPTH, in_work: bool = False) -> Iterator[Path]:
    """Yield the JSON files and zips of a folder and of those in it; links to folders are not followed.

    No folder stops it. What begins with a dot is the kit's or a program's own, and what else is in `work/` a lab's.
    """
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from _files(Path(entry.path), depth - 1, in_work or entry.name == WORK.name)
            elif RESULTS.fullmatch(entry.name) or (not in_work and entry.name.endswith((".json", ".zip"))):
                yield Path(entry.path)


def _folders(folder: Path) -> Iterator[str]:
    """Yield the names of the folders that are students'."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and entry.name != WORK.name:
            yield entry.name


def _progress(collected: Collected) -> Table:
    labs = collected.labs
    table = Table("student", *(f"lab {lab}" for lab in labs), title="Exercises passed", title_justify="left")
    for student in sorted(collected.students):
        table.add_row(Text(student), *(Text(", ".join(collected.passed(student, lab)) or "–") for lab in labs))
    counts = Counter((lab, number) for student, lab in collected.results for number in collected.passed(student, lab))
    totals = []
    for lab in labs:
        numbers = sources.exercises(sources.read(sources.find(lab)))
        totals.append(", ".join(f"{number}: {counts[lab, str(number)]}" for number in numbers))
    table.add_section()
    table.add_row("passed by", *totals)
    return table


def _machines(collected: Collected) -> Table:
    table = Table("lab", "can run it", "cannot, and why", title="Machines", title_justify="left")
    for lab in sorted({verdict["lab"] for verdicts in collected.machines.values() for verdict in verdicts}):
        of_lab = {
            student: verdict
            for student, verdicts in sorted(collected.machines.items())
            for verdict in verdicts
            if verdict["lab"] == lab
        }
        failed = [
            f"{student} ({', '.join(verdict['because'])})"
            for student, verdict in of_lab.items()
            if verdict["status"] == "fail"
        ]
        table.add_row(Text(lab), f"{len(of_lab) - len(failed)} of {len(of_lab)}", Text("; ".join(failed)))
    return table


def _is_doctors(content: Any) -> bool:
    """Whether it is what `lab doctor --json` prints, as far as it is read here."""
    try:
        return all(
            isinstance(one["lab"], str)
            and one["status"] in ("ok", "warn", "fail")
            and all(isinstance(name, str) for name in one["because"])
            for one in content["labs"]
        )
    except (TypeError, KeyError):
        return False
