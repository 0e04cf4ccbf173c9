"""What the labs' waiting really takes on this machine: labs run in full, and their sections' minutes kept."""

import contextlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.exercises import catalogue
from labkit.system import files, locks, paths
from labkit.system.errors import LabError
from labkit_author import execution, notebooks
from labkit_classroom.lecture.labs import read

FILE = paths.STATE / "rehearsal.json"
FOLDER = paths.STATE / "rehearsal"  # the folder in which the labs run
RESULTS = FOLDER / "work"  # their figures


def run(labs: Sequence[str], on_lab: Callable[[str, str], None], quick: bool = False) -> None:
    """Run labs in full, and keep their figures, and what each section waited as soon as its lab has run.

    Parameters
    ----------
    labs : sequence of str
        Their numbers.
    on_lab : callable
        Called with a lab's title, and what there is to say: "" when it begins.
    quick : bool
        Run them small, as tests do, and keep nothing.

    Raises
    ------
    LabError
        When a lab does not run to its end.
    """
    with files.writing(FOLDER):
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(dir=FOLDER.parent) if quick else contextlib.nullcontext(str(FOLDER))
    with place as folder:
        Path(folder).mkdir(exist_ok=True)
        for number in labs:
            lab = catalogue.find(number)
            on_lab(lab.title, "")
            executed = execution.execute(read(lab.solution), f"{lab.name}-rehearsal", cwd=Path(folder), QUICK=quick)
            waited = notebooks.waited(executed)
            on_lab(lab.title, f"waited {sum(waited.values()):.1f} minutes in all")
            if not quick:
                with locks.locked(FILE):
                    files.write(FILE, json.dumps(_read() | {lab.number: waited}, indent=1))


def estimate(labs: Sequence[str]) -> float:
    """Return the minutes that a rehearsal of labs waits: by the last one, and by the plan for labs without."""
    known = waits()
    return sum(
        sum(known[lab.number].values() if lab.number in known else (section.wait for section in lab.sections))
        for lab in map(catalogue.find, labs)
    )


def waits() -> dict[str, dict[str, float]]:
    """Return the minutes that each section of a lab waited, by lab; of labs with other sections since, nothing."""
    kept = _read()
    return {
        lab.number: kept[lab.number]
        for lab in catalogue.labs()
        if list(kept.get(lab.number, ())) == [section.name for section in lab.sections]
    }


def _read() -> dict[str, Any]:
    try:
        rehearsals: dict[str, Any] = files.read_json(FILE)
        return rehearsals
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LabError(f"{paths.shown(FILE)} is damaged: delete it, and run ./lab rehearse again.") from error
