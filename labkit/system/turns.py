"""Turns in the measuring slots of a shared server: first come, first served, one measurement in a slot at a time.

A slot is taken by locking its file (flock(2)). The kernel frees the lock when the last process that has it open ends,
also by SIGKILL: the holder, and the commands that it has started by `labkit.system.processes`. Nobody has to clean up.

Who waits has a ticket: a file in a folder like /tmp, locked as well, so that a dead waiter's ticket is not counted.
The tickets' order is that of their ctime, which the kernel sets: a user can neither date a ticket back nor delete
another's. Who lets a free slot lie, such as a stopped process, is passed over.

Slots are given by agreement, as the kernel lets each process lock these files and use these cores. A user who wants to
can lock a slot out of turn, or stop a process that has one. This protects against haste and crashes, not against
malice; against that, an administrator ends the process (`fuser -v /run/lab-hub-*/slots/slot-*`).

Standard library only: the OpenMP environment has this too.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from labkit.system import locks, slots
from labkit.system.errors import LabError
from labkit.system.machine import Machine, this_machine
from labkit.system.slots import Division

SLOT_VARIABLE = "LABKIT_SLOT"  # the variable with the number of the slot, in its holder and in all that it starts
POLL_S, MAX_POLL_S = 0.1, 0.5  # pauses between two looks at the queue: of the first in it, and of those far behind
PATIENCE_S = 5.0  # the time that the first in the queue has to take a free slot
GRACE_S = 10.0  # the time that a measurement has to end after its time limit
REMEMBERED = 20  # the last measurements, whose durations say how long one takes
STATUS_COLUMNS = 78
TAIL_BYTES = 1024  # the end of the file of durations, which has the last `REMEMBERED`

_entering = threading.Lock()  # the lock under which one of several threads takes the slot for all
_lock: int | None = None  # the locked file of the slot that this process has taken


def inherited() -> list[int]:
    """Return the descriptors that commands inherit, so that the slot is not free before they have ended as well."""
    return [] if _lock is None else [_lock]


def in_slot() -> bool:
    """Whether this process, or the one that started it, has a slot."""
    number = os.environ.get(SLOT_VARIABLE, "")
    return number.isdecimal() and locks.is_locked(slots.folder() / slots.slot_file(number))


def outside() -> Division | None:
    """Return this machine's division; None when it has none, or this process has a slot."""
    return None if in_slot() else slots.read()


def this_share() -> Machine:
    """Return this process's share of this machine: on a divided one, outside a slot, as much as a slot has."""
    machine, shared = this_machine(), outside()
    if shared is None:
        return machine
    cores = float(shared.cores)
    return replace(machine, quota=cores if machine.quota is None else min(cores, machine.quota))


@contextlib.contextmanager
def take(also: Collection[int] = ()) -> Iterator[None]:
    """Wait for a measuring slot and have it for the block, all threads of this process on its cores.

    On a machine without slots, and inside a turn of this process or of the one that started it, it does nothing.

    Parameters
    ----------
    also : collection of int
        Processes that belong to the measurement without being under this one: they are moved too, with all under them.

    Raises
    ------
    LabError
        When the block has not ended within the slots' time limit, or the slots can't be used.
    """
    with contextlib.ExitStack() as until_over:
        with _entering:
            slot = None if outside() is None else _wait(until_over)
            if slot:
                until_over.callback(slot.leave)  # a second time, should an interrupt have come during the first
                slot.enter(also)
        if slot is None:
            yield
            return
        try:
            try:
                yield
            finally:
                slot.leave()
        except KeyboardInterrupt:
            if slot.overdue:
                raise LabError(slot.overdue) from None
            raise
        if slot.overdue:  # the block has ended well when it was interrupted
            print(slot.overdue, file=sys.stderr, flush=True)


