"""Fidelity: whether wires were the limit of what ran on a testbed, or this machine's cores.

Nodes that are more than the cores share them. There, ranks that wait for a wire sleep, so cores that are mostly in use
are the limit. While something runs, `watch` looks at how much these cores were in use (/proc/stat, proc(5)).
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.system.load import CpuTimes, cpu_times
from labkit.testbed import Testbed, traffic

# The share from which a figure is that of the cores. On an idle machine with two cores, with all-reduces at 1 to 15%
# above theory (4 and 8 nodes, 100 Mbit/s; two racks), 42 to 53% of the cores were in use; with 22 to 66% above theory
# (4 and 8 nodes, 1 Gbit/s) 64 and 66%; with 84 to 91% above theory (4 nodes, 5 Gbit/s) 67% (docs/wires.md).
MAX_USED = 0.6
SAMPLE_S = 0.25  # between looks at whether the wires are used by now
IN_USE_BYTES = 6_000  # sent by all nodes, times their number squared: starting ranks, and their imports, take less


@dataclass
class Fidelity:
    """What was seen while something ran on a testbed; filled in when that is over.

    Attributes
    ----------
    used : float
        The share of the time since the wires were first used for which the nodes' cores were in use, by any program,
        where nodes share them. 0 where each node has cores of its own: there, a real node would use them as well.
    """

    used: float = 0.0

    @property
    def doubt(self) -> str:
        """The reason why figures are the cores' and not the wires'; empty when they are valid."""
        return f"the cores that nodes share were in use for {self.used:.0%} of the time" * (self.used > MAX_USED)


@contextlib.contextmanager
def watch(testbed: Testbed) -> Iterator[Fidelity]:
    """Watch the cores of a testbed's nodes while the block runs."""
    fidelity = Fidelity()
    count = Counter(cpu for node in testbed.nodes for cpu in node.cpus)
    if not count or max(count.values()) == 1:
        yield fidelity
        return
    first: list[tuple[float, dict[int, CpuTimes]]] = []
    over, already_sent = threading.Event(), _bytes_sent(testbed)

    def wait_for_traffic() -> None:
        while not over.wait(SAMPLE_S):
            if _bytes_sent(testbed) - already_sent > IN_USE_BYTES * len(testbed.nodes) ** 2:
                first.append((time.monotonic(), cpu_times()))
                return

    thread = threading.Thread(target=wait_for_traffic, daemon=True)
    thread.start()
    try:
        yield fidelity
    finally:
        over.set()
        thread.join()
        for began, before in first:
            fidelity.used = _used(before, cpu_times(), count, time.monotonic() - began)


def _used(before: dict[int, CpuTimes], after: dict[int, CpuTimes], cpus: Counter[int], seconds: float) -> float:
    """Return the share of the time for which these CPUs were in use."""
    idle = [
        after[cpu].idle + after[cpu].iowait - before[cpu].idle - before[cpu].iowait
        for cpu in cpus
        if cpu in before and cpu in after
    ]
    return max(0.0, 1 - sum(idle) / (seconds * len(idle))) if idle else 0.0


def _bytes_sent(testbed: Testbed) -> int:
    """Return the bytes that the nodes have sent."""
    sent = 0
    for node in testbed.nodes:
        with contextlib.suppress(OSError, KeyError):  # it is gone
            sent += traffic(node.pid, testbed.interface).sent
    return sent
