"""Nodes on this machine, each in network namespaces of its own, joined by a switch with wires of a given rate.

Each node has one interface, the end of a virtual cable (veth(4)) to a bridge; both of its ends send at the rate at most
(tc-tbf(8)). Nothing leads out of it, and it needs no root where user namespaces are allowed. Only wires are emulated:
the nodes share this machine's cores, memory and caches.
"""

import contextlib
import math
import re
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from labkit.system import files, scratch
from labkit.system.errors import LabError
from labkit.system.machine import Machine, node_cpus
from labkit.system.turns import this_share
from labkit.testbed import namespaces, transfer
from labkit.testbed.namespaces import NoTestbed
from labkit.testbed.units import parse_delay, parse_rate, show_rate

MAX_NODES = 64
SUBNET = "10.77.0"
SWITCH = "switch"  # the name of the bridge
SWITCH_ADDRESS = f"{SUBNET}.254"
MODULES = "bridge veth sch_tbf"
# Answers of a kernel that lacks a module, newer or older, as iproute2 5 and 6 pass them on.
KERNEL_LACKS = re.compile(
    "Unknown device type|qdisc kind is unknown|RTNETLINK answers: (Operation not sup|No such file)"
)
INTERFACES = Path("/sys/class/net")
ENTER = Path(__file__).with_name("enter.sh")

# A burst is what a wire may send at once after a pause: little, so that small messages take the time that its rate
# says. The kernel hands TCP's data on in pieces of up to 64 KiB (segmentation offload). A burst that is smaller has
# each piece cut up again, and then a wire of 1 Gbit/s carried a quarter of it here: so pieces are held to less than a
# burst. On slow wires a piece is a packet of 1,500 bytes; on fast ones that costs too much of the cores.
SLOW_RATE = 1.5e8
SLOW_BURST_BYTES, FAST_BURST_BYTES, FAST_BURST_S = 16_000, 30_000, 2.5e-4
PIECE = 0.9  # the largest piece, as a share of a burst: headers come on top
MAX_PIECE_BYTES = 65_536
QUEUE_S = 0.1  # the longest time that a packet waits for a wire: then packets are dropped
# TCP's largest window, as time at the wire's rate: a larger one makes queues longer, and in the end loses packets.
WINDOW_S, MIN_WINDOW_BYTES = 0.02, 65_536
# The time that a run waits for a cable to be plugged in again. TCP waits for a quarter of an hour; then MPI's library
# ends by an error of its own, or waits for ever.
LOST_S = 5.0
TRANSFER_S = 0.2  # the length of the transfer that checks the rate
TRANSFER_TIMEOUT_S = 60.0  # the limit of that transfer beyond its length: all nodes start Python at once
TRANSFERRED = re.compile(r"got [0-9.e+]+")
SHARE_WARNING = 0.8  # the share of its rate below which a wire is warned of; TCP's and Ethernet's headers take 0.06


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


@dataclass(frozen=True)
class Node:
    """A node: its number from 1, its address, the process that holds its namespaces, and the CPUs it runs on."""

    number: int
    address: str
    pid: int
    cpus: tuple[int, ...]


