"""Measuring slots: how the cores of a server that many people share are divided.

Some cores are for editing: servers, notebooks, whatever nobody measures. The others are slots of whole cores, each of
which has one measurement at a time (`labkit.system.turns`). An administrator writes the division to a folder; where
there is none, nothing here does anything.
"""

import json
import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit.system import locks
from labkit.system.errors import LabError
from labkit.system.machine import Machine
from labkit.system.words import plural

FOLDER_VARIABLE = "LAB_SLOTS"  # the variable that names another folder
DEFAULT_FOLDER = Path("/run/lab-slots")  # the folder where root alone can write
FILE, QUEUE, DURATIONS = "slots.json", "queue", "durations"
LIMIT_S = 600.0  # the time limit of a measurement: the longest section of a lab takes less than half of it on two cores


@dataclass(frozen=True)
class Division:
    """The division of a shared server's cores: some for editing, the others in measuring slots.

    Attributes
    ----------
    editing : tuple of int
        The CPUs on which people's servers run.
    slots : tuple of tuple of int
        The CPUs of each slot: whole cores, of one NUMA node where that has enough.
    cores : int
        Physical cores of each slot.
    people : int
        The number of people who share the slots.
    limit_s : float
        Seconds after which a measurement has to give its slot back.
    """

    editing: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    cores: int
    people: int
    limit_s: float = LIMIT_S

    @property
    def rounds(self) -> float:
        """The length of a round of all people, as a multiple of one person's measurement."""
        return rounds(self.people, len(self.slots))

    def __str__(self) -> str:
        """Return it in a line."""
        return (
            f"{plural(len(self.slots), 'measuring slot')} of {plural(self.cores, 'core')} each "
            f"for {self.people} people, and {plural(len(self.editing), 'CPU')} to edit on"
        )


def rounds(people: int, slots: int) -> float:
    """Return the length of a round of all people, as a multiple of one person's measurement."""
    return max(1.0, people / slots)


def divide(machine: Machine, people: int, cores_per_slot: int | None = None, limit_s: float = LIMIT_S) -> Division:
    """Divide a machine's cores: a quarter of them for editing, and at least as many as a slot has.

    Parameters
    ----------
    machine : Machine
        The server.
    people : int
        The number of people who will share it.
    cores_per_slot : int, optional
        By default 4 from 16 cores on, the most ranks that the labs start for speed; 2 from 4 cores on; else 1.
    limit_s : float
        Seconds after which a measurement has to give its slot back.

    Raises
    ------
    LabError
        When there are too few cores, or the numbers make no sense.
    """
    total = machine.usable_cores
    size = cores_per_slot
    if size is None:
        size = 4 if total >= 16 else 2 if total >= 4 else 1
    if people < 1 or size < 1 or not limit_s > 0:
        raise LabError("people, the cores of a slot and its time limit must be more than 0.")
    editing = max(size, total // 4)
    if total < editing + size:
        raise LabError(
            f"{plural(total, 'core')} can't be divided into some to edit on and slots of {size} to measure on: "
            f"{2 * size} are needed."
        )
    by_node = [[core for core in machine.cores[:total] if core[0] in node] for node in machine.numa]
    by_node[0], editing_cores = by_node[0][editing:], by_node[0][:editing]
    if len(editing_cores) < editing:  # the first node is smaller
        rest = [core for node in by_node for core in node]
        editing_cores += rest[: editing - len(editing_cores)]
    left = [[core for core in node if core not in editing_cores] for node in by_node]
    slots = [slot for node in left for slot in _chunks(node, size)]
    slots = slots or _chunks([core for node in left for core in node], size)  # nodes of fewer cores than a slot
    chosen = tuple(_cpus(slot) for slot in slots[:people])
    others = [core for core in machine.cores if not any(set(core) & set(slot) for slot in chosen)]
    return Division(_cpus(others), chosen, size, people, limit_s)


def _chunks(cores: list[tuple[int, ...]], size: int) -> list[list[tuple[int, ...]]]:
    return [cores[start : start + size] for start in range(0, len(cores) - size + 1, size)]


def _cpus(cores: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core))


