"""Contention: other work's use of the cores while something is measured.

`with watch("section 7") as others:` around what is timed looks before and after. What the cores did (/proc/stat), less
what this process and all under it did (/proc/PID/stat), is the work of others; what a hypervisor took away (steal)
counts with it. For how long a CPU quota held this process back, the control group tells.

These files are read here and not by psutil, which numbers CPUs by their order and not as the kernel does, and which is
not in every environment that measures.
"""

import contextlib
import math
import os
import time
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from labkit.system import lease
from labkit.system.machine import Machine, own_cgroups, this_machine

# The share of the measured cores from which figures are doubtful: a figure loses about as much, and the labs discuss
# differences from some 5% on.
BUSY_SHARE = 0.05
LIMITED_BY_CORES = "the cores were the limit, not the wire"  # where a testbed's wires were to be measured
BUSY_MARK = "⚠ busy"  # the mark behind a figure in a table
MAX_NAMES = 3  # names of processes that a message has at most
TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # the unit of /proc/stat and /proc/PID/stat


@dataclass
class Others:
    """Others' use of the cores while something was measured; filled in when the measurement is over.

    Attributes
    ----------
    where : str
        The name of the measurement, such as "section 7".
    again : str
        The way to measure it again.
    share : float or None
        The share of the cores, 0 to 1, that other processes and the hypervisor took; None when that is unknown.
    throttled : float
        The share of the time, 0 to 1, for which a CPU quota held this process back.
    by : tuple of str
        The names of those who took most, as far as they can be seen; of other users, no more than that it was they.
    busy : bool
        Whether figures measured meanwhile are doubtful.
    why : str
        The reason why the share is unknown.
    doubt : str
        The reason why the figures are the cores' and not those of what was to be measured, such as a testbed's wires
        (`labkit.testbed.fidelity`); mostly empty.
    """

    where: str = ""
    again: str = "measure again"
    share: float | None = None
    throttled: float = 0.0
    by: tuple[str, ...] = ()
    busy: bool = False
    why: str = "nobody watched"
    doubt: str = ""
    inside: list["Others"] = field(default_factory=list, repr=False)  # the findings of the watches inside
    capacity: float = field(default=0.0, repr=False)  # the CPU seconds available

    @property
    def note(self) -> str:
        """The note below a table with a figure measured meanwhile; empty when nothing disturbed it."""
        what = f"{self.where}: " if self.where else ""
        if self.doubt:
            return f"⚠ {what}{self._not_valid}"
        if self.busy:
            return f"⚠ {what}{self._taken} meanwhile. First {self.again} {self._when}, then make this table."
        return f"{what}{self._unknown}" if self.share is None else ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as `json.dumps` takes it."""
        return {
            "share": self.share,
            "throttled": self.throttled,
            "busy": self.busy,
            "why": self.why,
            "doubt": self.doubt,
        }

    def __str__(self) -> str:
        """Return it in one line, to be printed when the measurement is over."""
        if self.doubt:
            return f"⚠ {self._not_valid[0].upper()}{self._not_valid[1:]}"
        if self.share is None:
            return self._unknown
        if not self.busy:
            return f"Other work took {self.share:.0%} of the cores meanwhile."
        by = f" ({', '.join(self.by)})" if self.by else ""
        return f"⚠ Meanwhile, {self._taken}{by}. What was measured is doubtful: {self.again} {self._when}."

    @property
    def _not_valid(self) -> str:
        return f"not valid: {LIMITED_BY_CORES}, as {self.doubt}. Take fewer nodes or a slower wire."

    @property
    def _taken(self) -> str:
        others = f"other work took {self.share:.0%} of the cores"
        quota = f"the CPU quota held it back for {self.throttled:.0%} of the time"
        return " and ".join([others] * self._crowded + [quota] * (self.throttled > BUSY_SHARE))

    @property
    def _when(self) -> str:
        return "when the machine is quiet" if self._crowded else "with fewer threads"

    @property
    def _crowded(self) -> bool:
        return self.share is not None and self.share > BUSY_SHARE

    @property
    def _unknown(self) -> str:
        return f"whether other work had the cores meanwhile is not known: {self.why}."


_enclosing: ContextVar[Others | None] = ContextVar("enclosing", default=None)  # findings of the watch around this one


@contextlib.contextmanager
def watch(
    where: str = "",
    cpus: Collection[int] | None = None,
    also: Collection[int] = (),
    unknown: str = "",
    show: bool = True,
) -> Iterator[Others]:
    """Measure in the block: with a measuring slot, where there are any, and watching others' use of the cores.

    A cell of a lab that measures in its kernel has no other way to a slot (`labkit.system.lease`). Prints a line when
    others' use is much.

    Parameters
    ----------
    where, cpus, also, unknown
        As for `observe`.
    show : bool
        Whether to print that line.
    """
    with lease.take(also), observe(where, cpus, also, unknown) as others:
        yield others
    if show and others.busy:
        print(others, flush=True)


@contextlib.contextmanager
def observe(
    where: str = "",
    cpus: Collection[int] | None = None,
    also: Collection[int] = (),
    unknown: str = "",
    root: Path = Path("/"),
) -> Iterator[Others]:
    """Watch others' use of the cores while the block runs.

    When there are watches inside, their findings count: `run_ranks` has one, on the cores that its ranks are bound to.

    Parameters
    ----------
    where : str
        The name of the measurement, such as "section 7": the part to run again.
    cpus : collection of int, optional
        The CPUs that are measured on; by default all that this process may use.
    also : collection of int
        Processes that belong to the measurement without being under this one.
    unknown : str
        The reason why nothing can be known of the cores measured on, if there is one.
    root : Path
        Where proc/ and sys/ are; tests point it at synthetic trees.
    """
    others = _new(where)
    machine = this_machine(root, _allowed() if root == Path("/") else None)
    used = set(machine.cpus if cpus is None else cpus)
    with _gathering(others):
        # The processes are looked at outside of what is measured: thousands of them take a tenth of a second.
        before = _processes(root, {os.getpid(), *also})
        first = _cores(root, used)
        yield others
        last = _cores(root, used)
        after = _processes(root, {os.getpid(), *also}, before)
    if others.inside:
        _sum_up(others)
    elif unknown or first is None or last is None:
        others.why = unknown or "/proc/stat does not show these CPUs"
    elif os.getpid() not in before.ours & after.ours:
        others.why = "/proc does not show this process"
    else:
        _compare(others, machine, used, last.since(first), before, after)
    others.busy = others.busy or bool(others.doubt)
    _report_to_enclosing(others)


@contextlib.contextmanager
def combine(where: str = "") -> Iterator[Others]:
    """Combine the findings of the watches inside, and look at nothing itself: for blocks that cost next to nothing."""
    others = _new(where)
    with _gathering(others):
        yield others
    if others.inside:
        _sum_up(others)
        _report_to_enclosing(others)


def _new(where: str) -> Others:
    return Others(where, f"run {where} again") if where else Others()


@contextlib.contextmanager
def _gathering(others: Others) -> Iterator[None]:
    outer = _enclosing.set(others)
    try:
        yield
    finally:
        _enclosing.reset(outer)


def _report_to_enclosing(others: Others) -> None:
    if enclosing := _enclosing.get():
        enclosing.inside.append(others)


def _sum_up(others: Others) -> None:
    """Fill in the findings of the watches inside, each by its weight."""
    inside = others.inside
    others.doubt = next((finding.doubt for finding in inside if finding.doubt), "")
    others.busy = bool(others.doubt)
    if unknown := [finding for finding in inside if finding.share is None]:
        others.why = unknown[0].why
        return
    others.capacity = sum(finding.capacity for finding in inside)
    others.share = sum((finding.share or 0.0) * finding.capacity for finding in inside) / others.capacity
    others.throttled = sum(finding.throttled * finding.capacity for finding in inside) / others.capacity
    crowded = any(finding.busy for finding in inside) and max(others.share, others.throttled) > BUSY_SHARE
    others.busy = others.busy or crowded
    others.by = tuple(dict.fromkeys(name for finding in inside for name in finding.by))[:MAX_NAMES]
    others.why = ""


def _compare(
    others: Others, machine: Machine, used: set[int], elapsed: "_Cores", before: "_Processes", after: "_Processes"
) -> None:
    """Fill in others' use of these cores."""
    ours = after.seconds - before.seconds
    others_s = elapsed.worked - ours
    others.capacity = min(len(used), machine.quota or math.inf) * elapsed.clock
    # /proc/stat counts who is at work when the clock ticks. This is a sample; twice its standard deviation, at most,
    # and some ticks for what was counted just before or after:
    counting_error = max(math.sqrt(others.capacity * TICK_S), 4 * TICK_S)
    doubtful = max(counting_error, BUSY_SHARE * others.capacity)
    # A process's seconds may have the interrupts' in them, of its packets for one, which /proc/stat counts apart.
    at_the_most = others_s + elapsed.interrupts
    if at_the_most < -doubtful and used >= set(machine.cpus):
        if at_the_most < -ours / 2:  # as in a sandbox with a /proc of its own
            others.why = "/proc/stat does not count what this process does"
            return
        # Ticks miss ranks that work for microseconds at a time, so count the other processes that can be seen.
        others_s = sum(after.others_since(before).values()) + elapsed.stolen
    # Under a quota there are more CPUs than this process can fill, and what others do on the rest costs it nothing.
    others_s = max(0.0, others_s - (len(used) * elapsed.clock - others.capacity))
    others.share, others.why = min(1.0, others_s / others.capacity), ""
    others.throttled = elapsed.throttled / (elapsed.throttled + others.capacity)
    others.busy = others_s > doubtful or others.throttled > BUSY_SHARE
    if others.busy:
        took = after.others_since(before) | {"the hypervisor: steal": elapsed.stolen}
        most = sorted(took, key=took.__getitem__, reverse=True)[:MAX_NAMES]
        others.by = tuple(name for name in most if took[name] > BUSY_SHARE / MAX_NAMES * others.capacity)