class Testbed:
    """Nodes that are joined by wires, until the testbed is closed or this process ends.

    Parameters
    ----------
    nodes : int
        Their number.
    rate : float or str
        The bits that each wire carries in a second, in each direction: a number, or a text such as "2.5 Gbit/s".
    delay : str, optional
        The time that each wire adds to a packet's way, such as "1 ms"; where the kernel has netem (tc-netem(8)).

    Attributes
    ----------
    nodes : tuple of Node
        The nodes.
    rate, delay : float
        The wires' rate in bit/s, and their delay in seconds.
    measured : float
        The rate of a short transfer over the slowest of the wires, in bit/s of payload; not a number on one node.

    Raises
    ------
    NoTestbed
        When no testbed can be made here.
    LabError
        When the arguments make no sense on this machine.
    """

    def __init__(self, nodes: int = 2, rate: float | str = "1 Gbit/s", delay: str | None = None) -> None:
        if not hasattr(nodes, "__index__") or isinstance(nodes, bool) or not 1 <= nodes <= MAX_NODES:
            raise LabError(f"nodes is a whole number from 1 to {MAX_NODES}, not {nodes!r}.")
        self.rate, self.delay = parse_rate(rate), 0.0 if delay is None else parse_delay(delay)
        self.interface = interface()
        self._cut_at: dict[int, float] = {}  # the time since when each node's cable is pulled
        with contextlib.ExitStack() as on_failure:
            self._shell = namespaces.Shell()
            on_failure.callback(self._shell.close)
            self._folder = on_failure.enter_context(scratch.folder())
            self._launcher = self._link_launcher()
            self.nodes = self._make(nodes, this_share())
            self.measured = self._check()
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

    def __str__(self) -> str:
        """Return its nodes and its rates, requested and measured, in a line."""
        delay = f", {1e3 * self.delay:g} ms" if self.delay else ""
        wires = f"{len(self.nodes)} nodes on wires of {show_rate(self.rate)}{delay}"
        if len(self.nodes) == 1:
            return f"1 node, and no wire ({show_rate(self.rate)})"
        share = self.measured / self.rate
        part = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        return f"{wires}: a transfer got {show_rate(self.measured)}, {part}"

    @property
    def warning(self) -> str:
        """A reason why figures may be worse than the rate allows; else empty."""
        if self.measured < SHARE_WARNING * self.rate:
            return (
                f"Warning: wires of {show_rate(self.rate)} carry {show_rate(self.measured)} here: take them for that."
            )
        return ""

    # Construction

    def _make(self, count: int, machine: Machine) -> tuple[Node, ...]:
        """Make the switch, the nodes and their cables."""
        shell, addresses = self._shell, [f"{SUBNET}.{number}" for number in range(1, count + 1)]
        nodes = tuple(
            Node(number, address, shell.spawn(), cpus)
            for number, (address, cpus) in enumerate(zip(addresses, node_cpus(machine, count), strict=True), start=1)
        )
        window = round(max(MIN_WINDOW_BYTES, self.rate / 8 * (WINDOW_S + 2 * self.delay)))
        settings = {
            "/proc/sys/net/ipv4/tcp_[rw]mem": f"4096 {MIN_WINDOW_BYTES} {window}",
            # Nobody uses IPv6 here, and its neighbour discovery would be among the traffic.
            "/proc/sys/net/ipv6/conf/*/disable_ipv6": "1",
        }
        # Containers may have /proc/sys to read alone (Docker without --privileged): then queues may be longer.
        tune = "; ".join(
            f"for file in {files}; do [ ! -w $file ] || echo {value} >$file; done" for files, value in settings.items()
        )
        piece = min(MAX_PIECE_BYTES, round(PIECE * self._burst))
        segments = "gso_max_segs 1" if self.rate <= SLOW_RATE else f"gso_max_size {piece}"
        self._set_up(f"""
            {tune}
            ip link add {SWITCH} type bridge
            ip addr add {SWITCH_ADDRESS}/24 dev {SWITCH}
            ip link set {SWITCH} up
        """)
        for node in nodes:
            self._set_up(f"""
                ip link add {_port(node)} type veth peer name {self.interface} netns {node.pid}
                ip link set {_port(node)} master {SWITCH} {segments} up
                nsenter -t {node.pid} -u hostname node{node.number}
                nsenter -t {node.pid} -n sh -ec '{tune}
                ip link set lo up
                ip addr add {node.address}/24 dev {self.interface}
                ip link set {self.interface} {segments} up'
            """)
        self._shape("add", nodes)
        lines = (
            f"{node.address} {','.join(map(str, node.cpus))} {' '.join(shell.enter(node.pid))}\n" for node in nodes
        )
        files.write(self._folder / "nodes", "".join(lines))
        files.write(self._folder / "hosts", "".join(f"{address}\n" for address in addresses))
        return nodes

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

    def _shape(self, verb: str, nodes: tuple[Node, ...]) -> None:
        """Set the rate and delay of both ends of each cable."""
        rate = f"tbf rate {self.rate:.0f}bit burst {self._burst} latency {1e3 * QUEUE_S:g}ms"
        for node in nodes:
            for within, name in (("", _port(node)), (f"nsenter -t {node.pid} -n ", self.interface)):
                tc = f"{within}tc qdisc {verb} dev {name}"
                if not self.delay:
                    self._set_up(f"{tc} root {rate}")
                    continue
                try:
                    self._shell.run(f"{tc} root handle 1: netem delay {1e6 * self.delay:.0f}us limit 100000")
                except LabError as error:
                    raise LabError(
                        f"this kernel adds no delay, as it has no netem ({error}): leave the delay out."
                    ) from error
                self._set_up(f"{tc} parent 1:1 handle 10: {rate}")

    def _set_up(self, script: str) -> None:
        """Run commands that need parts of the kernel which not every kernel has."""
        try:
            self._shell.run(script)
        except LabError as error:
            if not KERNEL_LACKS.search(str(error)):
                raise
            text = str(error).splitlines()[-1]
            raise NoTestbed(
                f"this kernel lacks what wires are made of ({text}). As root: `modprobe -a {MODULES}`."
            ) from error

    @property
    def _burst(self) -> int:
        if self.rate <= SLOW_RATE:
            return SLOW_BURST_BYTES
        return max(FAST_BURST_BYTES, round(self.rate / 8 * FAST_BURST_S))

    def _check(self) -> float:
        """Return the least rate of transfers from each node to the next, all at once, in bit/s."""
        python = (sys.executable, "-I", "-S")
        try:
            self._shell.run(shlex.join([*self.enter(self.nodes[0].number), *python, "-c", ""]))
        except LabError as error:
            raise NoTestbed(
                f"{sys.executable} cannot be started on a node ({_last_line(error)}). There, root too may look only "
                "where everybody may: is Python in a closed folder, such as root's home?"
            ) from error
        if len(self.nodes) == 1:
            return math.nan
        skipped = 2 * self._burst
        seconds = max(TRANSFER_S, 10 * skipped * 8 / self.rate)
        following = (*self.nodes[1:], self.nodes[0])
        commands = (
            [
                *self.enter(node.number),
                *python,
                transfer.__file__,
                node.address,
                after.address,
                f"{seconds}",
                f"{skipped}",
            ]
            for node, after in zip(self.nodes, following, strict=True)
        )
        script = "".join(f"{shlex.join(command)} &\n" for command in commands) + "wait"
        try:
            output = self._shell.run(script, seconds + TRANSFER_TIMEOUT_S)
        except LabError as error:
            raise LabError(f"a transfer from node to node failed: {_last_line(error)}") from error
        rates = [float(line.split()[1]) for line in output.splitlines() if TRANSFERRED.fullmatch(line)]
        if len(rates) < len(self.nodes):
            others = [line for line in output.splitlines() if not TRANSFERRED.fullmatch(line)]
            reason = others[0] if others else "no word from it. Is this machine out of memory?"
            failed = f"{len(self.nodes) - len(rates)} of {len(self.nodes)} transfers from node to node failed"
            raise LabError(f"{failed}: {reason}")
        return min(rates)

    # Use

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which an `mpirun` at the switch starts ranks on the nodes, and the ranks use the wires."""
        return {
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self._launcher),
            "HYDRA_HOST_FILE": str(self._folder / "hosts"),
            "HYDRA_IFACE": SWITCH,
            "LAB_NETWORK": str(self._folder / "nodes"),
            # Shared memory on a node; between nodes, UCX sees none, as they have IPC namespaces of their own.
            "UCX_TLS": "posix,cma,tcp,self",
            "UCX_NET_DEVICES": self.interface,
        }

    def enter(self, node: int | None = None) -> list[str]:
        """Return the command under which another command runs on a node, or at the switch."""
        return self._shell.enter(self._node(node).pid if node is not None else None)

    def cut(self, node: int) -> None:
        """Pull the cable of a node."""
        self._shell.run(f"ip link set {_port(self._node(node))} down")
        self._cut_at.setdefault(node, time.monotonic())

    def mend(self, node: int) -> None:
        """Plug the cable of a node in again."""
        self._shell.run(f"ip link set {_port(self._node(node))} up")
        for holder in (self._shell.pid, *(each.pid for each in self.nodes)):  # neighbours that were not found meanwhile
            self._shell.run(f"nsenter -t {holder} -n ip neigh flush all")
        self._cut_at.pop(node, None)

    def lost(self) -> str:
        """Return a line on nodes that have been without a cable for so long that no run goes on; else empty."""
        if names := self._names_without_cable(LOST_S):
            how_long = f"has been pulled for {LOST_S:g} s, so all ranks were ended"
            return f"The cable of {names} {how_long}: mend plugs it in again."
        return ""

    def pulled(self) -> str:
        """Return a line on nodes that are without a cable now; else empty."""
        names = self._names_without_cable(0)
        return f"The cable of {names} is pulled: mend plugs it in again." if names else ""

    def _names_without_cable(self, seconds: float) -> str:
        """Return, in words, the nodes that have been without a cable for so many seconds."""
        cut = [node for node, since in self._cut_at.items() if time.monotonic() - since >= seconds]
        return " and ".join(f"node {node}" for node in sorted(cut))

    def traffic(self) -> tuple[Traffic, ...]:
        """Return the traffic of each node's interface."""
        for node in self.nodes:
            self._shell.check(node.pid)
        return tuple(traffic(node.pid, self.interface) for node in self.nodes)

    def _node(self, number: int) -> Node:
        for node in self.nodes:
            if node.number == number:
                return node
        raise LabError(f"the nodes are 1 to {len(self.nodes)}: there is no node {number!r}.")


def interface() -> str:
    """Return the name of the nodes' interfaces: the name of one of this machine's own.

    UCX looks for interfaces in /sys/class/net, which lists those of the network namespace where /sys was mounted, and
    leaves bridges out (UCX 1.20, uct_tcp_query_devices). Nobody without root can mount another /sys everywhere.
    https://github.com/openucx/ucx/pull/4462 asked the kernel instead.
    """
    names = sorted(path.name for path in INTERFACES.iterdir() if path.is_dir()) if INTERFACES.is_dir() else []
    fitting = [
        name
        for name in names
        if name != "lo" and not any((INTERFACES / name / kind).exists() for kind in ("bridge", "bonding"))
    ]
    if not fitting:
        raise NoTestbed("this machine has no network interface but lo, and UCX would find none on the nodes.")
    return "eth0" if "eth0" in fitting else fitting[0]


def traffic(pid: int | str = "self", name: str | None = None) -> Traffic:
    """Return the traffic of the interface of a process's node; by default, of this process's."""
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
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


def _last_line(error: LabError) -> str:
    return str(error).splitlines()[-1]


def _port(node: Node) -> str:
    """Return the name of a cable's end at the switch."""
    return f"port{node.number}"
