"""Reservations of CPU cores: each run gets cores that no other run has, whichever user started it.

A reservation is a Unix socket bound to a name in Linux's abstract namespace (unix(7)), one per CPU. Only one process
can have a name; binding never blocks; and the kernel frees the name as soon as its holder ends, even by SIGKILL. Lock
files, one per core, would need a folder that all users share, protected against links, pipes and unreadable files that
others put there. A name has no owner, mode or content, and as the socket does not listen, no one can connect to it.

Only the process that requests a run holds the names: its children do not inherit the sockets (PEP 446), so nothing that
a rank leaves behind can keep cores. If that process is killed, mpirun and the ranks die within moments
(`labkit.system.lifetime`). `RESERVED_VARIABLE` tells ranks which CPUs they already have: a run inside a rank divides
those, and never waits.

On a shared server, cores are divided into measuring slots, listed in `SLOTS_VARIABLE`, and each slot runs one
measurement at a time: `reserve()` waits for a slot, holds a name for it, and moves the measurement to its cores.
`SLOT_VARIABLE` tells children that they have one.

Names belong to a network namespace, so containers with separate networks do not see each other's runs. Runs started
without this kit are not seen either. Holding all names on purpose makes other runs unbound; it does not block them.
Only slots rely on users trusting each other: anyone could hold one forever.

Standard library only.
"""

import contextlib
import errno
import os
import random
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from labkit.system.errors import LabError
from labkit.system.machine import Machine, cpu_list, siblings, this_machine
from labkit.system.words import plural

RESERVED_VARIABLE = "LABKIT_RESERVED_CPUS"  # tells ranks which CPUs their run has reserved
SLOTS_VARIABLE = "LABKIT_SLOTS"  # on a shared server: the CPUs of each measuring slot, such as "2,3:4,5"
SLOT_VARIABLE = "LABKIT_SLOT"  # the CPUs of the slot, in the process that has reserved it and its children

NAME_PREFIX = "labkit-cpu"  # the prefix of the sockets' names, before the CPU's number
SLOT_PREFIX = "labkit-slot"  # the same, before a slot's CPUs
MAX_TRIES = 20  # another process that looks for free cores holds them all for a moment
MAX_PAUSE_S = 0.05  # the longest pause between two tries
SLOT_WAIT_S = 900.0
SLOT_PAUSE_S = 0.2

Core = tuple[int, ...]  # the CPUs of one core: SMT siblings are reserved together


