"""What the labs' waiting really takes on this machine: labs run in full, and their sections' minutes kept."""

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Run labs in full, and keep their figures, and what each section waited as soon as its lab is through.

    Parameters
    ----------
    labs : sequence of str
        Their numbers.
    on_lab : callable
        Is given a lab's title, and what there is to say: "" when it begins.
    quick : bool
        Run them small, as tests do; then nothing is kept, and what a rehearsal in full has left stays as it is.

    Raises
    ------
    LabError
        When a lab does not run to its end.
    """
    with small_runs() if quick else contextlib.nullcontext(FOLDER) as folder:
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for number in labs:
            lab = catalogue.find(number)
            on_lab(lab.title, "")
            executed = execution.execute(read(lab.solution), f"{lab.name}-rehearsal", cwd=folder, QUICK=quick)
            waited = notebooks.waited(executed)
            on_lab(lab.title, f"waited {sum(waited.values()):.1f} minutes in all")
            if not quick:
                _keep(lab.number, waited)


@contextlib.contextmanager
def small_runs() -> Iterator[Path]:
    """Yield a folder for small runs of labs, and delete it with their results afterwards."""
    with files.writing(paths.STATE):
        paths.STATE.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="small-runs-", dir=paths.STATE)
    with folder as name:
        yield Path(name)


def estimate(labs: Sequence[str]) -> float:
    """Return the minutes that a rehearsal of labs waits: by the last one, and by the plan for labs without."""
    known = waits()
    return sum(
        sum(known[lab.number].values() if lab.number in known else (section.wait for section in lab.sections))
        for lab in map(catalogue.find, labs)
    )


def waits() -> dict[str, dict[str, float]]:
    """Return the minutes that each section of a lab waited, by lab; of labs that have changed since, nothing."""
    return {lab: entry["waited"] for lab, entry in _read().items() if entry.get("source") == _fingerprint(lab)}


def _keep(lab: str, waited: Mapping[str, float]) -> None:
    entry = {"waited": waited, "source": _fingerprint(lab), "when": time.strftime("%Y-%m-%d %H:%M")}
    with locks.locked(FILE):
        files.write(FILE, json.dumps(_read() | {lab: entry}, indent=1))


def _read() -> dict[str, Any]:
    try:
        rehearsals: dict[str, Any] = files.read_json(FILE)
        return rehearsals
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise LabError(f"{paths.shown(FILE)} is damaged: delete it, and run ./lab rehearse again.") from error


def _fingerprint(lab: str) -> str:
    """Return a text that changes with a lab's sections, and not with their words."""
    try:
        return ",".join(section.name for section in catalogue.find(lab).sections)
    except LabError:  # a lab that is gone
        return ""
