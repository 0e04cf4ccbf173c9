"""Leases of measuring slots: on a shared server, each slot of whole cores runs one measurement at a time.

`LABKIT_SLOTS` names a folder with a file for each slot. The file's name lists the slot's CPUs (`2,3`), and the
measurement that has the slot holds the file's lock (flock(2)), which the kernel releases when the process ends. Leases
rely on users trusting each other: anyone could lock a file and keep it locked.

Standard library only: the OpenMP environment doesn't have psutil.
"""

import contextlib
import os
import random
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from labkit.system import locks
from labkit.system.errors import LabError
from labkit.system.machine import Machine, cpu_list, siblings, this_machine
from labkit.system.words import plural

FOLDER_VARIABLE = "LABKIT_SLOTS"  # names the folder of the slots
LEASE_VARIABLE = "LABKIT_LEASE"  # names the slot's file, in the process with the lease and its children
WAIT_LIMIT_S = 900.0
POLL_S = 0.2


def slots() -> dict[Path, set[int]]:
    """Return the CPUs of each measuring slot by its file; empty on an unpartitioned machine.

    Raises
    ------
    LabError
        If the folder can't be read, or has other files in it.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder or not Path(folder).exists():
        return {}
    try:
        return {file: cpu_list(file.name) for file in sorted(Path(folder).iterdir())}
    except (OSError, ValueError) as error:
        raise LabError(f"the measuring slots in {folder} are unusable: {error}. Ask an administrator.") from error


def slot_cores() -> int:
    """Return the number of physical cores of a measuring slot; 0 on an unpartitioned machine."""
    return max((len({min(siblings(cpu)) for cpu in cpus}) for cpus in slots().values()), default=0)


def thread_variables() -> dict[str, str]:
    """Return the environment variables for a kernel on a partitioned machine; empty on others.

    TensorFlow and OpenMP create their threads once, while a kernel is still on the CPUs for editing: the variables set
    the number to a slot's cores.
    """
    if not (cores := slot_cores()):
        return {}
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    return {**dict.fromkeys(names, str(cores)), "TF_NUM_INTEROP_THREADS": str(min(cores, 2))}


def is_held() -> bool:
    """Return whether this process, or one of its parents, has a lease."""
    file = os.environ.get(LEASE_VARIABLE)
    return file is not None and locks.is_locked(Path(file))


def usable_machine() -> Machine:
    """Return the machine that measurements may use: this one, or a measuring slot's share of it."""
    machine, cores = this_machine(), 0 if is_held() else slot_cores()
    if not cores:
        return machine
    return replace(machine, quota=min(float(cores), machine.quota or cores))


@contextlib.contextmanager
def take(also: Collection[int] = ()) -> Iterator[None]:
    """Wait for a measuring slot and hold it for the block, with this process and its children on the slot's cores.

    Do nothing on an unpartitioned machine, or within another lease.

    Parameters
    ----------
    also : collection of int
        Other processes that belong to the measurement; they and their children move too.

    Raises
    ------
    LabError
        If no slot is free within `WAIT_LIMIT_S`, or this process may not use the slot's cores.
    """
    free = {} if is_held() else slots()
    if not free:
        yield
        return
    roots = [os.getpid(), *also]
    with _lock_any(free) as file:
        before = _move(roots, {}, free[file])
        try:
            if os.sched_getaffinity(0) != free[file]:
                raise LabError(
                    f"this process may not use its measuring slot's CPUs {file.name}. "
                    "On the server, set CPUAffinity= for users' processes, not AllowedCPUs=."
                )
            os.environ[LEASE_VARIABLE] = str(file)
            yield
        finally:
            os.environ.pop(LEASE_VARIABLE, None)
            _move(roots, before, set().union(*before.values()))


