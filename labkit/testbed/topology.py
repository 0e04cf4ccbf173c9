"""The topology of a testbed: the racks, their nodes, the rate of each cable, and the queues of the switches.

Nodes are at one switch, the core, or in racks. Each rack has its own switch, with a cable to the core: its uplink,
shared by all traffic out of the rack or into it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

from labkit.system.arguments import as_integer
from labkit.system.errors import LabError
from labkit.testbed.units import parse_rate, show_rate

MAX_NODES = 64
MIN_QUEUE_BYTES, MAX_QUEUE_BYTES = 3_000, 100_000_000
CORE = "switch"  # the name of the core switch


@dataclass(frozen=True)
class Topology:
    """Nodes and racks.

    Attributes
    ----------
    rate : float
        The rate of each node's wire in bit/s, in each direction.
    racks : tuple of tuple of int
        The numbers of each rack's nodes; one rack means that all nodes are at the core.
    uplink : float or None
        The rate of each rack's uplink; None with one rack.
    wires : mapping of int to float
        The rates of the nodes whose wires have another rate.
    queue : int or None
        The bytes that may wait at a switch for a node's wire before packets are dropped; None for as many as the wire
        carries in `wiring.QUEUE_S`.
    """

    rate: float
    racks: tuple[tuple[int, ...], ...]
    uplink: float | None = None
    wires: Mapping[int, float] = field(default_factory=dict)
    queue: int | None = None

    @classmethod
    def of(
        cls,
        nodes: int,
        rate: float | str,
        racks: int = 1,
        uplink: float | str | None = None,
        wires: Mapping[int, float | str] | None = None,
        queue: int | None = None,
    ) -> Self:
        """Return the topology for the arguments of `Testbed`.

        Raises
        ------
        LabError
            If the arguments are invalid.
        """
        nodes = _check_count("nodes", nodes, MAX_NODES)
        racks = _check_count("racks", racks, nodes)
        if racks > 1 and uplink is None:
            raise LabError("racks are connected by uplinks: set the uplink's rate too, such as '500 Mbit/s'.")
        if racks == 1 and uplink is not None:
            raise LabError("an uplink connects a rack to the core switch: set the number of racks too, 2 or more.")
        others = {_check_count("the node of a wire", node, nodes): parse_rate(of) for node, of in (wires or {}).items()}
        if queue is not None and not MIN_QUEUE_BYTES <= (as_integer(queue) or 0) <= MAX_QUEUE_BYTES:
            limits = f"{MIN_QUEUE_BYTES:,} to {MAX_QUEUE_BYTES:,}"
            raise LabError(f"a queue must be an integer of bytes from {limits}, not {queue!r}.")
        return cls(
            parse_rate(rate), _split(nodes, racks), None if uplink is None else parse_rate(uplink), others, queue
        )

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(map(len, self.racks))

    @property
    def slowest(self) -> float:
        """The rate of the slowest cable."""
        return min(self.rate, self.uplink or self.rate, *self.wires.values())

    def rack(self, node: int) -> int:
        """Return the number of a node's rack, counted from 1."""
        return next(number for number, nodes in enumerate(self.racks, start=1) if node in nodes)

    def switch(self, node: int) -> str:
        """Return the name of the switch at a node's wire."""
        return CORE if self.uplink is None else f"rack{self.rack(node)}"

    def wire(self, node: int) -> float:
        """Return the rate of a node's wire in bit/s."""
        return self.wires.get(node, self.rate)

    def to_next(self, node: int) -> float:
        """Return the rate of a transfer from a node to the next, in bit/s, while every node sends to the next."""
        following = node % self.nodes + 1
        rate = min(self.wire(node), self.wire(following))
        return rate if self.rack(node) == self.rack(following) else min(rate, self.uplink or rate)

    def __str__(self) -> str:
        """Return it in words: `4 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 500 Mbit/s`."""
        wires = f"on wires of {show_rate(self.rate)}"
        wires += "".join(f" (node {node}: {show_rate(rate)})" for node, rate in self.wires.items())
        wires += f", with queues of {self.queue:,} bytes" if self.queue else ""
        if self.uplink is None:
            return f"{self.nodes} nodes {wires}"
        return f"{self.nodes} nodes in {len(self.racks)} racks {wires}, uplinks of {show_rate(self.uplink)}"


def _check_count(name: str, value: object, maximum: int) -> int:
    """Return a valid number of nodes or racks."""
    number = as_integer(value)
    if number is None or not 1 <= number <= maximum:
        limit = f"{maximum}" if name == "nodes" else f"the number of nodes, {maximum}"
        raise LabError(f"{name} must be an integer from 1 to {limit}, not {value!r}.")
    return number


def _split(nodes: int, racks: int) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of each rack, spread evenly; if that is impossible, the first racks have one more."""
    quotient, remainder = divmod(nodes, racks)
    ends = [rack * quotient + min(rack, remainder) for rack in range(racks + 1)]
    return tuple(tuple(range(begin + 1, end + 1)) for begin, end in pairwise(ends))
