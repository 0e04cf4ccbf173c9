"""Build a testbed's switches, nodes and cables from network namespaces, bridges, virtual cables and rate limits."""

import re
from dataclasses import dataclass
from pathlib import Path

from labkit.system.errors import LabError
from labkit.system.machine import Machine, node_cpus
from labkit.testbed.namespaces import Shell
from labkit.testbed.topology import CORE, Topology

SUBNET = "10.77.0"
SWITCH_ADDRESS = f"{SUBNET}.254"
MODULES = "bridge veth sch_tbf"
# Errors of newer and older kernels that lack a module, as iproute2 5 and 6 report them.
KERNEL_LACKS = re.compile(
    "Unknown device type|qdisc kind is unknown|RTNETLINK answers: (Operation not sup|No such file)"
)
INTERFACES = Path("/sys/class/net")

# A burst is what a wire may send at once after a pause: little, so that small messages take as long as the rate
# implies. The kernel passes TCP data on in pieces of up to 64 KiB (segmentation offload). A smaller burst splits each
# piece again, and a wire of 1 Gbit/s then carried a quarter of its rate here, so pieces are limited to less than a
# burst. A piece is sent in one go, and costs the cores a timer at either end: on slow wires, a piece is as long as the
# rate allows in `PIECE_S`, or a packet of 1,500 bytes.
SLOW_RATE = 1.5e8
SLOW_BURST_BYTES, FAST_BURST_BYTES, FAST_BURST_S = 16_000, 30_000, 2.5e-4
PIECE = 0.9  # the largest piece, as a share of a burst, without headers
PIECE_S = 7e-4
PACKET_BYTES, MAX_PIECE_BYTES = 1_500, 65_536
QUEUE_S = 0.1  # the longest wait of a packet for a wire, before it is dropped
# TCP's largest window, as time at the rate of the slowest cable, in whose queue the window's data waits. If two ranks
# send to each other, as in recursive halving, MPI's reply to one waits behind data for the other; with 20 ms,
# all-reduces on 4 to 8 nodes took 20 to 50% too long, and with 5 ms 1 to 3% (100 Mbit/s). A real card's queue in Linux
# is as short (BQL). Next to a slow cable, fast ones need a window that lasts until the acknowledgement arrives.
WINDOW_S, FAST_WINDOW_S, MIN_WINDOW_BYTES = 5e-3, 5e-4, 16_384


@dataclass(frozen=True)
class Node:
    """A node: its number from 1, its address, the process that holds its namespaces, and the CPUs it runs on."""

    number: int
    address: str
    pid: int
    cpus: tuple[int, ...]


def build(shell: Shell, topology: Topology, machine: Machine, name: str) -> tuple[Node, ...]:
    """Make the switches, the nodes and their cables; return the nodes.

    Parameters
    ----------
    shell : Shell
        The shell in whose namespaces the switches are.
    topology : Topology
        The nodes, racks and rates.
    machine : Machine
        The machine whose cores the nodes share.
    name : str
        The name of the nodes' interfaces.

    Raises
    ------
    LabError
        If the kernel lacks a module for them.
    """
    nodes = tuple(
        Node(number, f"{SUBNET}.{number}", shell.spawn(), cpus)
        for number, cpus in enumerate(node_cpus(machine, topology.nodes), start=1)
    )
    tuning = _tune_tcp(topology)
    _run(
        shell,
        f"""
        {tuning}
        ip link add {CORE} type bridge
        ip addr add {SWITCH_ADDRESS}/24 dev {CORE}
        ip link set {CORE} up
        """,
    )
    if topology.uplink is not None:
        for rack in range(1, len(topology.racks) + 1):
            _add_rack(shell, rack, topology.uplink)
    for node in nodes:
        _add_node(shell, node, topology, tuning, name)
    return nodes


def _add_rack(shell: Shell, rack: int, rate: float) -> None:
    """Make a rack's switch and its cable to the core."""
    segments = _segments(rate)
    _run(
        shell,
        f"""
        ip link add rack{rack} type bridge
        ip link set rack{rack} up
        ip link add down{rack} type veth peer name up{rack}
        ip link set down{rack} master {CORE} {segments} up
        ip link set up{rack} master rack{rack} {segments} up
        {_limit(f"down{rack}", rate)}
        {_limit(f"up{rack}", rate)}
        """,
    )


