"""The topology of a testbed: the racks, their nodes, and the rate of each cable.

Nodes are at one switch, the core, or in racks. Each rack has its own switch, with a cable to the core: its uplink,
shared by all traffic out of the rack or into it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from labkit.system.arguments import as_integer
from labkit.system.errors import LabError
from labkit.testbed.units import parse_rate, show_rate

MAX_NODES = 64
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
    """

    rate: float
    racks: tuple[tuple[int, ...], ...]
    uplink: float | None = None

    @classmethod
    def of(cls, nodes: int, rate: float | str, racks: int = 1, uplink: float | str | None = None) -> Self:
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
        return cls(parse_rate(rate), _split(nodes, racks), None if uplink is None else parse_rate(uplink))

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return sum(map(len, self.racks))

    @property
    def slowest(self) -> float:
        """The rate of the slowest cable."""
        return min(self.rate, self.uplink or self.rate)

    def rack(self, node: int) -> int:
        """Return the number of a node's rack, counted from 1."""
        return next(number for number, nodes in enumerate(self.racks, start=1) if node in nodes)

    def switch(self, node: int) -> str:
        """Return the name of the switch at a node's wire."""
        return CORE if self.uplink is None else f"rack{self.rack(node)}"

    def to_next(self, node: int) -> float:
        """Return the rate of a transfer from a node to the next, in bit/s, while every node sends to the next."""
        return self.rate if self.rack(node) == self.rack(node % self.nodes + 1) else self.slowest

    def __str__(self) -> str:
        """Return it in words: `4 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 500 Mbit/s`."""
        wires = f"on wires of {show_rate(self.rate)}"
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
