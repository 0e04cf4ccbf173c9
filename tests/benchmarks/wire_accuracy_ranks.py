"""Time transfers between the nodes of a testbed, or between machines: OUT BYTES SECONDS, for `wire_accuracy.py`.

All ranks start each transfer at the same time, and the slowest determines its time. Transfers alternate, for as many
rounds as fit into SECONDS.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

ROUNDS = range(6, 31)  # minimum and maximum
PINGS = 50
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
    ball = total[:2]
    for _ in range(PINGS):
        if RANKS.rank == 0:
            RANKS.Send(ball, dest=1)
            RANKS.Recv(ball, source=1)
        elif RANKS.rank == 1:
            RANKS.Recv(ball, source=0)
            RANKS.Send(ball, dest=0)


OPERATIONS = (pings, one_flow, all_flows, one_server, ring, all_reduce)


def timed(operation: Callable[[np.ndarray, np.ndarray], None], values: np.ndarray, total: np.ndarray) -> float:
    """Return the seconds from a barrier until the last rank has finished its part."""
    RANKS.Barrier()
    start = time.perf_counter()
    operation(values, total)
    return float(RANKS.allreduce(time.perf_counter() - start, op=MPI.MAX))


def main(out: str, n_bytes: str, seconds: str) -> None:
    """Time all operations, and have rank 0 write their seconds, round by round."""
    values = np.full(int(n_bytes) // 4, RANKS.rank + 1, np.float32)
    total = np.empty_like(values)
    for operation in OPERATIONS[:-1]:  # opens connections
        timed(operation, values[: len(values) // 8], total[: len(values) // 8])
    first = sum(timed(operation, values, total) for operation in OPERATIONS)
    rounds = min(max(int(float(seconds) / first), ROUNDS[0]), ROUNDS[-1])
    times: dict[str, list[float]] = {operation.__name__: [] for operation in OPERATIONS}
    for _ in range(rounds):
        for operation in OPERATIONS:
            times[operation.__name__].append(timed(operation, values, total))
            if operation in (one_server, ring, all_reduce) and (total != RANKS.size * (RANKS.size + 1) / 2).any():
                raise ValueError(f"{operation.__name__} returned a wrong sum")
    if RANKS.rank == 0:
        Path(out).write_text(json.dumps(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
