"""Nodes on this machine, each in network namespaces of its own, joined by a switch with wires of a given rate.

Each node has one interface, the end of a virtual cable (veth(4)) to a bridge; both of its ends send at the rate at most
(tc-tbf(8)). Where nodes are in racks, each rack has a bridge of its own, rack1 and so on, and such a cable to the
core's: its end up1 sends to the core, its end down1 to the rack. Nothing leads out of it, and it needs no root where
user namespaces are allowed. Only wires are emulated: the nodes share this machine's cores, memory and caches.
"""

import contextlib
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from labkit.system import files, scratch
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.testbed import rates
from labkit.testbed.namespaces import NoTestbed, Shell
from labkit.testbed.topology import CORE, Topology
from labkit.testbed.units import show_rate
from labkit.testbed.wiring import build, interface

ENTER = Path(__file__).with_name("enter.sh")
SHARE_WARNING = 0.8  # the share of its rate below which a wire is warned of; TCP's and Ethernet's headers take 0.06

# MPICH waits by polling. Where nodes share a core, that keeps it from a rank that has something to send, so whoever
# waits sleeps, for some 60 us.
SLEEP_WHILE_WAITING = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "10"}

VARIABLES = ("HYDRA_LAUNCHER", "HYDRA_HOST_FILE", "HYDRA_IFACE", "LAB_NETWORK")  # prefixes of a testbed's variables


class Traffic(NamedTuple):
    """The bytes that an interface has sent and received since the testbed was made, Ethernet's headers included."""

    sent: int
    received: int

    def __sub__(self, before: object) -> "Traffic":
        """Return the traffic since `before`."""
        return (
            Traffic(self.sent - before.sent, self.received - before.received)
            if isinstance(before, Traffic)
            else NotImplemented
        )


