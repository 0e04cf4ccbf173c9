"""Fidelity: whether a testbed's wires limited a run, or this machine's cores did.

With more nodes than cores, nodes share cores. Ranks then sleep while they wait for a wire, so if the cores are mostly
in use, they are the limit. `watch` measures their use during a run (/proc/stat, proc(5)).
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator

from labkit.system.load import Contention, CpuTimes, cpu_times
from labkit.testbed import Testbed, traffic

# The share above which the cores are the limit. On an idle machine with two cores, with all-reduces at 1 to 15% above
# theory (4 and 8 nodes, 100 Mbit/s; two racks), 42 to 53% of the cores were in use; with 22 to 66% above theory
# (4 and 8 nodes, 1 Gbit/s) 64 and 66%; with 84 to 91% above theory (4 nodes, 5 Gbit/s) 67% (docs/deploy/wires.md).
MAX_USED = 0.6
SAMPLE_S, MIN_USE_S = 0.1, 0.5  # between checks for traffic on the wires; starting ranks use them for less
IN_USE_BYTES = 6_000  # sent by all nodes, times their number squared: starting ranks and their imports need less


@contextlib.contextmanager
def watch(testbed: Testbed | None, others: Contention) -> Iterator[None]:
    """Watch the cores of a testbed's nodes, if any, while the block runs; doubt the figures if they are the limit.

    What counts is their use by any program from the first use of the wires to the last: ranks that start or end need
    cores, but no wires. A node with its own cores uses them as a real node would. A brief use of the wires can't tell.
    """
    count = Counter(cpu for node in testbed.nodes for cpu in node.cpus) if testbed else Counter[int]()
    if not testbed or not count or max(count.values()) == 1:
        yield
        return
    in_use: list[tuple[float, dict[int, CpuTimes]]] = []
    over, counted = threading.Event(), _bytes_sent(testbed)

    def watch_traffic() -> None:
        nonlocal counted
        while not over.wait(SAMPLE_S):
            now_sent = _bytes_sent(testbed)
            if now_sent - counted > IN_USE_BYTES * (1 if in_use else len(testbed.nodes) ** 2):
                in_use[1:] = [(time.monotonic(), cpu_times())]
            counted = now_sent if in_use else counted

    thread = threading.Thread(target=watch_traffic, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if len(in_use) > 1 and in_use[1][0] - in_use[0][0] >= MIN_USE_S:
            (began, before), (ended, after) = in_use
            if (used := _used(before, after, count, ended - began)) > MAX_USED:
                others.doubt = f"the cores that nodes share were in use for {used:.0%} of the time"


def _used(before: dict[int, CpuTimes], after: dict[int, CpuTimes], cpus: Counter[int], seconds: float) -> float:
    """Return the share of the time that these CPUs were in use."""
    idle = [
        after[cpu].idle + after[cpu].iowait - before[cpu].idle - before[cpu].iowait
        for cpu in cpus
        if cpu in before and cpu in after
    ]
    return max(0.0, 1 - sum(idle) / (seconds * len(idle))) if idle else 0.0


def _bytes_sent(testbed: Testbed) -> int:
    """Return the number of bytes that the nodes have sent."""
    sent = 0
    for node in testbed.nodes:
        with contextlib.suppress(OSError, KeyError):  # the node has ended
            sent += traffic(node.pid, testbed.interface).sent
    return sent
