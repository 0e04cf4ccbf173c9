"""How far a class is, from files that students hand in: the labs' `results-NN.json`, and what `lab doctor --json` says.

A student is a folder, a zip that `lab class --zip` made, or the beginning of the file's name: `ada/results-07.json`,
`ada-results.zip`, `ada-results-07.json`.
"""

import csv
import io
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
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d", re.ASCII)  # as labs write it
NO_NAME = re.compile(r"(^|[;\t])(?=\W)")  # a cell of a spreadsheet, which may take what begins so for a formula
MAX_DEPTH = 20  # of folders: a name of a few thousand would be too long for the system, and for os.walk
MAX_LABS, MAX_LETTERS = 100, 100  # of a doctor's report: labs, and checks of each; letters of a name
# The columns of nbgrader's own export: `CsvExportPlugin` of nbgrader 0.9.6.
COLUMNS = (
    *("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"),
    *("raw_score", "late_submission_penalty", "score", "max_score"),
)


class Collected(NamedTuple):
    """The results and machines of a class, as read from files.

    Attributes
    ----------
    results : dict
        A lab's results, by (student, lab).
    machines : dict
        The doctor's verdicts by student.
    students : set of str
        All students, also those without results.
    unread : list of str
        The files that are neither.
    """

    results: dict[tuple[str, str], dict[str, Any]]
    machines: dict[str, list[dict[str, Any]]]
    students: set[str]
    unread: list[str]

    @property
    def labs(self) -> list[str]:
        """The numbers of the labs that have results."""
        return sorted({lab for _, lab in self.results})

    def passed(self, student: str, lab: str) -> list[int]:
        """Return the exercises of a lab that a student has passed, in their order."""
        verdicts = self.results.get((student, lab), {}).get("exercises", {})
        return [number for number in catalogue.find(lab).exercises if verdicts.get(str(number)) == PASSED]


def collect(folder: Path) -> Collected:
    """Read all results and verdicts in a folder.

    Raises
    ------
    LabError
        When there are neither.
    """
    collected = Collected({}, {}, set(), [])
    for file in _files(folder):
        _read(file, folder, collected)
    if not collected.results and not collected.machines:
        raise LabError(f"{paths.shown(folder)} has no results-NN.json and nothing of ./lab doctor --json.")
    for entry in os.scandir(folder):
        empty = not any(student.split(" / ")[0] == entry.name for student in collected.students)
        if empty and entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and entry.name != WORK.name:
            collected.students.add(entry.name)
    return collected


def _files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files and zips below a folder, except for hidden ones, and those that labs leave in `work/`."""
    for place, folders, names in os.walk(folder):
        parents = Path(place).relative_to(folder).parts
        folders[:] = sorted(name for name in folders if len(parents) < MAX_DEPTH and not name.startswith("."))
        in_work = WORK.name in parents
        for name in sorted(names):
            if RESULTS.fullmatch(name) or (name.endswith((".json", ".zip")) and not in_work and name[0] != "."):
                yield Path(place, name)


def _read(file: Path, folder: Path, collected: Collected) -> None:
    """Add the results and verdicts in a file, or note that it can't be read."""
    place = file.relative_to(folder)
    folders = [part for part in place.parts[:-1] if part != WORK.name]
    own = OWNER.fullmatch(file.stem)
    name = own[1] if own else "" if folders and file.suffix == ".json" else file.stem
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
    """Add the content of a JSON file; return whether it is a lab's or the doctor's."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if lab := RESULTS.fullmatch(name):
        known = {info.number for info in catalogue.labs()}
        if lab[1] not in known or not isinstance(content, dict) or find_problem(content):
            return False
        before = collected.results.get((student, lab[1]), {}).get("exercises", {})
        passed = {number: verdict for number, verdict in before.items() if verdict == PASSED}  # stays so
        collected.results[student, lab[1]] = content | {"exercises": content.get("exercises", {}) | passed}
    elif _is_doctors(content):
        collected.machines[student] = content["labs"]
    else:
        return False
    collected.students.add(student)
    return True


def _is_doctors(content: Any) -> bool:
    """Whether it is what `lab doctor --json` prints, as far as it is read here."""
    try:
        labs = content["labs"]
        return len(labs) <= MAX_LABS and all(
            one["status"] in ("ok", "warn", "fail")
            and len(one["because"]) <= MAX_LABS
            and all(isinstance(name, str) and len(name) <= MAX_LETTERS for name in (one["lab"], *one["because"]))
            for one in labs
        )
    except (TypeError, KeyError):
        return False


def tables(collected: Collected) -> Iterator[Table | Text]:
    """Yield the tables of a class, and the files that could not be read."""
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
    for student, found in sorted(collected.machines.items()):
        for one in found:
            verdicts.setdefault(one["lab"], []).append((student, one))
    for lab, of_lab in sorted(verdicts.items()):
        failed = [f"{name} ({', '.join(one['because'])})" for name, one in of_lab if one["status"] == "fail"]
        table.add_row(Text(lab), f"{len(of_lab) - len(failed)} of {len(of_lab)}", Text("; ".join(failed)))
    return table


def as_csv(collected: Collected) -> str:
    """Return the points of each student in each lab that has results, as CSV with the columns of nbgrader's export.

    An assignment is a lab, and each exercise is one point; students who handed in nothing have none.
    """
    out = io.StringIO()
    rows = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    rows.writeheader()
    for lab in map(catalogue.find, collected.labs):
        for student in sorted(collected.students):
            points = float(len(collected.passed(student, lab.number)))
            when = collected.results.get((student, lab.number), {}).get("when", "")
            row = {"assignment": lab.name, "timestamp": f"{when}:00" if TIME.fullmatch(when) else ""}
            row["student_id"] = NO_NAME.sub(r"\1'", student)
            scores = {"raw_score": points, "score": points, "max_score": float(len(lab.exercises))}
            rows.writerow(row | scores | {"late_submission_penalty": 0.0})
    return out.getvalue()
