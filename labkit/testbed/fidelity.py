"""Fidelity: whether wires were the limit of what ran on a testbed, or this machine's cores.

Nodes that are more than the cores take turns on them, and the kernel's passing on of packets takes its part. While
something runs, `watch` looks how long its threads waited for a core (/proc/PID/task/TID/schedstat, proc(5)), and what
the cores did for packets (softirq in /proc/stat).
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.system.load import cpu_times
from labkit.testbed.testbed import Node, Testbed

# The shares from which a figure is that of the cores. `lab network accuracy` shows both beside the errors of transfers:
# on an idle machine with two cores, 4 nodes waited for 26 to 33% of the time, their ranks' start included, and 8 for 44
# to 46%, where all-reduces took 37 and 70% too long (docs/wires.md).
MAX_WAITED, MAX_PACKETS = 0.4, 0.35
SAMPLE_S = 0.25  # between looks at the processes


@dataclass
class Fidelity:
    """What was seen while something ran on a testbed; filled in when that is over.

    Attributes
    ----------
    waited : float
        The share of the time, for which the threads of a node that shares its cores with others waited for one, on the
        node that waited longest; beyond 1 when several threads did. 0 where each node has cores of its own: there,
        threads of a real node would wait as well.
    packets : float
        The share of the nodes' cores that the kernel spent on passing packets on.
    """

    waited: float = 0.0
    packets: float = 0.0

    @property
    def doubt(self) -> str:
        """The reason why figures are the cores' and not the wires'; empty when they are valid."""
        waited = [f"nodes waited {self.waited:.0%} of the time for a core"] * (self.waited > MAX_WAITED)
        packets = [f"packets took {self.packets:.0%} of the cores"] * (self.packets > MAX_PACKETS)
        return " and ".join(waited + packets)


@contextlib.contextmanager
def watch(testbed: Testbed) -> Iterator[Fidelity]:
    """Watch the cores of a testbed's nodes while the block runs."""
    fidelity, over = Fidelity(), threading.Event()
    sampler = _Sampler(testbed)
    thread = threading.Thread(target=sampler.run, args=(over,), daemon=True)
    cpus = {cpu for node in testbed.nodes for cpu in node.cpus}
    first, start = cpu_times(), time.monotonic()
    thread.start()
    try:
        yield fidelity
    finally:
        over.set()
        thread.join()
        seconds, last = time.monotonic() - start, cpu_times()
        seen = [last[cpu].softirq - first[cpu].softirq for cpu in cpus if cpu in first and cpu in last]
        fidelity.packets = sum(seen) / (seconds * len(seen)) if seen else 0.0
        fidelity.waited = sampler.longest_wait / seconds


class _Sampler:
    """Adds up, by node, how long the threads of its processes have waited for a core."""

    def __init__(self, testbed: Testbed) -> None:
        shared = Counter(cpu for node in testbed.nodes for cpu in node.cpus)
        sharing = [node for node in testbed.nodes if any(shared[cpu] > 1 for cpu in node.cpus)]
        self._nodes = {_namespace(node.pid): node for node in sharing}
        self._node_of: dict[int, Node | None] = {}  # of each process that was seen; none for those of other namespaces
        self._waited: dict[int, dict[int, int]] = {
            node.pid: {} for node in sharing
        }  # by node's process, then by thread

    def run(self, over: threading.Event) -> None:
        """Look at all threads again and again until it is over."""
        while self._nodes and not over.wait(SAMPLE_S):
            self.look()

    @property
    def longest_wait(self) -> float:
        """The seconds that the threads of a node have waited, of the node whose did longest."""
        return max((sum(threads.values()) for threads in self._waited.values()), default=0) / 1e9

    def look(self) -> None:
        """Read the waits of all threads on the nodes."""
        for pid in (int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
            if pid not in self._node_of:
                self._node_of[pid] = self._nodes.get(_namespace(pid))
            if node := self._node_of[pid]:
                self._look_at(pid, self._waited[node.pid])

    @staticmethod
    def _look_at(pid: int, waited: dict[int, int]) -> None:
        with contextlib.suppress(OSError):  # it has just ended
            for thread in Path(f"/proc/{pid}/task").iterdir():
                waited[int(thread.name)] = int((thread / "schedstat").read_text().split()[1])


def _namespace(pid: int) -> int:
    """Return the number of a process's network namespace; 0 when it has ended, or is another user's."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return 0