class _Held:
    """A slot that this process has."""

    def __init__(self, division: Division, number: int, lock: int) -> None:
        self.overdue = ""  # the reason why the block was interrupted, if it was
        self._number, self._lock, self._limit = number, lock, division.limit_s
        self._cpus = set(division.slots[number])
        self._roots = [os.getpid()]
        self._masks: dict[int, set[int]] = {}  # the CPUs of each thread before
        self._began = time.monotonic()
        self._leaving = threading.RLock()
        self._left = threading.Event()
        self._timer = threading.Timer(self._limit, self._end, [threading.current_thread()])
        self._timer.daemon = True

    def enter(self, also: Collection[int]) -> None:
        """Move this process's threads to the slot's cores, and start the clock."""
        global _lock
        _lock = self._lock
        os.environ[SLOT_VARIABLE] = str(self._number)
        self._roots += also
        for thread in _threads([os.getpid(), *_trees(also)]):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                self._masks[thread] = os.sched_getaffinity(thread)
                self._pin(thread)
        self._timer.start()

    def _pin(self, thread: int) -> None:
        with contextlib.suppress(PermissionError):
            try:
                os.sched_setaffinity(thread, self._cpus)
            except OSError as error:
                if error.errno != errno.EINVAL:  # none of the cores may be used
                    raise
            if os.sched_getaffinity(thread) == self._cpus:
                return
        raise LabError(
            f"this process may not use the cores of its measuring slot, {sorted(self._cpus)}: "
            "whoever runs the server gives people's servers an affinity (CPUAffinity=), and no cpuset (AllowedCPUs=)."
        )

    def leave(self) -> None:
        """Move all that was started meanwhile off the slot's cores, then give the slot back; once is enough."""
        global _lock
        with self._leaving:
            if self._left.is_set() or os.getpid() != self._roots[0]:  # a fork of the holder gives nothing back
                return
            self._timer.cancel()
            os.environ.pop(SLOT_VARIABLE, None)
            own = set().union(*self._masks.values())
            for thread in _threads(_trees(self._roots)):
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    if thread in self._masks or os.sched_getaffinity(thread) <= self._cpus:
                        os.sched_setaffinity(thread, self._masks.get(thread, own))
            _lock = None
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # for the processes that have inherited it, too
            self._left.set()
        _remember(time.monotonic() - self._began)

    def _end(self, holder: threading.Thread) -> None:
        """Interrupt the holder when its time is up; should it go on nevertheless, it does so on its own cores."""
        with self._leaving:
            if self._left.is_set():
                return
            self.overdue = (
                f"The measuring slot was given back after {self._limit:.0f} s, its time limit for all: "
                "measure less at once."
            )
            if holder is threading.main_thread():
                signal.pthread_kill(holder.ident or 0, signal.SIGINT)
        if not self._left.wait(GRACE_S):
            self.leave()


def _threads(processes: Iterable[int]) -> Iterator[int]:
    """Yield each thread of some processes once, also those that are started meanwhile."""
    for process in processes:
        seen: set[int] = set()
        with contextlib.suppress(OSError):  # it has ended
            while new := {int(path.name) for path in Path(f"/proc/{process}/task").iterdir()} - seen:
                yield from new
                seen |= new


def _trees(roots: Collection[int]) -> list[int]:
    """Return these processes and all under them."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*") if roots else ():
        with contextlib.suppress(OSError):  # it has ended
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]  # a name may have blanks and brackets
            children.setdefault(int(parent), []).append(int(folder.name))
    processes = list(roots)
    for process in processes:  # which grows
        processes += children.get(process, [])
    return processes


# The queue


def _wait(until_over: contextlib.ExitStack) -> _Held | None:
    """Wait for a slot, and lock it until the stack is closed; None when the machine is no longer divided."""
    place = slots.folder()
    with _ticket(place / slots.QUEUE) as ticket, _status() as show:
        skipped: set[Path] = set()
        first, first_since = None, 0.0  # the ticket whose owner leaves a free slot untaken, and since when
        while division := slots.read(place):
            files = [place / slots.slot_file(number) for number in range(len(division.slots))]
            ahead = [other for other in _before(ticket, place / slots.QUEUE) if other not in skipped]
            free = [number for number, file in enumerate(files) if not locks.is_locked(file)]
            if len(ahead) < len(free):
                for number in free:
                    if (lock := _try_to_lock(files[number], until_over)) is not None:
                        return _Held(division, number, lock)
            if not (free and ahead):
                first = None
            elif ahead[0] != first:
                first, first_since = ahead[0], time.monotonic()
            elif time.monotonic() - first_since > PATIENCE_S:
                skipped.add(ahead[0])
            show(describe(len(ahead) + 1, len(files), _mean_duration(place, division.limit_s)))
            time.sleep(min(MAX_POLL_S, POLL_S * (1 + len(ahead))))
    return None


def describe(place: int, count: int, duration: float | None) -> str:
    """Return a place in the queue for so many slots in words, with the time that it will take."""
    ending = "th" if 10 < place % 100 < 20 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    about = f", about {_rounded(place * duration / count)}" if duration else ""
    return f"{place}{ending} in the queue for a measuring slot{about}"


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{seconds / 60:.0f} min"


def _try_to_lock(file: Path, until_over: contextlib.ExitStack) -> int | None:
    """Lock a slot's file until the stack is closed; None when another was faster."""
    try:
        lock = locks.open_plain(file)
    except OSError as error:
        raise LabError(
            f"{file} can't be opened: {error.strerror}. Whoever runs the server divides its cores again."
        ) from error
    until_over.callback(os.close, lock)
    return lock if locks.try_lock(lock) else None


