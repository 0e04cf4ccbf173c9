"""Measure the rates of a testbed's wires with a short transfer from each node to the next, all at once."""

import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from labkit.system.errors import LabError
from labkit.testbed import transfer
from labkit.testbed.namespaces import NoTestbed, Shell
from labkit.testbed.topology import Topology
from labkit.testbed.wiring import Node, burst

PYTHON = (sys.executable, "-I", "-S")  # for programs of the standard library alone
TRANSFER_S = 0.2  # the length of the transfer
TRANSFER_TIMEOUT_S = 60.0  # the limit of that transfer beyond its length: all nodes start Python at once
TRANSFERRED = re.compile(r"got ([0-9.e+]+) at ([0-9.]+)")


def check_python(shell: Shell, node: Node) -> None:
    """Raise NoTestbed when Python cannot be started on a node."""
    try:
        shell.run(shlex.join([*shell.enter(node.pid), *PYTHON, "-c", ""]))
    except LabError as error:
        raise NoTestbed(
            f"{sys.executable} cannot be started on a node ({_last_line(error)}). There, root too may look only "
            "where everybody may: is Python in a closed folder, such as root's home?"
        ) from error


def measure(shell: Shell, topology: Topology, nodes: Sequence[Node]) -> tuple[float, float]:
    """Return the measured and the expected rate, in bit/s, of the transfer that falls shortest of what it could get.

    Measured is not a number on one node.

    Raises
    ------
    LabError
        When a transfer fails.
    """
    if len(nodes) == 1:
        return math.nan, topology.rate
    expected = {node.address: topology.to_next(node.number) for node in nodes}
    rates = transfer_to_next(shell, nodes, expected)
    worst = min(expected, key=lambda address: rates[address] / expected[address])
    return rates[worst], expected[worst]


def transfer_to_next(shell: Shell, nodes: Sequence[Node], expected: Mapping[str, float]) -> dict[str, float]:
    """Return the rates of transfers from each node to the next, all at once, by the sender's address."""
    # What passes at once after a pause does not count.
    seconds = max(TRANSFER_S, *(20 * burst(rate) * 8 / rate for rate in expected.values()))
    following = [*nodes[1:], nodes[0]]
    senders = {after.address: node.address for node, after in zip(nodes, following, strict=True)}
    script = ""
    for node, after in zip(nodes, following, strict=True):
        skipped = 2 * burst(expected[node.address])
        program = [*PYTHON, transfer.__file__, node.address, after.address, str(seconds), str(skipped)]
        script += f"{shlex.join([*shell.enter(node.pid), *program])} &\n"
    try:
        output = shell.run(f"{script}wait", seconds + TRANSFER_TIMEOUT_S)
    except LabError as error:
        raise LabError(f"a transfer from node to node failed: {_last_line(error)}") from error
    matches = list(map(TRANSFERRED.fullmatch, lines := output.splitlines()))
    rates = {senders[match[2]]: float(match[1]) for match in matches if match}
    if len(rates) < len(nodes):
        others = [line for line, match in zip(lines, matches, strict=True) if not match]
        reason = others[0] if others else "no word from it. Is this machine out of memory?"
        failed = f"{len(nodes) - len(rates)} of {len(nodes)} transfers from node to node failed"
        raise LabError(f"{failed}: {reason}")
    return rates


def _last_line(error: LabError) -> str:
    return str(error).splitlines()[-1]
