"""The seconds that wires need for an operation, with the headers of all packets, and what other nodes would need."""

import math

import numpy as np

# A packet of Ethernet without jumbo frames: 1,500 bytes, of which IP and TCP (with its timestamps) have 52, and 14
# bytes of Ethernet's own before it, which a wire here counts too (tc-tbf(8)).
PACKET_BYTES, PAYLOAD_BYTES = 1514, 1448
COLLECTIVES = ("ring", "all_reduce")


def seconds(way: str, nodes: int, n_bytes: int, rate: float) -> float:
    """Return the seconds that an operation of `labkit.accuracy.on_ranks` takes on wires of a rate, in bit/s."""
    return passes(way, nodes) * n_bytes * PACKET_BYTES / PAYLOAD_BYTES * 8 / rate


def passes(way: str, nodes: int) -> float:
    """Return how many times the bytes of all values go over the wire that has most of them."""
    return {
        "one_flow": 1.0,
        "all_flows": 1.0,
        "one_server": 2.0 * (nodes - 1),
        "ring": 2 * (nodes - 1) / nodes,
        "all_reduce": 2 * (nodes - 1) / nodes,
    }[way]


def messages(way: str, nodes: int) -> float:
    """Return the messages that a collective sends one after the other."""
    return 2 * (nodes - 1) if way == "ring" else 2 * math.log2(nodes)


def predict(way: str, n_bytes: int, known: dict[int, float], nodes: int) -> float:
    """Return the seconds of a collective on a number of nodes, from those measured on two other numbers.

    Two unknowns, the time to begin a message and that of a byte, are solved from the two.
    """
    parts = np.array([[messages(way, n), passes(way, n) * n_bytes] for n in known])
    begin, byte = np.linalg.solve(parts, [*known.values()])
    return float(messages(way, nodes) * begin + passes(way, nodes) * n_bytes * byte)