class Testbed:
    """Nodes that are joined by wires, until the testbed is closed or this process ends.

    Parameters
    ----------
    nodes : int
        Their number.
    rate : float or str
        The bits that each wire carries in a second, in each direction: a number, or a text such as "2.5 Gbit/s".
    racks : int, optional
        The number of racks over which the nodes are spread, in order and as many in each. Each has a switch of its own,
        and a cable from there to the core switch, where mpirun is. By default, all nodes are at the core.
    uplink : float or str, optional
        The rate of the racks' cables, where there are racks.

    Attributes
    ----------
    nodes : tuple of Node
        The nodes.
    rate : float
        The wires' rate in bit/s.
    racks : tuple of tuple of int
        The numbers of each rack's nodes; one rack is all nodes, at the core.
    uplink : float or None
        The rate of the racks' cables; None with one rack.
    interface : str
        The name of the nodes' interfaces.

    Raises
    ------
    NoTestbed
        When no testbed can be made here.
    LabError
        When the arguments make no sense on this machine.
    """

    def __init__(
        self,
        nodes: int = 2,
        rate: float | str = "1 Gbit/s",
        *,
        racks: int = 1,
        uplink: float | str | None = None,
    ) -> None:
        self._topology = topology = Topology.of(nodes, rate, racks, uplink)
        self.rate, self.racks, self.uplink = topology.rate, topology.racks, topology.uplink
        self.interface = interface()
        with contextlib.ExitStack() as on_failure:
            self._shell = Shell()
            on_failure.callback(self._shell.close)
            self._folder = on_failure.enter_context(scratch.folder())
            self._launcher = self._link_launcher()
            self.nodes = build(self._shell, topology, usable_machine(), self.interface)
            rates.check_python(self._shell, self.nodes[0])
            self._write_files()
            self._held = on_failure.pop_all()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End it, with all processes that are still on its nodes."""
        self._held.close()

    @cached_property
    def check(self) -> tuple[float, float]:
        """The measured and the expected rate of a transfer, in bit/s of payload; the first use measures them.

        Each node sends to the next, all at once; this is the transfer that falls shortest of the rate on its path: that
        of the wires, unless an uplink has less. Measured is not a number on one node.
        """
        return rates.measure(self._shell, self._topology, self.nodes)

    def __str__(self) -> str:
        """Return its nodes and its rates, requested and measured, in a line."""
        if len(self.nodes) == 1:
            return f"1 node, and no wire ({show_rate(self.rate)})"
        measured, expected = self.check
        share = measured / expected
        part = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        most = f" of {show_rate(expected)}" if expected != self.rate else ""
        return f"{self._topology}: a transfer got {show_rate(measured)}{most}, {part}"

    @property
    def warning(self) -> str:
        """A reason why figures may be worse than the rates allow; else empty."""
        measured, expected = self.check
        if measured < SHARE_WARNING * expected:
            what = "wires" if expected == self.rate else "cables"
            return f"Warning: {what} of {show_rate(expected)} carry {show_rate(measured)} here: take them for that."
        return ""

    def _write_files(self) -> None:
        """Write the files by which mpirun finds the nodes, and its launcher enters them."""
        lines = (
            f"{node.address} {','.join(map(str, node.cpus))} {' '.join(self.enter(node.number))}\n"
            for node in self.nodes
        )
        files.write(self._folder / "nodes", "".join(lines))
        files.write(self._folder / "hosts", "".join(f"{node.address}\n" for node in self.nodes))

    def _link_launcher(self) -> Path:
        """Return the path of Hydra's launcher in ssh's place, without blanks, at which Hydra (MPICH 5.0.2) splits it.

        https://github.com/pmodels/mpich/issues/1160 tells the same of its proxy's path.
        """
        link = self._folder / ENTER.name
        link.symlink_to(ENTER)
        for path in (link, ENTER):
            if len(str(path).split()) == 1:
                return path
        raise NoTestbed(
            f"mpirun's launcher may have no blank in its path, as {link} has. Set TMPDIR to another folder."
        )

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which an `mpirun` at the switch starts ranks on the nodes, and the ranks use the wires."""
        return {
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self._launcher),
            "HYDRA_HOST_FILE": str(self._folder / "hosts"),
            "HYDRA_IFACE": CORE,
            "LAB_NETWORK": str(self._folder / "nodes"),
            # Shared memory on a node; between nodes, UCX sees none, as they have IPC namespaces of their own.
            "UCX_TLS": "posix,cma,tcp,self",
            "UCX_NET_DEVICES": self.interface,
            **(SLEEP_WHILE_WAITING if self._cores_are_shared else {}),
        }

    @property
    def _cores_are_shared(self) -> bool:
        """Whether a core is that of two nodes."""
        cpus = [cpu for node in self.nodes for cpu in node.cpus]
        return len(set(cpus)) < len(cpus)

    def enter(self, node: int | None = None) -> list[str]:
        """Return the command under which another command runs on a node, or at the switch."""
        if node is None:
            return self._shell.enter()
        for each in self.nodes:
            if each.number == node:
                return self._shell.enter(each.pid)
        raise LabError(f"the nodes are 1 to {len(self.nodes)}: there is no node {node!r}.")

    def traffic(self) -> tuple[Traffic, ...]:
        """Return the traffic of each node's interface."""
        for node in self.nodes:
            self._shell.check(node.pid)
        return tuple(traffic(node.pid, self.interface) for node in self.nodes)


def traffic(pid: int | str = "self", name: str | None = None) -> Traffic:
    """Return the traffic of the interface of a process's node; by default, of this process's."""
    lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    counters = {
        before.strip(): list(map(int, after.split())) for before, _, after in (line.partition(":") for line in lines)
    }
    own = counters[name or interface()]
    return Traffic(sent=own[8], received=own[0])  # proc(5): eight columns of what was received, then of what was sent


def obstacle() -> str:
    """Return one line, why no testbed can be made here and what to do; empty when one can. It makes a small one."""
    try:
        Testbed(1).close()
    except LabError as error:
        return str(error)
    return ""
