"""Nodes on this machine, each in network namespaces of its own, joined by a switch with wires of a given rate.

Each node has one interface, the end of a virtual cable (veth(4)) to a bridge; both of its ends send at the rate at most
(tc-tbf(8)). Where nodes are in racks, each rack has a bridge of its own, rack1 and so on, and such a cable to the
core's: its end up1 sends to the core, its end down1 to the rack. Nothing leads out of it, and it needs no root where
user namespaces are allowed. Only wires are emulated: the nodes share this machine's cores, memory and caches.
"""

import contextlib
import math
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from labkit.system import files, scratch
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine, node_cpus
from labkit.testbed import namespaces, transfer
from labkit.testbed.namespaces import NoTestbed
from labkit.testbed.topology import CORE, Cable, Topology
from labkit.testbed.units import parse_delay, show_delay, show_rate

SUBNET = "10.77.0"
SWITCH_ADDRESS = f"{SUBNET}.254"
MODULES = "bridge veth sch_tbf"
# Answers of a kernel that lacks a module, newer or older, as iproute2 5 and 6 pass them on.
KERNEL_LACKS = re.compile(
    "Unknown device type|qdisc kind is unknown|RTNETLINK answers: (Operation not sup|No such file)"
)
INTERFACES = Path("/sys/class/net")
PYTHON = (sys.executable, "-I", "-S")  # for programs of the standard library alone
ENTER = Path(__file__).with_name("enter.sh")

