"""The plan of a testbed: which node is in which rack, which rate each cable has, and what a transfer may get.

Nodes are at one switch, the core, or in racks. A rack has a switch of its own, and a cable from there to the core: its
uplink, which all share who send out of the rack, or into it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

from labkit.system.arguments import as_integer
from labkit.system.errors import LabError
from labkit.testbed.units import parse_rate, show_rate

MAX_NODES = 64
CORE = "switch"  # the name of the core switch


class Cable(NamedTuple):
    """A cable, from a switch down to a node, or from the core down to a rack: both ends send at its rate at most.

    Attributes
    ----------
    switch, port : str
        The upper switch, and the name of the cable's end there.
    rate : float
        Its rate in bit/s, in each direction.
    """

    switch: str
    port: str
    rate: float


@dataclass(frozen=True)
class Topology:
    """Nodes and racks, each on its cable.

    Attributes
    ----------
    rate : float
        The wires' rate in bit/s, but for those of slow nodes.
    wires : tuple of float
        The rate of each node's wire.
    racks : tuple of tuple of int
        The numbers of each rack's nodes; one rack means that all are at the core.
    uplink : float or None
        The rate of each rack's uplink; None with one rack.
    """

    rate: float
    wires: tuple[float, ...]
    racks: tuple[tuple[int, ...], ...]
    uplink: float | None = None

    @classmethod
    def of(
        cls,
        nodes: int,
        rate: float | str,
        racks: int = 1,
        uplink: float | str | None = None,
        slow: Mapping[int, float | str] | None = None,
    ) -> Self:
        """Return the topology that somebody asked for, in the words of `Testbed`.

        Raises
        ------
        LabError
            When there is none of that kind.
        """
        nodes = _whole("nodes", nodes, MAX_NODES)
        usual = parse_rate(rate)
        racks = _whole("racks", racks, nodes)
        if racks > 1 and uplink is None:
            raise LabError("racks are joined by uplinks: give the uplink's rate too, such as '500 Mbit/s'.")
        if racks == 1 and uplink is not None:
            raise LabError("an uplink leads from a rack to the core switch: give the number of racks too, 2 or more.")
        return cls(
            rate=usual,
            wires=_wires(nodes, usual, slow),
            racks=_split(nodes, racks),
            uplink=None if uplink is None else parse_rate(uplink),
        )

    @property
    def slow(self) -> dict[int, float]:
        """The rates of the wires that are slower than the others, by node."""
        return {node: rate for node, rate in enumerate(self.wires, start=1) if rate != self.rate}

    @property
    def uplinks(self) -> tuple[Cable, ...]:
        """Each rack's uplink; empty with one rack."""
        if self.uplink is None:
            return ()
        return tuple(Cable(CORE, f"down{rack}", self.uplink) for rack in range(1, len(self.racks) + 1))

    def wire(self, node: int) -> Cable:
        """Return a node's cable."""
        switch = CORE if self.uplink is None else f"rack{self.rack(node)}"
        return Cable(switch, f"port{node}", self.wires[node - 1])

    def rack(self, node: int) -> int:
        """Return the number, from 1, of a node's rack."""
        return next(number for number, nodes in enumerate(self.racks, start=1) if node in nodes)

    def way(self, sender: int, receiver: int) -> dict[str, float]:
        """Return the ends of cables that send a packet on its way from node to node, each with its rate."""
        ends = {f"node{sender}": self.wires[sender - 1], f"port{receiver}": self.wires[receiver - 1]}
        here, there = self.rack(sender), self.rack(receiver)
        if self.uplink is not None and here != there:
            ends |= {f"up{here}": self.uplink, f"down{there}": self.uplink}
        return ends

    def shares(self, transfers: Iterable[tuple[int, int]]) -> tuple[float, ...]:
        """Return what each of these transfers, from node to node and all at once, may get at most, in bit/s.

        That is the least that an end on its way has for it. Those who share an end have equal shares of its rate.
        """
        ways = [self.way(*transfer) for transfer in transfers]
        users = Counter(end for way in ways for end in way)
        return tuple(min(rate / users[end] for end, rate in way.items()) for way in ways)

    def __str__(self) -> str:
        """Return it in words: `4 nodes in 2 racks on wires of 1 Gbit/s, uplinks of 500 Mbit/s, …`."""
        racks = f" in {len(self.racks)} racks" if len(self.racks) > 1 else ""
        parts = [f"{len(self.wires)} nodes{racks} on wires of {show_rate(self.rate)}"]
        parts += [f"uplinks of {show_rate(self.uplink)}"] if self.uplink is not None else []
        parts += [f"node {node} on {show_rate(rate)}" for node, rate in self.slow.items()]
        return ", ".join(parts)


def parse_slow(texts: Iterable[str]) -> dict[int, str]:
    """Return slow nodes and the rates of their wires, which are written like `3=100 Mbit/s`.

    Raises
    ------
    LabError
        When one is not, or names a node again.
    """
    slow: dict[int, str] = {}
    for text in texts:
        node, _, rate = text.partition("=")
        if not (node.strip().isdecimal() and rate):
            raise LabError(f"a slow node and its rate are written like '3=100 Mbit/s', not {text!r}.")
        if int(node) in slow:
            raise LabError(f"node {int(node)} is slow in two ways: give it one rate.")
        slow[int(node)] = rate
    return slow


def _whole(name: str, value: object, most: int) -> int:
    """Return a number of nodes or racks."""
    number = as_integer(value)
    if number is None or not 1 <= number <= most:
        end = f"{most}" if name == "nodes" else f"the number of nodes, {most}"
        raise LabError(f"{name} is a whole number from 1 to {end}, not {value!r}.")
    return number


def _split(nodes: int, racks: int) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of each rack, as many in each; the first ones have one more where it does not come out even."""
    each, more = divmod(nodes, racks)
    ends = [rack * each + min(rack, more) for rack in range(racks + 1)]
    return tuple(tuple(range(begin + 1, end + 1)) for begin, end in pairwise(ends))


def _wires(nodes: int, rate: float, slow: object) -> tuple[float, ...]:
    """Return the rate of each node's wire."""
    if not isinstance(slow, Mapping | None):
        raise LabError(f"slow has nodes and their rates, such as {{3: '100 Mbit/s'}}, and is not {slow!r}.")
    wires = [rate] * nodes
    for given, theirs in (slow or {}).items():
        node = as_integer(given)
        if node is None or not 1 <= node <= nodes:
            raise LabError(f"the nodes are 1 to {nodes}: there is no node {given!r} to be slow.")
        wires[node - 1] = parse_rate(theirs)
        if wires[node - 1] > rate:
            raise LabError(f"node {node} can't be slow by {theirs!r}: the other wires have {show_rate(rate)}.")
    return tuple(wires)