@contextlib.contextmanager
def _lock_any(files: Iterable[Path]) -> Iterator[Path]:
    """Lock one of the slots' files for the block and yield it."""
    began, waiting = time.monotonic(), False
    with contextlib.ExitStack() as until_over:
        opened = {}
        for file in files:
            opened[file] = os.open(file, os.O_RDONLY)
            until_over.callback(os.close, opened[file])
        while True:
            for file in random.sample(list(opened), len(opened)):
                if locks.try_lock(opened[file]):
                    if waiting:
                        print(f"Waited {time.monotonic() - began:.0f} s.", file=sys.stderr, flush=True)
                    yield file
                    return
            if time.monotonic() - began > WAIT_LIMIT_S:
                raise LabError(
                    f"no measuring slot was free within {WAIT_LIMIT_S / 60:.0f} min. Try again; "
                    f"`fuser -v {os.environ[FOLDER_VARIABLE]}/*` shows an administrator who holds them."
                )
            if not waiting:
                slots = plural(len(opened), "measuring slot")
                print(f"Waiting for {slots}, at most {WAIT_LIMIT_S / 60:.0f} min …", file=sys.stderr, flush=True)
                waiting = True
            time.sleep(POLL_S)


def _move(roots: Iterable[int], to: dict[int, set[int]], default: set[int]) -> dict[int, set[int]]:
    """Move all threads of some processes and their children to CPUs; return each thread's previous CPUs."""
    before = {}
    for thread in _threads(roots):
        with contextlib.suppress(OSError):  # ended, another user's, or not allowed on these CPUs
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, to.get(thread, default))
    return before


def _threads(processes: Iterable[int]) -> Iterator[int]:
    """Yield the threads of some processes and of all their children."""
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            for thread in Path(f"/proc/{process}/task").iterdir():
                yield int(thread.name)
                yield from _threads(map(int, (thread / "children").read_text(encoding="utf-8").split()))


# Partitioning a machine


class Partition(NamedTuple):
    """The partition of a shared server's CPUs.

    Attributes
    ----------
    editing : tuple of int
        The CPUs for notebooks and everything else that isn't measured.
    slots : tuple of tuple of int
        The CPUs of each measuring slot: whole cores, in one NUMA node if it has enough.
    cores : int
        The number of physical cores in each slot.
    """

    editing: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    cores: int

    def __str__(self) -> str:
        """Return it in one line."""
        slots = plural(len(self.slots), "measuring slot")
        return f"{slots} of {plural(self.cores, 'core')} each, and {plural(len(self.editing), 'CPU')} for editing"


def partition(machine: Machine, people: int, cores: int | None = None) -> Partition:
    """Partition a machine's cores: a quarter for editing, but at least as many as in a slot.

    Parameters
    ----------
    machine : Machine
        The server.
    people : int
        The number of people who share it; there are no more slots than that.
    cores : int, optional
        Cores per slot. By default 4 on 16 cores or more, the most ranks that the labs start for speed; 2 on 4 or
        more; else 1.

    Raises
    ------
    LabError
        If there are too few cores.
    """
    total = machine.usable_cores
    size = cores or (4 if total >= 16 else 2 if total >= 4 else 1)
    n_editing = max(size, total // 4)
    usable = machine.cores[:total]
    by_node = [core for node in machine.numa for core in usable if core[0] in node]
    rest = by_node[n_editing:]
    nodes = [[core for core in rest if core[0] in node] for node in machine.numa]
    slots = [slot for node in nodes for slot in _chunks(node, size)] or _chunks(rest, size)
    if not slots:
        raise LabError(f"{plural(total, 'core')} are too few for slots of {size}: at least {2 * size} are needed.")
    chosen = tuple(tuple(sorted(cpu for core in slot for cpu in core)) for slot in slots[:people])
    measuring = {cpu for slot in chosen for cpu in slot}
    return Partition(tuple(cpu for cpu in machine.cpus if cpu not in measuring), chosen, size)


def _chunks(cores: list[tuple[int, ...]], size: int) -> list[list[tuple[int, ...]]]:
    return [cores[start : start + size] for start in range(0, len(cores) - size + 1, size)]


def create(partition: Partition, folder: Path) -> None:
    """Make the folder of the slots, which only its owner can change."""
    folder.mkdir()
    folder.chmod(0o755)
    for slot in partition.slots:
        file = folder / ",".join(map(str, slot))
        file.touch()
        file.chmod(0o444)