@contextlib.contextmanager
def _ticket(queue: Path) -> Iterator[int]:
    """Queue up: make a file that all can see, locked before it counts, and yield it; delete it afterwards."""
    name = secrets.token_hex(8)
    unlocked, ticket = queue / f".{name}", queue / name
    with contextlib.ExitStack() as until_over:
        try:
            opened = os.open(unlocked, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o400)
            until_over.callback(os.close, opened)
            for path in (unlocked, ticket):
                until_over.callback(path.unlink, missing_ok=True)
            os.fchmod(opened, 0o444)  # whatever the umask
            fcntl.flock(opened, fcntl.LOCK_EX)
            unlocked.rename(ticket)
        except OSError as error:
            raise LabError(
                f"cannot queue up for a measuring slot in {queue}: {error.strerror}. "
                "Whoever runs the server looks whose files are in it, or divides its cores again."
            ) from error
        yield opened


def _before(ticket: int, queue: Path) -> list[Path]:
    """Return the tickets before this one whose owners wait, in their order."""
    tickets = []
    for path in queue.glob("[!.]*"):
        with contextlib.suppress(FileNotFoundError):  # it has had its turn
            tickets.append((path.lstat().st_ctime_ns, path))
    mine = os.fstat(ticket).st_ctime_ns
    waiting = []
    for _, path in sorted(entry for entry in tickets if entry[0] < mine):
        if locks.is_locked(path):
            waiting.append(path)
        else:
            with contextlib.suppress(OSError):  # another user's
                path.unlink()  # of a process that was killed
    return waiting


def _remember(seconds: float) -> None:
    """Add a duration to those from which the others' waiting is estimated."""
    with contextlib.suppress(OSError):
        opened = os.open(slots.folder() / slots.DURATIONS, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.write(opened, b"%.1f\n" % seconds)
        finally:
            os.close(opened)


def _mean_duration(place: Path, limit: float) -> float | None:
    """Return the mean duration of the last measurements; None when none is known. Everybody can write that file."""
    durations = []
    with contextlib.suppress(OSError):
        opened = locks.open_plain(place / slots.DURATIONS)
        try:
            tail = os.pread(opened, TAIL_BYTES, max(0, os.fstat(opened).st_size - TAIL_BYTES))
        finally:
            os.close(opened)
        for line in tail.splitlines()[-REMEMBERED:]:
            with contextlib.suppress(ValueError):
                durations.append(float(line))
    plausible = [seconds for seconds in durations if 0 < seconds <= limit + GRACE_S]
    return statistics.fmean(plausible) if plausible else None


@contextlib.contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line in place of the one before, in a terminal and in a notebook."""
    notebook = "ipykernel" in sys.modules
    stream = sys.stdout if notebook else sys.stderr
    began, last = time.monotonic(), ""

    def show(text: str) -> None:
        nonlocal last
        if text != last and (notebook or stream.isatty()):
            stream.write(f"\r{text:<{STATUS_COLUMNS}}")
            stream.flush()
            last = text

    what = "Left the queue after"
    try:
        yield show
        what = "Waited"
    finally:
        if last:
            show(f"{what} {time.monotonic() - began:.0f} s{' for a measuring slot' if what == 'Waited' else ''}.")
            stream.write("\n")
            stream.flush()
