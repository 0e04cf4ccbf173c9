"""Contention: other work's use of the cores during a measurement.

`with watch("section 7") as others:` around timed code reads counters before and after. Other work is the cores' busy
time (/proc/stat), including time that a hypervisor took away (steal), minus the time of this process and its
descendants (/proc/PID/stat). The control group reports for how long a CPU quota throttled this process.

This module reads these files itself: psutil numbers CPUs by their order, not as the kernel does.
"""

import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from labkit.system import cores
from labkit.system.machine import Machine, own_cgroups, this_machine

# The share of the measured cores above which figures are unreliable: a figure loses about as much, and the labs discuss
# differences from about 5% up.
BUSY_SHARE = 0.05
LIMITED_BY_CORES = "the cores were the limit, not the wire"  # when a testbed's wires were to be measured
BUSY_MARK = "⚠ busy"  # the mark after a figure in a table
MAX_NAMES = 3  # process names per message
TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # the unit of /proc/stat and /proc/PID/stat


@dataclass
class Contention:
    """Other work's use of the cores during a measurement; filled in when the measurement is over.

    Attributes
    ----------
    where : str
        The name of the measurement, such as "section 7".
    again : str
        How to repeat the measurement.
    share : float or None
        The share of the cores, 0 to 1, that other processes and the hypervisor took; None if unknown.
    throttled : float
        The share of the time, 0 to 1, for which a CPU quota throttled this process.
    by : tuple of str
        The visible processes that took most, by name; other users' processes are "other users".
    busy : bool
        Whether figures measured meanwhile are unreliable.
    why : str
        The reason why the share is unknown.
    doubt : str
        The reason why the cores, not the subject of the measurement (such as a testbed's wires,
        `labkit.testbed.fidelity`), limited the figures; usually empty.
    """

    where: str = ""
    again: str = "measure again"
    share: float | None = None
    throttled: float = 0.0
    by: tuple[str, ...] = ()
    busy: bool = False
    why: str = "it was not measured"
    doubt: str = ""
    inside: list["Contention"] = field(default_factory=list, repr=False)  # from nested watches
    capacity: float = field(default=0.0, repr=False)  # the CPU seconds available

    @property
    def note(self) -> str:
        """The note below a table with a figure measured meanwhile; empty if nothing interfered."""
        prefix = f"{self.where}: " if self.where else ""
        if self.doubt:
            return f"⚠ {prefix}{self._not_valid}"
        if self.busy:
            return f"⚠ {prefix}{self._taken} meanwhile. First {self.again} {self._when}, then make this table."
        return f"{prefix}{self._unknown}" if self.share is None else ""

    def as_dict(self) -> dict[str, Any]:
        """Return it in a form that `json.dumps` accepts."""
        return {name: getattr(self, name) for name in ("share", "throttled", "busy", "why", "doubt")}

    def __str__(self) -> str:
        """Return it in one line, to print when the measurement is over."""
        if self.doubt:
            return f"⚠ {self._not_valid[0].upper()}{self._not_valid[1:]}"
        if self.share is None:
            return self._unknown
        if not self.busy:
            return f"Other work took {self.share:.0%} of the cores meanwhile."
        by = f" ({', '.join(self.by)})" if self.by else ""
        return f"⚠ Meanwhile, {self._taken}{by}. These figures are unreliable: {self.again} {self._when}."

    @property
    def _not_valid(self) -> str:
        return f"not valid: {LIMITED_BY_CORES}, as {self.doubt}. Use fewer nodes or slower wires."

    @property
    def _taken(self) -> str:
        share = f"other work took {self.share:.0%} of the cores"
        quota = f"the CPU quota throttled it for {self.throttled:.0%} of the time"
        return " and ".join([share] * self._crowded + [quota] * (self.throttled > BUSY_SHARE))

    @property
    def _when(self) -> str:
        return "when the machine is quiet" if self._crowded else "with fewer threads"

    @property
    def _crowded(self) -> bool:
        return self.share is not None and self.share > BUSY_SHARE

    @property
    def _unknown(self) -> str:
        return f"whether other work used the cores meanwhile is unknown: {self.why}."


_enclosing: ContextVar[Contention | None] = ContextVar("enclosing", default=None)  # of the watch around this one


@contextlib.contextmanager
def watch(where: str = "", show: bool = True) -> Iterator[Contention]:
    """Measure in the block: hold a measuring slot, if there are any, and watch for other work on the cores.

    This is how lab cells that measure in the kernel get a slot (`labkit.system.cores`). Print a line if other work is
    significant.

    Parameters
    ----------
    where : str
        As for `observe`.
    show : bool
        Whether to print that line.
    """
    with cores.reserve(), observe(where) as others:
        yield others
    if show and others.busy:
        print(others, flush=True)


