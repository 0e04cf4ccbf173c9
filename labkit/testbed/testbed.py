"""Nodes on this machine, each in its own network namespace, connected to a switch by wires of a given rate.

Each node has one interface, the end of a virtual cable (veth(4)) to a bridge; both ends limit what they send to the
rate (tc-tbf(8)). With racks, each rack has its own bridge, rack1 and so on, and a cable to the core's bridge: its end
up1 sends to the core, its end down1 to the rack. The testbed is isolated from other networks, and needs no root where
user namespaces are allowed. Only wires are emulated: the nodes share this machine's cores, memory and caches.
"""

import contextlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from labkit.system import files, lacks
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.testbed import rates
from labkit.testbed.namespaces import Shell
from labkit.testbed.topology import CORE, Topology
from labkit.testbed.units import parse_rate, show_rate
from labkit.testbed.wiring import build, interface, set_limit

ENTER = Path(__file__).with_name("enter.sh")
LOW_SHARE = 0.8  # a wire that carries less than this share of its rate; TCP and Ethernet headers take 0.06

# MPICH waits by polling. On a core that nodes share, that would block ranks with data to send, so waiting ranks sleep
# for about 60 us.
SLEEP_WHILE_WAITING = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "MPIR_CVAR_POLLS_BEFORE_YIELD": "10"}

VARIABLES = ("HYDRA_LAUNCHER", "HYDRA_HOST_FILE", "HYDRA_IFACE", "LAB_NETWORK")  # prefixes of its variables


class Traffic(NamedTuple):
    """The bytes that an interface has sent and received since the testbed was made, with Ethernet headers."""

    sent: int
    received: int


class Testbed:
    """Nodes connected by wires, until the testbed is closed or this process ends.

    Parameters
    ----------
    nodes : int
        The number of nodes.
    rate : float or str
        The rate of each wire in each direction: in bit/s, or a text such as "2.5 Gbit/s".
    racks : int, optional
        The number of racks over which the nodes are spread evenly, in order. Each rack has its own switch, with a cable
        to the core switch, where mpirun runs. By default, all nodes are at the core.
    uplink : float or str, optional
        The rate of the racks' cables, if there are racks.
    wires : mapping of int to (float or str), optional
        The rates of nodes whose wires have another rate, by their number.
    queue : int, optional
        The bytes that may wait at a switch for a node's wire; packets that find the queue full are dropped. By default,
        as many as the wire carries in 100 ms.

    Attributes
    ----------
    nodes : tuple of Node
        The nodes.
    topology : Topology
        The racks, the rates of all cables, and the queue.
    interface : str
        The name of the nodes' interfaces.

    Raises
    ------
    LabError
        If the arguments are invalid, or no testbed can be made here.
    """

    def __init__(
        self,
        nodes: int = 2,
        rate: float | str = "1 Gbit/s",
        *,
        racks: int = 1,
        uplink: float | str | None = None,
        wires: Mapping[int, float | str] | None = None,
        queue: int | None = None,
    ) -> None:
        if reason := lacks.reason("namespaces"):
            raise LabError(reason)
        self.topology = topology = Topology.of(nodes, rate, racks, uplink, wires, queue)
        self.interface = interface()
        with contextlib.ExitStack() as on_failure:
            self._shell = Shell()
            on_failure.callback(self._shell.close)
            self._folder = on_failure.enter_context(files.temporary_folder())
            # The launcher that replaces ssh. Hydra (MPICH 5.0.2) splits its path at spaces, which a checkout's may
            # have: https://github.com/pmodels/mpich/issues/1160 reports the same of its proxy's path.
            (self._folder / ENTER.name).symlink_to(ENTER)
            self.nodes = build(self._shell, topology, usable_machine(), self.interface)
            self._write_files()
            self._held = on_failure.pop_all()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the testbed."""
        self.close()

    def close(self) -> None:
        """End the testbed, with all processes still on its nodes."""
        self._held.close()

    @cached_property
    def check(self) -> tuple[float, float]:
        """The measured and expected rate of a transfer, in bit/s of payload; the first access measures them.

        All nodes send to the next concurrently. This is the transfer that falls furthest short of the rate on its path:
        the wires' rate, or an uplink's if that is lower. With one node, the measured rate is NaN.
        """
        return rates.measure(self._shell, self.topology, self.nodes)

    def __str__(self) -> str:
        """Return its nodes and its rates, requested and measured, in one line."""
        if len(self.nodes) == 1:
            return f"1 node, no wires ({show_rate(self.topology.rate)})"
        measured, expected = self.check
        share = measured / expected
        percentage = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        limit = f" of {show_rate(expected)}" if expected != self.topology.rate else ""
        low = ". ⚠ This machine is slower than these wires" if share < LOW_SHARE else ""
        return f"{self.topology}: a transfer reached {show_rate(measured)}{limit}, {percentage}{low}"

    def _write_files(self) -> None:
        """Write the files with which mpirun finds the nodes and its launcher enters them."""
        lines = (
            f"{node.address} {','.join(map(str, node.cpus))} {' '.join(self.enter(node.number))}\n"
            for node in self.nodes
        )
        files.write(self._folder / "nodes", "".join(lines))
        files.write(self._folder / "hosts", "".join(f"{node.address}\n" for node in self.nodes))

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which an `mpirun` at the switch starts ranks on the nodes, and the ranks use the wires."""
        return {
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self._folder / ENTER.name),
            "HYDRA_HOST_FILE": str(self._folder / "hosts"),
            "HYDRA_IFACE": CORE,
            "LAB_NETWORK": str(self._folder / "nodes"),
            # Shared memory on a node; between nodes, UCX sees none, as each has its own IPC namespace.
            "UCX_TLS": "posix,cma,tcp,self",
            "UCX_NET_DEVICES": self.interface,
            **(SLEEP_WHILE_WAITING if self._cores_are_shared else {}),
        }

    @property
    def _cores_are_shared(self) -> bool:
        """Whether two nodes share a core."""
        cpus = [cpu for node in self.nodes for cpu in node.cpus]
        return len(set(cpus)) < len(cpus)

    def enter(self, node: int | None = None) -> list[str]:
        """Return the command prefix that runs a command on a node, or at the switch."""
        return self._shell.enter(self.nodes[node - 1].pid if node else None)

    def set_wire(self, node: int, rate: float | str) -> None:
        """Change the rate of a node's wire; `topology` and `check` keep the rates with which the testbed was made."""
        set_limit(self._shell, self.nodes[node - 1], self.interface, parse_rate(rate))


def traffic(pid: int | str = "self", name: str | None = None) -> Traffic:
    """Return the traffic of the interface of a process's node, by default this process's."""
    lines = Path(f"/proc/{pid}/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    counters = {
        device.strip(): list(map(int, values.split())) for device, _, values in (line.partition(":") for line in lines)
    }
    columns = counters[name or interface()]
    return Traffic(sent=columns[8], received=columns[0])  # proc(5): eight receive columns, then transmit


def obstacle() -> str:
    """Return one line on why no testbed can be made here and what to do; empty if a trial one can be made."""
    try:
        Testbed(1).close()
    except LabError as error:
        return str(error)
    return ""