def _allowed() -> set[int]:
    """Return the CPUs that this process may use; OpenMP may have pinned the calling thread to one of them."""
    cpus: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            cpus |= os.sched_getaffinity(int(thread.name))
    return cpus


class CpuTimes(NamedTuple):
    """The seconds that a CPU has spent so far, by its kinds of work: proc(5)."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float
    softirq: float
    steal: float


def cpu_times(root: Path = Path("/")) -> dict[int, CpuTimes]:
    """Return the times of each CPU, by the kernel's number; of none where /proc/stat doesn't show them."""
    seen = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/stat").read_text(encoding="utf-8").splitlines():
            name, *ticks = line.split() or [""]
            if name.startswith("cpu") and name != "cpu":
                counted = [TICK_S * int(count) for count in ticks[: len(CpuTimes._fields)]]
                seen[int(name[3:])] = CpuTimes(*counted, *[0.0] * (len(CpuTimes._fields) - len(counted)))
    return seen


class _Cores(NamedTuple):
    """Times of some CPUs in seconds: the clock's, working or stolen, of interrupts, stolen alone, held back."""

    clock: float
    worked: float
    interrupts: float
    stolen: float
    throttled: float

    def since(self, first: "_Cores") -> "_Cores":
        return _Cores(*(max(0.0, last - before) for last, before in zip(self, first, strict=True)))