def _bind(name: str) -> socket.socket | None:
    """Return a socket with an abstract name; None if another process or reservation has it.

    Raises
    ------
    OSError
        If the kernel binds no names here.
    """
    with contextlib.ExitStack() as on_failure:
        bound = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            bound.bind(f"\0{name}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        on_failure.pop_all()
    return bound


# Cores of a run


class Reservation:
    """Cores that this process holds until it closes the reservation, or ends.

    Attributes
    ----------
    free : tuple of tuple of int
        The cores that no other run has; all, if the kernel binds no names here.
    """

    def __init__(self, cores: Iterable[Core], inherited: Iterable[int] = ()) -> None:
        self._held: dict[Core, list[socket.socket]] = {}
        self.free = tuple(core for core in cores if set(core) <= set(inherited) or self._take(core))

    def _take(self, core: Core) -> bool:
        """Take all CPUs of a core, including any that this process may not use; return whether they were free."""
        self._held[core] = []
        for cpu in sorted(set(core).union(*map(siblings, core))):
            try:
                name = _bind(f"{NAME_PREFIX}{cpu}")
            except OSError:
                continue
            if name is None:
                self._release(core)
                return False
            self._held[core].append(name)
        return True

    def _release(self, core: Core) -> None:
        for name in self._held.pop(core):
            name.close()

    def keep_only(self, cpus: Iterable[int]) -> None:
        """Release the cores without any of these CPUs."""
        for core in [core for core in self._held if not set(core) & set(cpus)]:
            self._release(core)

    def close(self) -> None:
        """Release all cores."""
        self.keep_only(())


def reserve_free(cores: Iterable[Core], minimum: int, environ: Mapping[str, str] = os.environ) -> Reservation:
    """Reserve all free cores among these; if they are fewer than `minimum`, list them but hold none.

    Parameters
    ----------
    cores : iterable of tuple of int
        The cores that this process may use.
    minimum : int
        The number of cores that the run needs.
    environ : mapping of str to str
        The environment; in a rank, it lists the CPUs that the run has reserved.
    """
    inherited = {int(cpu) for cpu in environ.get(RESERVED_VARIABLE, "").split(",") if cpu.isdecimal()}
    for wait in (*(random.uniform(0, MAX_PAUSE_S) for _ in range(MAX_TRIES - 1)), 0):
        reservation = Reservation(cores, inherited)
        if len(reservation.free) >= minimum:
            break
        reservation.close()
        time.sleep(wait)
    return reservation


# Measuring slots of a shared server


def slots() -> list[set[int]]:
    """Return the CPUs of each measuring slot; empty on a machine without slots.

    Raises
    ------
    LabError
        If `SLOTS_VARIABLE` has anything else.
    """
    text = os.environ.get(SLOTS_VARIABLE, "")
    try:
        return [cpu_list(slot) for slot in text.split(":") if slot]
    except ValueError as error:
        raise LabError(f"the measuring slots {SLOTS_VARIABLE}={text} are unusable. Ask an administrator.") from error


def slot_cores() -> int:
    """Return the number of physical cores of a measuring slot; 0 on a machine without slots."""
    return max((len({min(siblings(cpu)) for cpu in cpus}) for cpus in slots()), default=0)


def thread_variables() -> dict[str, str]:
    """Return the environment variables for a kernel on a machine with slots; empty on others.

    TensorFlow and OpenMP create their threads once, while a kernel is still on the CPUs for editing: the variables set
    the number to a slot's cores.
    """
    if not (cores := slot_cores()):
        return {}
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    return {**dict.fromkeys(names, str(cores)), "TF_NUM_INTEROP_THREADS": str(min(cores, 2))}


def usable_machine() -> Machine:
    """Return the machine that measurements may use: this one, or a measuring slot's share of it."""
    machine, cores = this_machine(), 0 if SLOT_VARIABLE in os.environ else slot_cores()
    return replace(machine, quota=min(float(cores), machine.quota or cores)) if cores else machine


@contextlib.contextmanager
def reserve() -> Iterator[None]:
    """Wait for a measuring slot and hold it for the block, with this process and its children on the slot's cores.

    Do nothing on a machine without slots, or with a slot reserved.

    Raises
    ------
    LabError
        If no slot is free within `SLOT_WAIT_S`, this process may not use the slot's cores, or the kernel binds no names
        here.
    """
    available = [] if SLOT_VARIABLE in os.environ else slots()
    if not available:
        yield
        return
    with _any_of(available) as slot:
        before = _move({}, slot)
        try:
            if os.sched_getaffinity(0) != slot:
                raise LabError(
                    f"this process may not use its measuring slot's CPUs {_join(slot)}. "
                    "On the server, set CPUAffinity= for users' processes, not AllowedCPUs=."
                )
            os.environ[SLOT_VARIABLE] = _join(slot)
            yield
        finally:
            os.environ.pop(SLOT_VARIABLE, None)
            _move(before, set().union(*before.values()))


def _join(cpus: Iterable[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


@contextlib.contextmanager
def _any_of(available: list[set[int]]) -> Iterator[set[int]]:
    """Wait for one of these slots, hold its name for the block, and yield its CPUs."""
    began, waiting = time.monotonic(), False
    while True:
        for slot in random.sample(available, len(available)):
            if name := _take_slot(slot):
                with name:
                    if waiting:
                        print(f"Waited {time.monotonic() - began:.0f} s.", file=sys.stderr, flush=True)
                    yield slot
                return
        if time.monotonic() - began > SLOT_WAIT_S:
            raise LabError(
                f"no measuring slot was free within {SLOT_WAIT_S / 60:.0f} min. Try again; "
                f"`ss -xap | grep {SLOT_PREFIX}` shows an administrator who holds them."
            )
        if not waiting:
            count = plural(len(available), "measuring slot")
            print(f"Waiting for {count}, at most {SLOT_WAIT_S / 60:.0f} min …", file=sys.stderr, flush=True)
            waiting = True
        time.sleep(SLOT_PAUSE_S)


def _take_slot(slot: set[int]) -> socket.socket | None:
    """Return the socket that holds a slot; None if another process has it."""
    try:
        return _bind(f"{SLOT_PREFIX}{_join(slot)}")
    except OSError as error:
        raise LabError(
            f"measuring slots can't be reserved here, as abstract Unix sockets are refused: {error.strerror}. Ask an "
            "administrator to allow them (unix(7)) in this account's sandbox."
        ) from error


def _move(to: dict[int, set[int]], default: set[int]) -> dict[int, set[int]]:
    """Move all threads of this process and its children to CPUs; return each thread's previous CPUs."""
    before = {}
    for thread in _threads([os.getpid()]):
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