# A burst is what a wire may send at once after a pause: little, so that small messages take the time that its rate
# says. The kernel hands TCP's data on in pieces of up to 64 KiB (segmentation offload). A burst that is smaller has
# each piece cut up again, and then a wire of 1 Gbit/s carried a quarter of it here: so pieces are held to less than a
# burst. A piece is sent in one go, and each costs the cores a timer at either end: on slow wires it is as long as the
# rate takes in `PIECE_S`, or a packet of 1,500 bytes.
SLOW_RATE = 1.5e8
SLOW_BURST_BYTES, FAST_BURST_BYTES, FAST_BURST_S = 16_000, 30_000, 2.5e-4
PIECE = 0.9  # the largest piece, as a share of a burst: headers come on top
PIECE_S = 7e-4
PACKET_BYTES, MAX_PIECE_BYTES = 1_500, 65_536
QUEUE_S = 0.1  # the longest time that a packet waits for a wire: then packets are dropped
MIN_QUEUE_S = 1e-6
# TCP's largest window, as time at the rate of the slowest cable: what is in it lies in that cable's queue. Where two
# ranks send to each other, as in recursive halving, MPI's answer to one waits behind its own data to the other; with
# 20 ms, all-reduces on 4 to 8 nodes took 20 to 50% too long, and with 5 ms 1 to 3% (100 Mbit/s). A real card's queue in
# Linux is as short (BQL). Beside a slow cable, fast ones need what they send until the answer comes.
WINDOW_S, FAST_WINDOW_S, MIN_WINDOW_BYTES = 5e-3, 5e-4, 16_384
# What a delay adds to it: the kernel counts its own records with the data, and with one round trip's worth a wire of
# 100 Mbit/s with 40 ms there and back carried little more than a half of its rate.
WINDOW_ROUND_TRIPS = 2
# The time that a run waits for a cable to be plugged in again. TCP waits for a quarter of an hour; then MPI's library
# ends by an error of its own, or waits for ever.
LOST_S = 5.0
TRANSFER_S = 0.2  # the length of the transfer that checks the rate
TRANSFER_TIMEOUT_S = 60.0  # the limit of that transfer beyond its length: all nodes start Python at once
TRANSFERRED = re.compile(r"got ([0-9.e+]+) at ([0-9.]+)")
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
        The time that each cable adds to a packet's way, such as "1 ms"; where the kernel has netem (tc-netem(8)). A way
        from node to node has two cables, and four from rack to rack.
    racks : int, optional
        The number of racks over which the nodes are spread, in order and as many in each. Each has a switch of its own,
        and a cable from there to the core switch, where mpirun is. By default, all nodes are at the core.
    uplink : float or str, optional
        The rate of the racks' cables, where there are racks.
    slow : mapping of int to float or str, optional
        Nodes whose wires are slower than the others, and their rates.
    queue : str, optional
        The longest time that a packet waits for a cable, such as "20 ms": then packets are dropped. By default, 100 ms.

    Attributes
    ----------
    nodes : tuple of Node
        The nodes.
    rate, delay, queue : float
        The wires' rate in bit/s, their delay and the longest wait for them in seconds.
    racks : tuple of tuple of int
        The numbers of each rack's nodes; one rack is all nodes, at the core.
    uplink : float or None
        The rate of the racks' cables; None with one rack.
    slow : dict of int to float
        The rates of slow nodes' wires.
    measured, expected : float
        The rate of a short transfer, in bit/s of payload, and the most that it could be. Each node sends to the next,
        all at once; this is the transfer that falls shortest of the least rate on its way: that of the wires, unless a
        slow node or an uplink has less. Measured is not a number on one node.

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
        delay: str | None = None,
        *,
        racks: int = 1,
        uplink: float | str | None = None,
        slow: Mapping[int, float | str] | None = None,
        queue: str | None = None,
    ) -> None:
        self._topology = topology = Topology.of(nodes, rate, racks, uplink, slow)
        self.rate, self.racks, self.uplink, self.slow = topology.rate, topology.racks, topology.uplink, topology.slow
        self.delay = 0.0 if delay is None else parse_delay(delay)
        self.queue = QUEUE_S if queue is None else parse_delay(queue)
        if self.queue < MIN_QUEUE_S:
            raise LabError(f"a queue lets packets wait for 1 us or longer, not for {queue!r}.")
        self.interface = interface()
        self._cut_at: dict[int, float] = {}  # the time since when each node's cable is pulled
        with contextlib.ExitStack() as on_failure:
            self._shell = namespaces.Shell()
            on_failure.callback(self._shell.close)
            self._folder = on_failure.enter_context(scratch.folder())
            self._launcher = self._link_launcher()
            self.nodes = self._make(usable_machine())
            self.measured, self.expected = self._check()
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
        if len(self.nodes) == 1:
            return f"1 node, and no wire ({show_rate(self.rate)})"
        delay = f", each adding {show_delay(self.delay)}" if self.delay else ""
        queue = f", queues of {show_delay(self.queue)}" if self.queue != QUEUE_S else ""
        share = self.measured / self.expected
        part = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        most = f" of {show_rate(self.expected)}" if self.expected != self.rate else ""
        return f"{self._topology}{queue}{delay}: a transfer got {show_rate(self.measured)}{most}, {part}"

    @property
    def warning(self) -> str:
        """A reason why figures may be worse than the rates allow; else empty."""
        if self.measured < SHARE_WARNING * self.expected:
            what = "wires" if self.expected == self.rate else "cables"
            return (
                f"Warning: {what} of {show_rate(self.expected)} carry {show_rate(self.measured)} here: "
                "take them for that."
            )
        return ""

    # Construction

    def _make(self, machine: Machine) -> tuple[Node, ...]:
        """Make the switches, the nodes and their cables."""
        shell, topology = self._shell, self._topology
        count = len(topology.wires)
        addresses = [f"{SUBNET}.{number}" for number in range(1, count + 1)]
        nodes = tuple(
            Node(number, address, shell.spawn(), cpus)
            for number, (address, cpus) in enumerate(zip(addresses, node_cpus(machine, count), strict=True), start=1)
        )
        self._set_up(f"""
            {self._tune(self.rate)}
            ip link add {CORE} type bridge
            ip addr add {SWITCH_ADDRESS}/24 dev {CORE}
            ip link set {CORE} up
        """)
        for rack, cable in enumerate(topology.uplinks, start=1):
            segments = _segments(cable.rate)
            self._set_up(f"""
                ip link add rack{rack} type bridge
                ip link set rack{rack} up
                ip link add {cable.port} type veth peer name up{rack}
                ip link set {cable.port} master {cable.switch} {segments} up
                ip link set up{rack} master rack{rack} {segments} up
            """)
            self._shape(cable, f"up{rack}")
        for node in nodes:
            cable = topology.wire(node.number)
            segments, within = _segments(cable.rate), f"nsenter -t {node.pid} -n"
            self._set_up(f"""
                ip link add {cable.port} type veth peer name {self.interface} netns {node.pid}
                ip link set {cable.port} master {cable.switch} {segments} up
                nsenter -t {node.pid} -u hostname node{node.number}
                {within} sh -ec '{self._tune(cable.rate)}
                ip link set lo up
                ip addr add {node.address}/24 dev {self.interface}
                ip link set {self.interface} {segments} up'
            """)
            self._shape(cable, self.interface, f"{within} ")
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

    def _tune(self, rate: float) -> str:
        """Return the commands that set TCP up for a wire of this rate, in the network where they run."""
        settings = {
            "/proc/sys/net/ipv4/tcp_[rw]mem": f"4096 {MIN_WINDOW_BYTES} {self._window(rate)}",
            # Nobody uses IPv6 here, and its neighbour discovery would be among the traffic.
            "/proc/sys/net/ipv6/conf/*/disable_ipv6": "1",
        }
        # Containers may have /proc/sys to read alone (Docker without --privileged): then queues may be longer.
        return "; ".join(
            f"for file in {files}; do [ ! -w $file ] || echo {value} >$file; done" for files, value in settings.items()
        )

    def _window(self, rate: float) -> int:
        """Return TCP's largest window in bytes, records of the kernel's included, on a wire of this rate."""
        slowest = min(*self._topology.wires, self.uplink or rate)
        under_way = rate / 8 * WINDOW_ROUND_TRIPS * self._round_trip
        return round(max(MIN_WINDOW_BYTES, slowest / 8 * WINDOW_S, rate / 8 * FAST_WINDOW_S) + under_way)

    @property
    def _round_trip(self) -> float:
        """The delay to the furthest node and back, in seconds: of four cables, or of eight from rack to rack."""
        return self.delay * (4 if self.uplink is None else 8)

    def _shape(self, cable: Cable, lower: str, within: str = "") -> None:
        """Set the rate of both ends of a cable, and its delay; commands for the lower end begin with `within`."""
        rate = f"tbf rate {cable.rate:.0f}bit burst {_burst(cable.rate)} latency {1e3 * self.queue:g}ms"
        upper = f"tc qdisc add dev {cable.port}"
        if not self.delay:
            self._set_up(f"{upper} root {rate}")
        else:
            # Packets that a node's own end holds up count as not yet sent, and of these TCP allows few, however large
            # its window is (TCP small queues: about a millisecond's). So a packet is held up at upper ends alone, on
            # its way down, and there for two cables: it went up as many as it comes down.
            try:
                self._shell.run(f"{upper} root handle 1: netem delay {2e6 * self.delay:.0f}us limit 100000")
            except LabError as error:
                raise LabError(
                    f"this kernel adds no delay, as it has no netem ({error}): leave the delay out."
                ) from error
            self._set_up(f"{upper} parent 1:1 handle 10: {rate}")
        self._set_up(f"{within}tc qdisc add dev {lower} root {rate}")

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

    def _check(self) -> tuple[float, float]:
        """Return, of transfers from each node to the next, the rate of the worst, and what it may be, in bit/s."""
        try:
            self._shell.run(shlex.join([*self.enter(self.nodes[0].number), *PYTHON, "-c", ""]))
        except LabError as error:
            raise NoTestbed(
                f"{sys.executable} cannot be started on a node ({_last_line(error)}). There, root too may look only "
                "where everybody may: is Python in a closed folder, such as root's home?"
            ) from error
        if len(self.nodes) == 1:
            return math.nan, self.rate
        pairs = list(zip(self.nodes, (*self.nodes[1:], self.nodes[0]), strict=True))
        expected = self._topology.shares((node.number, after.number) for node, after in pairs)
        rates = self._transfer(pairs, expected)
        outcomes = [(rates[after.address], rate) for (_, after), rate in zip(pairs, expected, strict=True)]
        return min(outcomes, key=lambda outcome: outcome[0] / outcome[1])

    def _transfer(self, pairs: Sequence[tuple[Node, Node]], expected: Sequence[float]) -> dict[str, float]:
        """Return the rates of transfers between pairs of nodes, all at once, by the address of who receives."""
        # What passes at once after a pause does not count; nor does what TCP sends until its window is as large as the
        # data on a way with a delay, which grows by a factor of two with each round trip.
        skipped = [round(2 * (_burst(rate) + rate / 8 * self._round_trip)) for rate in expected]
        seconds = max(TRANSFER_S, *(20 * _burst(rate) * 8 / rate for rate in expected)) + 10 * self._round_trip
        script = ""
        for (node, after), count in zip(pairs, skipped, strict=True):
            program = [*PYTHON, transfer.__file__, node.address, after.address, str(seconds), str(count)]
            script += f"{shlex.join([*self.enter(node.number), *program])} &\n"
        try:
            output = self._shell.run(f"{script}wait", seconds + TRANSFER_TIMEOUT_S)
        except LabError as error:
            raise LabError(f"a transfer from node to node failed: {_last_line(error)}") from error
        told = list(map(TRANSFERRED.fullmatch, lines := output.splitlines()))
        rates = {match[2]: float(match[1]) for match in told if match}
        if len(rates) < len(self.nodes):
            others = [line for line, match in zip(lines, told, strict=True) if not match]
            reason = others[0] if others else "no word from it. Is this machine out of memory?"
            failed = f"{len(self.nodes) - len(rates)} of {len(self.nodes)} transfers from node to node failed"
            raise LabError(f"{failed}: {reason}")
        return rates

    # Use

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
        return self._shell.enter(self._node(node).pid if node is not None else None)

    def cut(self, node: int) -> None:
        """Pull the cable of a node."""
        self._shell.run(f"ip link set {self._port(node)} down")
        self._cut_at.setdefault(node, time.monotonic())

    def mend(self, node: int) -> None:
        """Plug the cable of a node in again."""
        self._shell.run(f"ip link set {self._port(node)} up")
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

    def _port(self, node: int) -> str:
        """Return the name of the end of a node's cable at the switch."""
        return self._topology.wire(self._node(node).number).port

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


def _burst(rate: float) -> int:
    """Return what a cable's end may send at once, in bytes."""
    return SLOW_BURST_BYTES if rate <= SLOW_RATE else max(FAST_BURST_BYTES, round(rate / 8 * FAST_BURST_S))


def _segments(rate: float) -> str:
    """Return the setting that holds the pieces of TCP's data to less than a burst, as `ip link` takes it."""
    largest = min(MAX_PIECE_BYTES, round(PIECE * _burst(rate)))
    if rate <= SLOW_RATE:
        largest = min(largest, round(rate / 8 * PIECE_S))
    return f"gso_max_size {largest}" if largest >= 2 * PACKET_BYTES else "gso_max_segs 1"
