"""Fidelity: whether wires were the limit of what ran on a testbed, or this machine's cores.

Nodes that are more than the cores take turns on them, and the kernel's passing on of packets takes its part. While
something runs, `watch` looks how long its threads waited for a core (/proc/PID/task/TID/schedstat, proc(5)), what the
cores did for packets (softirq in /proc/stat), and how many packets were lost (TCP's counters, /proc/PID/net/snmp).
"""

import contextlib
import copy
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from labkit.system.load import CpuTimes, cpu_times
from labkit.testbed import Testbed, traffic
from labkit.testbed.wiring import Node

# The shares above which the cores limited a figure; tests/benchmarks/wire_accuracy.py prints them with its errors.
# On an idle machine with two cores, with all-reduces at 1 to 15% above theory (4 and 8 nodes, 100 Mbit/s), nodes waited
# for 17 to 34% and used 42 to 51% of the cores; with 26 to 66% (8 nodes, 1 Gbit/s) for 42% and used 66%; with 84 to 91%
# (4 nodes, 5 Gbit/s) for 30% and used 67% (docs/wires.md).
MAX_WAITED, MAX_USED, MAX_PACKETS = 0.4, 0.6, 0.35
SAMPLE_S = 0.25  # between looks at the processes
IN_USE_BYTES = 4_000  # sent by a node: until then nothing is, but what finds out where others are


@dataclass
class Fidelity:
    """What was seen while something ran on a testbed; filled in when that is over.

    Attributes
    ----------
    waited : float
        The share of the time since the wires were first used, for which the threads of a node that shares its cores
        with others waited for one, on the node that waited longest; beyond 1 when several threads did. 0 where each
        node has cores of its own: there, threads of a real node would wait as well.
    packets : float
        The share of the nodes' cores that the kernel spent on passing packets on, in the same time.
    used : float
        The share of the same time for which the nodes' cores were in use, by whoever it was, where nodes share them:
        ranks that wait sleep there. 0 where each node has cores of its own.
    lost : float
        The share of TCP's segments that were sent again, as a wire's queue was full. Real switches have full queues
        too: it makes no figure doubtful.
    """

    waited: float = 0.0
    packets: float = 0.0
    used: float = 0.0
    lost: float = 0.0

    @property
    def doubt(self) -> str:
        """The reason why figures are the cores' and not the wires'; empty when they are valid."""
        waited = [f"nodes waited {self.waited:.0%} of the time for a core"] * (self.waited > MAX_WAITED)
        used = [f"the cores that nodes share were in use for {self.used:.0%} of the time"] * (self.used > MAX_USED)
        packets = [f"packets took {self.packets:.0%} of the cores"] * (self.packets > MAX_PACKETS)
        return " and ".join(waited + used + packets)


@contextlib.contextmanager
def watch(testbed: Testbed) -> Iterator[Fidelity]:
    """Watch the cores of a testbed's nodes while the block runs."""
    fidelity, over = Fidelity(), threading.Event()
    sampler, segments = _Sampler(testbed), _segments(testbed)
    thread = threading.Thread(target=sampler.run, args=(over,), daemon=True)
    thread.start()
    try:
        yield fidelity
    finally:
        over.set()
        thread.join()
        fidelity.waited, fidelity.packets, fidelity.used = sampler.shares()
        sent, again = np.array(_segments(testbed)) - segments
        fidelity.lost = float(again / sent) if sent else 0.0


class _Seen(NamedTuple):
    """What a look has found: when, what each core has done, and how long each node's threads have waited for one."""

    time: float
    cores: dict[int, CpuTimes]
    waits: dict[int, dict[int, int]]  # nanoseconds by node's process, and by thread


class _Sampler:
    """Looks at the nodes' threads again and again; what they did before the wires were used does not count."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._cpus = Counter(cpu for node in testbed.nodes for cpu in node.cpus)
        sharing = [node for node in testbed.nodes if any(self._cpus[cpu] > 1 for cpu in node.cpus)]
        self._nodes = {_namespace(node.pid): node for node in sharing}
        self._node_of: dict[int, Node | None] = {}  # of each process that was seen; none for those of other namespaces
        self._waits: dict[int, dict[int, int]] = {node.pid: {} for node in sharing}
        self._sent = self._bytes_sent()
        self._first: _Seen | None = None
        self._last: _Seen | None = None

    def run(self, over: threading.Event) -> None:
        """Look until it is over."""
        while not over.wait(SAMPLE_S):
            self.look()

    def shares(self) -> tuple[float, float, float]:
        """Return the shares of the time: waited by the node that waited longest, cores for packets, cores in use."""
        if not self._first or not self._last or self._last.time == self._first.time:
            return 0.0, 0.0, 0.0
        seconds = self._last.time - self._first.time
        waits = [
            sum(wait - self._first.waits[node].get(thread, 0) for thread, wait in threads.items())
            for node, threads in self._last.waits.items()
        ]
        first, last = self._first.cores, self._last.cores
        known = [cpu for cpu in self._cpus if cpu in first and cpu in last]
        every = seconds * max(len(known), 1)
        packets = sum(last[cpu].softirq - first[cpu].softirq for cpu in known)
        idle = sum(last[cpu].idle + last[cpu].iowait - first[cpu].idle - first[cpu].iowait for cpu in known)
        used = max(0.0, 1 - idle / every) if self._nodes and known else 0.0
        return max(waits, default=0) / 1e9 / seconds, packets / every, used

    def look(self) -> None:
        """See what there is, and whether the wires are used by now."""
        if self._nodes:
            self._look_at_threads()
        self._last = _Seen(time.monotonic(), cpu_times(), self._waits)
        if not self._first and self._bytes_sent() - self._sent > IN_USE_BYTES:
            self._first = self._last._replace(waits=copy.deepcopy(self._waits))

    def _look_at_threads(self) -> None:
        """Read the waits of all threads on the nodes that share cores."""
        for pid in (int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
            if pid not in self._node_of:
                self._node_of[pid] = self._nodes.get(_namespace(pid))
            if node := self._node_of[pid]:
                self._look_at(pid, self._waits[node.pid])

    def _bytes_sent(self) -> int:
        """Return the bytes that the nodes have sent."""
        sent = 0
        for node in self._testbed.nodes:
            with contextlib.suppress(OSError, KeyError):  # it is gone
                sent += traffic(node.pid, self._testbed.interface).sent
        return sent

    @staticmethod
    def _look_at(pid: int, waits: dict[int, int]) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                waits[int(thread.name)] = int((thread / "schedstat").read_text().split()[1])


def _segments(testbed: Testbed) -> tuple[int, int]:
    """Return how many segments the nodes' TCP has sent, and how many of them again."""
    sent = again = 0
    for node in testbed.nodes:
        with contextlib.suppress(OSError):  # it is gone
            lines = (line.split() for line in Path(f"/proc/{node.pid}/net/snmp").read_text().splitlines())
            names, values = (words for words in lines if words[0] == "Tcp:")
            counters = dict(zip(names, values, strict=True))
            again += int(counters["RetransSegs"])
            sent += int(counters["OutSegs"]) + int(counters["RetransSegs"])  # OutSegs is without those (RFC 4022)
    return sent, again


def _namespace(pid: int) -> int:
    """Return the number of a process's network namespace; 0 when it has ended, or is another user's."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return 0
