"""Measure the rates of a testbed's wires with short concurrent transfers from each node to the next."""

import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from labkit.system.errors import LabError
from labkit.testbed import transfer
from labkit.testbed.namespaces import Shell
from labkit.testbed.topology import Topology
from labkit.testbed.wiring import Node, burst

PYTHON = (sys.executable, "-I", "-S")  # for programs that need only the standard library
TRANSFER_S = 0.2  # the duration of a transfer
TRANSFER_TIMEOUT_S = 60.0  # on top of its duration, as all nodes start Python at once
TRANSFERRED = re.compile(r"got ([0-9.e+]+) at ([0-9.]+)")


def measure(shell: Shell, topology: Topology, nodes: Sequence[Node]) -> tuple[float, float]:
    """Return the measured and expected rate, in bit/s, of the transfer that falls furthest short.

    With one node, the measured rate is NaN.

    Raises
    ------
    LabError
        If a transfer fails.
    """
    if len(nodes) == 1:
        return math.nan, topology.rate
    expected = {node.address: topology.to_next(node.number) for node in nodes}
    rates = transfer_to_next(shell, nodes, expected)
    worst = min(expected, key=lambda address: rates[address] / expected[address])
    return rates[worst], expected[worst]


def transfer_to_next(shell: Shell, nodes: Sequence[Node], expected: Mapping[str, float]) -> dict[str, float]:
    """Return the rates of concurrent transfers from each node to the next, by the sender's address."""
    # The burst that passes at once after a pause does not count.
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
        messages = [line for line, match in zip(lines, matches, strict=True) if not match]
        reason = messages[0] if messages else "no message. Is this machine out of memory?"
        failed = f"{len(nodes) - len(rates)} of {len(nodes)} transfers from node to node failed"
        raise LabError(f"{failed}: {reason}")
    return rates


def _last_line(error: LabError) -> str:
    return str(error).splitlines()[-1]