@contextlib.contextmanager
def observe(
    where: str = "", cpus: Collection[int] | None = None, unknown: str = "", root: Path = Path("/")
) -> Iterator[Contention]:
    """Watch for other work on the cores while the block runs.

    Nested watches take precedence: `run_ranks` has one, on the cores that its ranks are bound to.

    Parameters
    ----------
    where : str
        The name of the measurement, such as "section 7": the part to run again.
    cpus : collection of int, optional
        The CPUs of the measurement; by default all that this process may use.
    unknown : str
        The reason why the cores of the measurement cannot be watched, if any.
    root : Path
        Where proc/ and sys/ are; tests point it at synthetic trees.
    """
    others = Contention(where, f"run {where} again") if where else Contention()
    machine = this_machine(root, _allowed() if root == Path("/") else None)
    used = set(machine.cpus if cpus is None else cpus)
    outer = _enclosing.set(others)
    try:
        # Processes are read outside the measurement: thousands of them take a tenth of a second.
        before = _processes(root)
        first = _cores(root, used)
        yield others
        last = _cores(root, used)
        after = _processes(root, before)
    finally:
        _enclosing.reset(outer)
    if others.inside:
        _sum_up(others)
    elif unknown or first is None or last is None:
        others.why = unknown or "/proc/stat does not show these CPUs"
    elif all(pid != os.getpid() for pid, _ in before.ours & after.ours):
        others.why = "/proc does not show this process"
    else:
        _compare(others, machine, used, last.since(first), before, after)
    others.busy = others.busy or bool(others.doubt)
    _report_to_enclosing(others)


def _report_to_enclosing(others: Contention) -> None:
    if enclosing := _enclosing.get():
        enclosing.inside.append(others)


def _sum_up(others: Contention) -> None:
    """Fill in the weighted results of the nested watches."""
    inside = others.inside
    others.doubt = next((nested.doubt for nested in inside if nested.doubt), "")
    others.busy = bool(others.doubt)
    if unknown := [nested for nested in inside if nested.share is None]:
        others.why = unknown[0].why
        return
    others.capacity = sum(nested.capacity for nested in inside)
    others.share = sum((nested.share or 0.0) * nested.capacity for nested in inside) / others.capacity
    others.throttled = sum(nested.throttled * nested.capacity for nested in inside) / others.capacity
    crowded = any(nested.busy for nested in inside) and max(others.share, others.throttled) > BUSY_SHARE
    others.busy = others.busy or crowded
    others.by = tuple(dict.fromkeys(name for nested in inside for name in nested.by))[:MAX_NAMES]
    others.why = ""


def _compare(
    others: Contention, machine: Machine, used: set[int], elapsed: "_Cores", before: "_Processes", after: "_Processes"
) -> None:
    """Fill in other work's use of these cores."""
    ours = after.seconds - before.seconds
    others_s = elapsed.worked - ours
    others.capacity = min(len(used), machine.quota or math.inf) * elapsed.clock
    # /proc/stat counts what runs at each clock tick: a sample. The error is at most twice its standard deviation, plus
    # some ticks that were counted just before or after.
    counting_error = max(math.sqrt(others.capacity * TICK_S), 4 * TICK_S)
    threshold = max(counting_error, BUSY_SHARE * others.capacity)
    # A process's seconds may include interrupts, such as for its packets, which /proc/stat counts separately.
    upper_bound_s = others_s + elapsed.interrupts
    if upper_bound_s < -threshold and used >= set(machine.cpus):
        if upper_bound_s < -ours / 2:  # as in a sandbox with its own /proc
            others.why = "/proc/stat does not count this process"
            return
        # Ticks miss ranks that work for microseconds at a time, so count the other visible processes instead.
        others_s = sum(after.others_since(before).values()) + elapsed.stolen
    # Under a quota there are more CPUs than this process can fill; other work on the rest costs it nothing.
    others_s = max(0.0, others_s - (len(used) * elapsed.clock - others.capacity))
    others.share, others.why = min(1.0, others_s / others.capacity), ""
    others.throttled = elapsed.throttled / (elapsed.throttled + others.capacity)
    others.busy = others_s > threshold or others.throttled > BUSY_SHARE
    if others.busy:
        seconds = after.others_since(before) | {"the hypervisor: steal": elapsed.stolen}
        top = sorted(seconds, key=seconds.__getitem__, reverse=True)[:MAX_NAMES]
        others.by = tuple(name for name in top if seconds[name] > BUSY_SHARE / MAX_NAMES * others.capacity)


