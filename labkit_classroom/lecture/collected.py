"""A class's progress, from the files that students hand in: the labs' `results-NN.json` and `lab doctor --json` output.

A student is a folder, a zip from `lab class --zip`, or the first part of a file's name: `ada/results-07.json`,
`ada-results.zip`, `ada-results-07.json`.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from labkit.display.results import PASSED, WORK, find_problem
from labkit.exercises import catalogue
from labkit.system import files, paths
from labkit.system.errors import LabError
from labkit_classroom.lecture import handed_in

RESULTS = re.compile(r"(?:.+[-_. ])?results-(\d\d)\.json", re.ASCII)
OWNER = re.compile(r"(?:(.+?)[-_. ]+)?results\b.*")  # a browser adds " (1)" to a second zip's name
MAX_DEPTH = 20  # of folders: deeper paths may be too long for the system, and for os.walk
MAX_LABS, MAX_LETTERS = 100, 100  # of a doctor's report: labs, and checks per lab; letters per name


class Collected(NamedTuple):
    """The results and machines of a class, as read from files."""

    results: dict[tuple[str, str], dict[str, Any]]  # of labs, by student and lab
    machines: dict[str, list[dict[str, Any]]]  # the doctor's verdicts by student
    students: set[str]  # including those without results
    unread: list[str]  # files that could not be read

    @property
    def labs(self) -> list[str]:
        """Numbers of the labs with results."""
        return sorted({lab for _, lab in self.results})

    def passed(self, student: str, lab: str) -> list[int]:
        """Return the exercises of a lab that a student has passed, in order."""
        verdicts = self.results.get((student, lab), {}).get("exercises", {})
        return [number for number in catalogue.find(lab).exercises if verdicts.get(str(number)) == PASSED]


def collect(folder: Path) -> Collected:
    """Read all results and verdicts in a folder.

    Raises
    ------
    LabError
        If there are none.
    """
    collected = Collected({}, {}, set(), [])
    for file in _files(folder):
        _read(file, folder, collected)
    if not collected.results and not collected.machines:
        raise LabError(f"{paths.shown(folder)} has no results-NN.json and no output of ./lab doctor --json.")
    for entry in os.scandir(folder):
        empty = not any(student.split(" / ")[0] == entry.name for student in collected.students)
        if empty and entry.is_dir(follow_symlinks=False) and not _is_hidden(entry.name) and entry.name != WORK.name:
            collected.students.add(entry.name)
    return collected


def _files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files and zips below a folder, except hidden ones and labs' other files in `work/`."""
    for place, folders, names in os.walk(folder):
        parents = Path(place).relative_to(folder).parts
        folders[:] = sorted(name for name in folders if len(parents) < MAX_DEPTH and not _is_hidden(name))
        in_work = WORK.name in parents
        for name in sorted(name for name in names if not _is_hidden(name)):
            if RESULTS.fullmatch(name) or (name.endswith((".json", ".zip")) and not in_work):
                yield Path(place, name)


def _is_hidden(name: str) -> bool:
    """Return whether a file or folder is hidden, or one that macOS adds to archives."""
    return name.startswith(".") or name == "__MACOSX"


def _read(file: Path, folder: Path, collected: Collected) -> None:
    """Add the results and verdicts in a file, or note that it can't be read."""
    place = file.relative_to(folder)
    folders = [part for part in place.parts[:-1] if part != WORK.name]
    owner = OWNER.fullmatch(file.stem)
    name = owner[1] if owner else "" if folders and file.suffix == ".json" else file.stem
    student = " / ".join(dict.fromkeys(filter(None, [*folders, name]))) or "?"
    try:
        is_zip = file.suffix == ".zip"
        if is_zip:
            collected.students.add(student)
        contents = handed_in.documents(file) if is_zip else {file.name: files.read(file)}
    except (OSError, ValueError):
        collected.unread.append(str(place))
        return
    for inside, content in contents.items():
        if not _add(collected, student, Path(inside).name, content):
            collected.unread.append(f"{place}, {inside}" if is_zip else str(place))


def _add(collected: Collected, student: str, name: str, text: bytes) -> bool:
    """Add the content of a JSON file; return whether it is from a lab or the doctor."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if lab := RESULTS.fullmatch(name):
        known = {info.number for info in catalogue.labs()}
        if lab[1] not in known or not isinstance(content, dict) or find_problem(content):
            return False
        before = collected.results.get((student, lab[1]), {}).get("exercises", {})
        passed = {number: verdict for number, verdict in before.items() if verdict == PASSED}  # passed stays passed
        collected.results[student, lab[1]] = content | {"exercises": content.get("exercises", {}) | passed}
    elif _is_doctors(content):
        collected.machines[student] = content["labs"]
    else:
        return False
    collected.students.add(student)
    return True


def _is_doctors(content: Any) -> bool:
    """Whether it is the output of `lab doctor --json`, as far as it is used here."""
    try:
        labs = content["labs"]
        return len(labs) <= MAX_LABS and all(
            lab["status"] in ("ok", "warn", "fail")
            and len(lab["because"]) <= MAX_LABS
            and all(isinstance(name, str) and len(name) <= MAX_LETTERS for name in (lab["lab"], *lab["because"]))
            for lab in labs
        )
    except (TypeError, KeyError):
        return False


def tables(collected: Collected) -> Iterator[Table | Text]:
    """Yield a class's tables, and lines for files that could not be read."""
    if collected.results:
        yield _progress(collected)
    if collected.machines:
        yield _machines(collected)
    for file in collected.unread:
        yield Text(f"Not read: {file}")


def _progress(collected: Collected) -> Table:
    labs = collected.labs
    table = Table("student", *(f"lab {lab}" for lab in labs), title="Exercises passed", title_justify="left")
    passed_by = Counter[tuple[str, int]]()
    for student in sorted(collected.students):
        passed = [collected.passed(student, lab) for lab in labs]
        table.add_row(Text(student), *(", ".join(map(str, numbers)) or "–" for numbers in passed))
        passed_by.update((lab, number) for lab, numbers in zip(labs, passed, strict=True) for number in numbers)
    table.add_section()
    totals = (", ".join(f"{n}: {passed_by[lab, n]}" for n in catalogue.find(lab).exercises) for lab in labs)
    table.add_row("passed by", *totals)
    return table


def _machines(collected: Collected) -> Table:
    table = Table("lab", "can run it", "cannot, and why", title="Machines", title_justify="left")
    verdicts: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for student, labs in sorted(collected.machines.items()):
        for verdict in labs:
            verdicts.setdefault(verdict["lab"], []).append((student, verdict))
    for lab, rows in sorted(verdicts.items()):
        failed = [f"{name} ({', '.join(verdict['because'])})" for name, verdict in rows if verdict["status"] == "fail"]
        table.add_row(Text(lab), f"{len(rows) - len(failed)} of {len(rows)}", Text("; ".join(failed)))
    return table
