"""Measure the excess time of operations on wires over theory: a row of the table in docs/deploy/wires.md.

    ./lab testbed --nodes 4 --rate "1 Gbit/s" -- mpirun -n 4 python tests/benchmarks/wire_accuracy.py "1 Gbit/s"

Theory is the bytes at the wire's rate, including packet headers. All ranks start each operation at the same time, and
the slowest determines its time.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from labkit.measure.figures import summarize
from labkit.testbed.units import parse_rate

MAX_BYTES, BYTES_S = 4_000_000, 0.32  # the size of the values, or on slow wires their transfer time
ROWS_S, ROUNDS = 3.0, (6, 30)  # for all rounds, and their minimum and maximum
PINGS = 50  # per round
# An Ethernet packet without jumbo frames: 1,500 bytes, of which IP and TCP (with timestamps) use 52, plus a 14-byte
# Ethernet header, which a testbed's wire counts too (tc-tbf(8)).
PACKET_BYTES, PAYLOAD_BYTES = 1514, 1448
RANKS = MPI.COMM_WORLD
FOLLOWING, PRECEDING = (RANKS.rank + 1) % RANKS.size, (RANKS.rank - 1) % RANKS.size


def one_flow(values: np.ndarray, total: np.ndarray) -> None:
    """Send all values from rank 0 to rank 1."""
    if RANKS.rank == 0:
        RANKS.Send(values, dest=1)
    elif RANKS.rank == 1:
        RANKS.Recv(total, source=0)


def all_flows(values: np.ndarray, total: np.ndarray) -> None:
    """Send all values to the next rank, all ranks at once."""
    RANKS.Sendrecv(values, dest=FOLLOWING, recvbuf=total, source=PRECEDING)


def one_server(values: np.ndarray, total: np.ndarray) -> None:
    """Add up all ranks' values on rank 0, and send the sum to all."""
    if RANKS.rank:
        RANKS.Send(values, dest=0)
        RANKS.Recv(total, source=0)
        return
    received = np.empty((RANKS.size - 1, len(values)), values.dtype)
    MPI.Request.Waitall([RANKS.Irecv(row, source=rank) for rank, row in enumerate(received, start=1)])
    np.add(values, received.sum(axis=0), out=total)
    MPI.Request.Waitall([RANKS.Isend(total, dest=rank) for rank in range(1, RANKS.size)])


def ring(values: np.ndarray, total: np.ndarray) -> None:
    """Add up all ranks' values in a ring: one chunk per step, to the next rank."""
    total[:] = values
    chunks = np.array_split(total, RANKS.size)
    received = np.empty_like(chunks[0])
    for step in range(RANKS.size - 1):
        mine, theirs = chunks[(RANKS.rank - step) % RANKS.size], chunks[(RANKS.rank - step - 1) % RANKS.size]
        RANKS.Sendrecv(mine, dest=FOLLOWING, recvbuf=received[: len(theirs)], source=PRECEDING)
        theirs += received[: len(theirs)]
    for step in range(RANKS.size - 1):
        mine, theirs = chunks[(RANKS.rank + 1 - step) % RANKS.size], chunks[(RANKS.rank - step) % RANKS.size]
        RANKS.Sendrecv(mine, dest=FOLLOWING, recvbuf=theirs, source=PRECEDING)


def all_reduce(values: np.ndarray, total: np.ndarray) -> None:
    """Add up all ranks' values with MPI's all-reduce."""
    RANKS.Allreduce(values, total)


def pings(values: np.ndarray, total: np.ndarray) -> None:
    """Send 8 bytes from rank 0 to rank 1 and back, `PINGS` times."""
    for sender in (0, 1) * PINGS:
        if RANKS.rank == sender:
            RANKS.Send(total[:2], dest=1 - sender)
        elif RANKS.rank == 1 - sender:
            RANKS.Recv(total[:2], source=sender)


PASSES = {  # through the busiest wire, of all values
    one_flow: 1.0,
    all_flows: 1.0,
    one_server: 2.0 * (RANKS.size - 1),
    ring: 2 * (RANKS.size - 1) / RANKS.size,
    all_reduce: 2 * (RANKS.size - 1) / RANKS.size,
}


def timed(operation: Callable[[np.ndarray, np.ndarray], None], values: np.ndarray, total: np.ndarray) -> float:
    """Return the seconds from a barrier until the last rank has finished its part."""
    RANKS.Barrier()
    start = time.perf_counter()
    operation(values, total)
    return float(RANKS.allreduce(time.perf_counter() - start, op=MPI.MAX))


def main(rate: str) -> None:
    """Time all operations in alternation, and print each one's excess over theory on rank 0."""
    bits_per_second = parse_rate(rate)
    values = np.full(round(min(MAX_BYTES, BYTES_S * bits_per_second / 8) / 4), RANKS.rank + 1, np.float32)
    total, operations = np.empty_like(values), (*PASSES, pings)
    for operation in operations:  # opens connections
        timed(operation, values[: len(values) // 8], total[: len(values) // 8])
    first = sum(timed(operation, values, total) for operation in operations)
    times: dict[Callable, list[float]] = {operation: [] for operation in operations}
    for _ in range(min(max(int(ROWS_S / first), ROUNDS[0]), ROUNDS[1])):
        for operation in operations:
            times[operation].append(timed(operation, values, total))
            if operation in (one_server, ring, all_reduce) and (total != RANKS.size * (RANKS.size + 1) / 2).any():
                raise ValueError(f"{operation.__name__} returned a wrong sum")
    if RANKS.rank == 0:
        for operation, passes in PASSES.items():
            minimum = passes * values.nbytes * PACKET_BYTES / PAYLOAD_BYTES * 8 / bits_per_second
            figure = summarize(times[operation])
            low, value, high = (seconds / minimum - 1 for seconds in (figure.low, figure.value, figure.high))
            print(f"{operation.__name__:10} {value:+5.0%} ({low:+.0%} to {high:+.0%})")
        print(f"round trip {1e6 * np.median(times[pings]) / PINGS:.0f} µs")


if __name__ == "__main__":
    main(*sys.argv[1:])
