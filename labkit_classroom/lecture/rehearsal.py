"""Rehearsals: run labs in full on this machine, and store each section's waiting time."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises import catalogue
from labkit.system import files, locks, paths, terminal
from labkit.system.errors import LabError
from labkit_author import execution, notebooks
from labkit_classroom.lecture.labs import read

FILE = paths.STATE / "rehearsal.json"
FOLDER = paths.STATE / "rehearsal"  # the folder in which the labs run
RESULTS = FOLDER / "work"  # their results


def run(labs: Sequence[str], on_lab: Callable[[str, str], None]) -> None:
    """Run labs in full; store their results, and each lab's waiting times as soon as it has run.

    Parameters
    ----------
    labs : sequence of str
        Their numbers.
    on_lab : callable
        Called with a lab's title and a status, "" when it begins.

    Raises
    ------
    LabError
        If a lab fails.
    """
    with files.writing(FOLDER):
        FOLDER.mkdir(parents=True, exist_ok=True)
    for number in labs:
        lab = catalogue.find(number)
        on_lab(lab.title, "")
        with terminal.errors_to(FOLDER / "errors.log"):  # TensorFlow's notices
            executed = execution.execute(read(lab.solution), f"{lab.name}-rehearsal", cwd=FOLDER)
        waited = notebooks.waited(executed)
        on_lab(lab.title, f"waited {sum(waited.values()):.1f} minutes in total")
        with locks.locked(FILE):
            files.write(FILE, json.dumps(_read() | {lab.number: waited}, indent=1))


def estimate(labs: Sequence[str]) -> float:
    """Return the minutes a rehearsal will take: from the previous one or, for labs without one, from the plan."""
    known = waits()
    return sum(
        sum(known[lab.number].values() if lab.number in known else (section.wait for section in lab.sections))
        for lab in map(catalogue.find, labs)
    )


def waits() -> dict[str, dict[str, float]]:
    """Return minutes of waiting by lab and section, without labs whose sections have changed since."""
    stored = _read()
    return {
        lab.number: stored[lab.number]
        for lab in catalogue.labs()
        if list(stored.get(lab.number, ())) == [section.name for section in lab.sections]
    }


def _read() -> dict[str, Any]:
    try:
        rehearsals: dict[str, Any] = files.read_json(FILE)
        return rehearsals
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LabError(f"{paths.shown(FILE)} is damaged: delete it and run ./lab rehearse again.") from error