# The folder


def folder() -> Path:
    """Return the folder of this machine's division, be there one or not."""
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)


def read(place: Path | None = None) -> Division | None:
    """Return this machine's division; None when it has none.

    Raises
    ------
    LabError
        When the file is damaged.
    """
    file = (place or folder()) / FILE
    try:
        return _division(json.loads(file.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(
            f"{file}, which divides this server's cores into measuring slots, can't be used: {error}. "
            "Whoever runs the server writes it anew."
        ) from error


def _division(entry: Any) -> Division:
    """Return the division in a file.

    Raises
    ------
    ValueError, TypeError, KeyError
        When it has none.
    """
    if not isinstance(entry, dict):
        raise TypeError("it is not an object")
    division = Division(
        editing=tuple(entry["editing"]),
        slots=tuple(map(tuple, entry["slots"])),
        cores=entry["cores"],
        people=entry["people"],
        limit_s=entry["limit_s"],
    )
    measuring = [cpu for slot in division.slots for cpu in slot]
    if not all(isinstance(cpu, int) and cpu >= 0 for cpu in (*division.editing, *measuring)):
        raise ValueError("CPUs must be whole numbers")
    if len(set(measuring)) < len(measuring):
        raise ValueError("a CPU is in two slots")
    if not (division.editing and division.slots and all(division.slots)):
        raise ValueError("there must be CPUs for editing and in each slot")
    if not all(isinstance(number, int) and number > 0 for number in (division.cores, division.people)):
        raise ValueError("cores and people must be whole numbers above 0")
    if not 0 < division.limit_s < math.inf:
        raise ValueError("limit_s must be a number of seconds")
    return division


def write(division: Division, place: Path = DEFAULT_FOLDER) -> None:
    """Divide this machine from now on, for all who have the folder: by default, for all its users.

    The folder's owner alone can change the division and the slots' files, which are locked and never written. In
    `queue`, as in /tmp, everybody can make files and nobody can delete another's.

    Raises
    ------
    LabError
        When it can't be written, or somebody measures on the present division.
    """
    try:
        _refuse_if_held(place)
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o755)
        (place / QUEUE).mkdir(exist_ok=True)
        (place / QUEUE).chmod(0o1777)
        for name, mode in ((DURATIONS, 0o666), *((slot_file(number), 0o444) for number in range(len(division.slots)))):
            (place / name).touch()
            (place / name).chmod(mode)
        part = place / f".{FILE}"
        part.write_text(json.dumps(asdict(division)))
        part.chmod(0o644)
        part.replace(place / FILE)
    except OSError as error:
        raise LabError(f"cannot divide the cores in {place}: {error.strerror}. Do it as root.") from error


def remove(place: Path = DEFAULT_FOLDER) -> None:
    """Divide this machine no longer; who waits for a slot goes on without.

    Raises
    ------
    LabError
        When the folder can't be removed.
    """
    try:
        (place / FILE).unlink(missing_ok=True)
        if place.exists():
            shutil.rmtree(place)
    except OSError as error:
        raise LabError(f"cannot remove {place}: {error.strerror}. Do it as root.") from error


def _refuse_if_held(place: Path) -> None:
    for file in place.glob(slot_file("*")):
        if locks.is_locked(file):
            raise LabError(f"{file} is in use: divide the cores again when nobody measures.")


def slot_file(number: object) -> str:
    """Return the name of the file that is locked by whoever measures in a slot."""
    return f"slot-{number}"


def variables(division: Division, place: Path = DEFAULT_FOLDER) -> dict[str, str]:
    """Return the variables for the server of each person.

    TensorFlow and OpenMP make their threads once, for the cores that a kernel has then: those for editing. The
    variables have them make as many as fit into a slot.
    """
    threads = str(division.cores)
    return {
        FOLDER_VARIABLE: str(place),
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": str(min(division.cores, 2)),
    }
