"""How far a class is, from files that students hand in: the labs' `results-NN.json`, and what `lab doctor --json` says.

A student is a folder, or the beginning of the file's name: `ada/results-07.json`, `ada-results-07.json`.

What `./lab room close` keeps of a board is no substitute: that takes a network and a board, and has counts without
names, of five people and more. This tells of each student, and of a class without either.
"""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text

from labkit.display.results import PASSED, find_problem, read
from labkit.exercises import sources
from labkit.system import files, paths
from labkit.system.errors import LabError

MAX_DEPTH = 20  # levels of folders in the folder
RESULTS = re.compile(r"(?:(.+?)[-_. ]+)?results-(\d\d)\.json")


class Collected(NamedTuple):
    """The results and machines of a class, as read from files.

    Attributes
    ----------
    results : dict
        Verdicts by (student, lab).
    machines : dict
        The doctor's verdicts by student.
    unread : list of str
        The files that are neither.
    """

    results: dict[tuple[str, str], dict[str, str]]
    machines: dict[str, list[dict[str, Any]]]
    unread: list[str]


def collect(folder: Path) -> Collected:
    """Read all that is in a folder.

    Raises
    ------
    LabError
        When there are neither results nor verdicts of the doctor.
    """
    collected = Collected({}, {}, [])
    for file in sorted(_json_files(folder)):
        within = " / ".join(part for part in file.relative_to(folder).parts[:-1] if part != "work")
        if name := RESULTS.fullmatch(file.name):
            student = " / ".join(filter(None, (within, name[1]))) or "?"
            if results := _results(file):
                collected.results[student, name[2]] = results.get("exercises", {})
                continue
        elif verdicts := _doctor(file):
            collected.machines[" / ".join(filter(None, (within, "" if within else file.stem)))] = verdicts
            continue
        collected.unread.append(str(file.relative_to(folder)))
    if not collected.results and not collected.machines:
        raise LabError(f"{paths.shown(folder)} has no results-NN.json and nothing of ./lab doctor --json.")
    return collected


def tables(folder: Path) -> Iterator[Table | Text]:
    """Yield the tables of a class, and the files that could not be read."""
    collected = collect(folder)
    if collected.results:
        yield _progress(collected)
    if collected.machines:
        yield _machines(collected)
    for file in collected.unread:
        yield Text(f"Not read: {file}")


def _json_files(folder: Path, depth: int = MAX_DEPTH) -> Iterator[Path]:
    """Yield the files of a folder and of those in it; links to folders are not followed, and no folder stops it."""
    with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from _json_files(Path(entry.path), depth - 1)
            elif entry.name.endswith(".json"):
                yield Path(entry.path)


def _progress(collected: Collected) -> Table:
    labs = sorted({lab for _, lab in collected.results})
    table = Table("student", *(f"lab {lab}" for lab in labs), title="Exercises passed", title_justify="left")
    for student in sorted({student for student, _ in collected.results}):
        row: list[Text] = []
        for lab in labs:
            verdicts = collected.results.get((student, lab), {})
            passed = [number for number, verdict in verdicts.items() if verdict == PASSED]
            row.append(Text(", ".join(sorted(passed, key=lambda text: text.zfill(3))) or "–"))
        table.add_row(Text(student), *row)
    counts = Counter(
        (lab, number)
        for (_, lab), verdicts in collected.results.items()
        for number, verdict in verdicts.items()
        if verdict == PASSED
    )
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


def _results(file: Path) -> dict[str, Any] | None:
    try:
        results = read(file)
    except (OSError, ValueError):
        return None
    return None if find_problem(results) else results


def _doctor(file: Path) -> list[dict[str, Any]] | None:
    """Return the verdicts of a file of `lab doctor --json`; None when it is none."""
    try:
        labs = files.read_json(file)["labs"]
        right = all(
            isinstance(one["lab"], str)
            and one["status"] in ("ok", "warn", "fail")
            and all(isinstance(name, str) for name in one["because"])
            for one in labs
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return labs if right else None