def _cores(root: Path, used: set[int]) -> _Cores | None:
    """Return the times of some CPUs so far; None where they aren't shown.

    Interrupts are counted apart: nobody knows whose they are.
    """
    seen = cpu_times(root)
    if not used <= seen.keys():
        return None
    stolen = sum(seen[cpu].steal for cpu in used)
    worked = sum(seen[cpu].user + seen[cpu].nice + seen[cpu].system for cpu in used) + stolen
    interrupts = sum(seen[cpu].irq + seen[cpu].softirq for cpu in used)
    return _Cores(time.monotonic(), worked, interrupts, stolen, _throttled(root))


def _throttled(root: Path) -> float:
    """Return the seconds for which a quota has held CPUs back so far, of the control group held back longest."""
    longest = 0.0
    for group in own_cgroups(root):
        with contextlib.suppress(OSError):
            stat = dict(line.split() for line in (group / "cpu.stat").read_text(encoding="utf-8").splitlines())
            v2, v1 = int(stat.get("throttled_usec", 0)) / 1e6, int(stat.get("throttled_time", 0)) / 1e9
            longest = max(longest, v2, v1)
    return longest


class _Process(NamedTuple):
    parent: int
    name: str
    started: int
    seconds: float  # of CPU time
    of_ended: float  # the CPU time of children that it has waited for
    mine: bool  # whether it is this user's


class _Processes(NamedTuple):
    """All processes that can be seen, and which of them do what is measured."""

    every: dict[int, _Process]
    ours: set[int]

    @property
    def seconds(self) -> float:
        """Our CPU time; a child's passes to its parent when that has waited for it, so nothing is lost."""
        return sum(self.every[pid].seconds + self.every[pid].of_ended for pid in self.ours)

    def is_still(self, pid: int, before: _Process) -> bool:
        """Whether a process is still the one that had this number before."""
        return pid in self.every and self.every[pid].started == before.started

    def others_since(self, before: "_Processes") -> dict[str, float]:
        """Return the others' CPU time by name; other users are named as such."""
        took: dict[str, float] = {}
        for pid, process in self.every.items():
            # Interrupts are nobody's: those for the packets that the ranks send are among them.
            if pid not in self.ours and not process.name.startswith("ksoftirqd/"):
                name = process.name if process.mine else "other users"
                was = before.every.get(pid)
                had = was.seconds if was and self.is_still(pid, was) else 0.0
                took[name] = took.get(name, 0.0) + process.seconds - had
        return took


def _processes(root: Path, roots: set[int], before: _Processes | None = None) -> _Processes:
    """Return the processes; ours are the roots, all under them, and those of `before` that have lost their parent."""
    every = {}
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            # A name may have blanks and brackets, and any bytes.
            head, _, rest = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            fields = rest.split()  # those from the third on, of proc(5)
            user, system, user_of_ended, system_of_ended = (TICK_S * int(ticks) for ticks in fields[11:15])
            name, mine = head.partition("(")[2], folder.stat().st_uid == os.geteuid()
            every[int(folder.name)] = _Process(
                int(fields[1]), name, int(fields[19]), user + system, user_of_ended + system_of_ended, mine
            )
    seen = _Processes(every, {pid for pid in roots if pid in every})
    if before:
        seen.ours.update(pid for pid in before.ours if seen.is_still(pid, before.every[pid]))
    children: dict[int, list[int]] = {}
    for pid, process in every.items():
        children.setdefault(process.parent, []).append(pid)
    new = list(seen.ours)
    while new:
        new = [child for pid in new for child in children.get(pid, []) if child not in seen.ours]
        seen.ours.update(new)
    return seen