def _allowed() -> set[int]:
    """Return the CPUs that this process may use; OpenMP may have pinned the calling thread to one of them."""
    cpus: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            cpus |= os.sched_getaffinity(int(thread.name))
    return cpus


class CpuTimes(NamedTuple):
    """The seconds that a CPU has spent so far, by type of work: proc(5)."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float
    softirq: float
    steal: float


def cpu_times(root: Path = Path("/")) -> dict[int, CpuTimes]:
    """Return the times of each CPU, by the kernel's number; empty if /proc/stat doesn't show them."""
    times = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/stat").read_text(encoding="utf-8").splitlines():
            name, *ticks = line.split() or [""]
            if name.startswith("cpu") and name != "cpu":
                seconds = [TICK_S * int(count) for count in ticks[: len(CpuTimes._fields)]]
                times[int(name[3:])] = CpuTimes(*seconds, *[0.0] * (len(CpuTimes._fields) - len(seconds)))
    return times


class _Cores(NamedTuple):
    """Times of some CPUs in seconds: wall clock, busy or stolen, interrupts, stolen, throttled."""

    clock: float
    worked: float
    interrupts: float
    stolen: float
    throttled: float

    def since(self, first: "_Cores") -> "_Cores":
        return _Cores(*(max(0.0, last - before) for last, before in zip(self, first, strict=True)))


def _cores(root: Path, used: set[int]) -> _Cores | None:
    """Return the times of some CPUs so far; None if they aren't shown.

    Interrupts are counted separately, as they cannot be attributed.
    """
    times = cpu_times(root)
    if not used <= times.keys():
        return None
    stolen = sum(times[cpu].steal for cpu in used)
    worked = sum(times[cpu].user + times[cpu].nice + times[cpu].system for cpu in used) + stolen
    interrupts = sum(times[cpu].irq + times[cpu].softirq for cpu in used)
    return _Cores(time.monotonic(), worked, interrupts, stolen, _throttled(root))


def _throttled(root: Path) -> float:
    """Return the seconds for which a quota has throttled this process so far, in its most throttled control group."""
    longest = 0.0
    for group in own_cgroups(root):
        with contextlib.suppress(OSError):
            stat = dict(line.split() for line in (group / "cpu.stat").read_text(encoding="utf-8").splitlines())
            v2, v1 = int(stat.get("throttled_usec", 0)) / 1e6, int(stat.get("throttled_time", 0)) / 1e9
            longest = max(longest, v2, v1)
    return longest


_Key = tuple[int, str]  # a process: its id, and when it started, as ids are used again


class _Process(NamedTuple):
    parent: int
    name: str  # "other users" for their processes
    seconds: float  # of CPU time
    of_ended: float  # CPU time of children that it has waited for


class _Processes(NamedTuple):
    """All visible processes, and which of them belong to the measurement."""

    visible: dict[_Key, _Process]
    ours: set[_Key]

    @property
    def seconds(self) -> float:
        """Our CPU time; an ended child's time passes to the parent that has waited for it, so none is lost."""
        return sum(self.visible[key].seconds + self.visible[key].of_ended for key in self.ours)

    def others_since(self, before: "_Processes") -> dict[str, float]:
        """Return the CPU time of other processes by name."""
        total: dict[str, float] = defaultdict(float)
        for key in self.visible.keys() - self.ours:
            earlier = before.visible.get(key)
            total[self.visible[key].name] += self.visible[key].seconds - (earlier.seconds if earlier else 0.0)
        return total


def _processes(root: Path, before: _Processes | None = None) -> _Processes:
    """Return the processes; ours are this one, its descendants, and any of ours in `before` since orphaned."""
    visible = {}
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            # A name may have spaces, brackets and any bytes.
            head, _, rest = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            fields, name = rest.split(), head.partition("(")[2]  # the fields from the third on, in proc(5)
            if name.startswith("ksoftirqd/"):  # interrupts cannot be attributed: some are for packets of the ranks
                continue
            name = name if folder.stat().st_uid == os.geteuid() else "other users"
            user, system, *of_ended = (TICK_S * int(ticks) for ticks in fields[11:15])
            visible[int(folder.name), fields[19]] = _Process(int(fields[1]), name, user + system, sum(of_ended))
    ours = {key for key in visible if key[0] == os.getpid() or (before and key in before.ours)}
    children: dict[int, list[_Key]] = {}
    for key, process in visible.items():
        children.setdefault(process.parent, []).append(key)
    new = list(ours)
    while new:
        new = [child for pid, _ in new for child in children.get(pid, []) if child not in ours]
        ours.update(new)
    return _Processes(visible, ours)
