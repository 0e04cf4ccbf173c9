"""Time transfers between the nodes of a testbed, or between machines: OUT BYTES SECONDS, for `wire_accuracy.py`.

Each is begun by all ranks at once, and its time is that of the slowest. All take turns, in so many rounds as fit into
the seconds.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

ROUNDS = range(3, 31)  # the fewest, and the most
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
    """Add up all ranks' values in a ring: a chunk a step, to the next rank."""
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
    """Add up all ranks' values as MPI does."""
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


WAYS = (pings, one_flow, all_flows, one_server, ring, all_reduce)


def timed(way: Callable[[np.ndarray, np.ndarray], None], values: np.ndarray, total: np.ndarray) -> float:
    """Return the seconds from the moment when all ranks have come to that when the last has done its part."""
    RANKS.Barrier()
    start = time.perf_counter()
    way(values, total)
    return float(RANKS.allreduce(time.perf_counter() - start, op=MPI.MAX))


def main(out: str, n_bytes: str, seconds: str) -> None:
    """Time all ways, and have rank 0 write their seconds, round by round."""
    values = np.full(int(n_bytes) // 4, RANKS.rank + 1, np.float32)
    total = np.empty_like(values)
    for way in WAYS[:-1]:  # opens connections
        timed(way, values[: len(values) // 8], total[: len(values) // 8])
    first = sum(timed(way, values, total) for way in WAYS)
    rounds = min(max(int(float(seconds) / first), ROUNDS[0]), ROUNDS[-1])
    found: dict[str, list[float]] = {way.__name__: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            found[way.__name__].append(timed(way, values, total))
            if way in (one_server, ring, all_reduce) and (total != RANKS.size * (RANKS.size + 1) / 2).any():
                raise ValueError(f"{way.__name__} has added up to something else")
    if RANKS.rank == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
