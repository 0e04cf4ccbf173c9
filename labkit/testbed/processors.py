"""Emulated processors, and the fault that a case hides in a cluster: lab 08.

Where nodes share cores, real computing would depend on how many. An emulated processor computes by sleeping: for as
long as a step takes on a node, on any machine.
"""

import random
import time
from collections.abc import Callable
from typing import NamedTuple

TRAINERS = (1, 2, 3)  # the nodes that train; node 4 is the storage
STORAGE, WIRE, NODE, CPUS, NONE = "storage's wire", "node's wire", "slow node", "too few CPUs", "no fault"
SLOW_NODE, ONE_CPU = 3.0, 2.0  # how much longer computing takes


class Fault(NamedTuple):
    """The kind of a fault, and the node that has it; 0 where none of the nodes that train has it."""

    kind: str
    node: int = 0

    def __str__(self) -> str:
        """Return the name that students use."""
        return {WIRE: f"node {self.node}'s wire", NODE: f"slow node {self.node}"}.get(self.kind, self.kind)


def draw(case: int) -> Fault:
    """Return the fault of a case, by its number."""
    rng = random.Random(case)
    kind, node = rng.choice((STORAGE, WIRE, NODE, CPUS, NONE)), rng.choice(TRAINERS)
    return Fault(kind, node if kind in (WIRE, NODE) else 0)


def processor(case: int, node: int, cpus: int = 1) -> Callable[[float], None]:
    """Return a node's processor: a function that computes, for these seconds on a healthy node."""
    fault, slower = draw(case), 1.0
    if fault == Fault(NODE, node):
        slower = SLOW_NODE
    if fault.kind == CPUS and cpus < 2:
        slower = ONE_CPU
    return lambda seconds: time.sleep(slower * seconds)
