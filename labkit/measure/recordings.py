"""Recordings: figures that ship with the kit, for machines that can't measure them themselves."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from labkit.measure.figures import Measured, Source, summarize
from labkit.system import files, paths
from labkit.system.errors import LabError

VARIABLE = "LAB_RECORD"  # the folder for what a lab records, while `lab build --record` runs it


class Recording(NamedTuple):
    """The figures and other values that were recorded on another machine.

    Attributes
    ----------
    figures : dict of str to Measured
        The figures, each with the note "recorded".
    data : dict
        Other values, such as a timeline.
    machine, date, commit : str
        The machine, the day, and the kit's commit.
    """

    figures: dict[str, Measured]
    data: dict[str, Any]
    machine: str
    date: str
    commit: str

    def __str__(self) -> str:
        """Return its origin in one line."""
        return f"Recorded on {self.machine}, {self.date}, with commit {self.commit} of the kit."


def recorded(name: str) -> Recording:
    """Print the origin of a recording, and return it.

    Parameters
    ----------
    name : str
        Its name in `data/recorded`, such as "06-wires".

    Raises
    ------
    LabError
        If there is no such recording, or it is damaged.
    """
    folder = paths.DATA / "recorded"
    try:
        stored = files.read_json(folder / f"{name}.json")
    except FileNotFoundError as error:
        known = ", ".join(sorted(file.stem for file in folder.glob("*.json"))) or "none"
        raise LabError(f"there is no recording {name!r}, only {known}.") from error
    except (OSError, ValueError) as error:
        raise LabError(f"data/recorded/{name}.json is damaged: restore it with git.") from error
    figures = {
        name: replace(summarize(of["rounds"], of["unit"], of["source"] and Source(*of["source"])), note="recorded")
        for name, of in stored["figures"].items()
    }
    recording = Recording(**stored | {"figures": figures})
    print(recording)
    return recording


def record(name: str, figures: Mapping[str, Measured], quick: bool, **data: Any) -> None:
    """Record figures, if `./lab build NN --record` runs this lab; otherwise do nothing.

    Parameters
    ----------
    name : str
        The lab's number and what is recorded, such as "06-wires".
    figures : mapping of str to Measured
        The figures by name.
    quick : bool
        Whether this is a small run, which isn't recorded.
    **data
        Other values that JSON can hold.

    Raises
    ------
    LabError
        If the run is small, or other work used the cores meanwhile.
    """
    if VARIABLE not in os.environ:
        return
    if quick:
        raise LabError(f"{name} is not recorded in a small run: unset QUICK.")
    if busy := [key for key, figure in figures.items() if any(others.busy for others in figure.contention)]:
        raise LabError(f"{name} is not recorded: other work used the cores during {', '.join(busy)}.")
    rounds = {key: {"rounds": f.rounds or [f.value], "unit": f.unit, "source": f.source} for key, f in figures.items()}
    values = {"figures": rounds, "data": data}
    files.write(Path(os.environ[VARIABLE], f"{name}.json"), json.dumps(values, allow_nan=False))