def _add_node(shell: Shell, node: Node, topology: Topology, tuning: str, name: str) -> None:
    """Make a node's interface and its cable to its switch."""
    rate, port, within = topology.wire(node.number), f"port{node.number}", f"nsenter -t {node.pid} -n"
    segments = _segments(rate)
    _run(
        shell,
        f"""
        ip link add {port} type veth peer name {name} netns {node.pid}
        ip link set {port} master {topology.switch(node.number)} {segments} up
        nsenter -t {node.pid} -u hostname node{node.number}
        {within} sh -ec '{tuning}
        ip link set lo up
        ip addr add {node.address}/24 dev {name}
        ip link set {name} {segments} up'
        {_limit(port, rate, topology.queue)}
        {within} {_limit(name, rate)}
        """,
    )


def _tune_tcp(topology: Topology) -> str:
    """Return the commands that tune TCP for these cables, in the network namespace where they run."""
    window = round(max(MIN_WINDOW_BYTES, topology.slowest / 8 * WINDOW_S, topology.rate / 8 * FAST_WINDOW_S))
    settings = {
        "/proc/sys/net/ipv4/tcp_[rw]mem": f"4096 {MIN_WINDOW_BYTES} {window}",
        # IPv6 is unused here, and its neighbour discovery would add traffic.
        "/proc/sys/net/ipv6/conf/*/disable_ipv6": "1",
    }
    # In containers, /proc/sys may be read-only (Docker without --privileged): queues may then be longer.
    return "; ".join(
        f"for file in {files}; do [ ! -w $file ] || echo {value} >$file; done" for files, value in settings.items()
    )


def set_limit(shell: Shell, node: Node, name: str, rate: float) -> None:
    """Change the rate of a node's cable, at both ends."""
    shell.run(f"{_limit(f'port{node.number}', rate)}\nnsenter -t {node.pid} -n {_limit(name, rate)}")


def _limit(interface: str, rate: float, queue: int | None = None) -> str:
    """Return the command that limits the rate, and the queue in bytes, of one end of a cable."""
    waiting = f"latency {1e3 * QUEUE_S:g}ms" if queue is None else f"limit {queue}"
    return f"tc qdisc replace dev {interface} root tbf rate {rate:.0f}bit burst {burst(rate)} {waiting}"


def _run(shell: Shell, script: str) -> None:
    """Run commands that need optional parts of the kernel."""
    try:
        shell.run(script)
    except LabError as error:
        if not KERNEL_LACKS.search(str(error)):
            raise
        text = str(error).splitlines()[-1]
        raise LabError(
            f"this kernel lacks a module that wires need ({text}). As root: `modprobe -a {MODULES}`."
        ) from error


def burst(rate: float) -> int:
    """Return the number of bytes that a cable's end may send at once."""
    return SLOW_BURST_BYTES if rate <= SLOW_RATE else max(FAST_BURST_BYTES, round(rate / 8 * FAST_BURST_S))


def _segments(rate: float) -> str:
    """Return the `ip link` setting that limits pieces of TCP data to less than a burst."""
    largest = min(MAX_PIECE_BYTES, round(PIECE * burst(rate)))
    if rate <= SLOW_RATE:
        largest = min(largest, round(rate / 8 * PIECE_S))
    return f"gso_max_size {largest}" if largest >= 2 * PACKET_BYTES else "gso_max_segs 1"


def interface() -> str:
    """Return the name for the nodes' interfaces, which one of this machine's interfaces has.

    UCX looks for interfaces in /sys/class/net, which lists those of the network namespace where /sys was mounted, and
    skips bridges (UCX 1.20, uct_tcp_query_devices). Without root, another /sys can't be mounted everywhere.
    https://github.com/openucx/ucx/pull/4462 asked the kernel instead.
    """
    names = sorted(path.name for path in INTERFACES.iterdir() if path.is_dir()) if INTERFACES.is_dir() else []
    usable = [
        name
        for name in names
        if name != "lo" and not any((INTERFACES / name / kind).exists() for kind in ("bridge", "bonding"))
    ]
    if not usable:
        raise LabError("this machine has no network interface but lo, so UCX would find none on the nodes.")
    return "eth0" if "eth0" in usable else usable[0]
