"""What does a student's script of lab 06 really do? Run by `lab06` on 4 ranks:

    mpirun -n 4 python lab06_ranks.py WHAT SCRIPT

WHAT is one of `CASES`. Calls the script's function on the first 1, 2, 3 and 4 ranks with all cases of that size, and
hands back the facts of each rank.
"""

import sys
from collections.abc import Callable, Iterator

import numpy as np
from mpi4py import MPI

from labkit.exercises.ranks import load, tell, watched
from labkit.messages import Counted

SIZES = (2, 3, 4, 1)  # what fails first is told, so the plainest case is first
LENGTHS = (12, 1_000, 10, 5, 3, 2, 1, 300_003)  # also shorter than the ranks, and too long to be sent eagerly


def reductions(function: Callable, script: str, ranks: Counted, server_numbers: tuple[int, ...]) -> Iterator[dict]:
    """Sum arrays of all lengths: with each number of servers, or without any for (0,)."""
    for length in LENGTHS:
        for servers in server_numbers:
            # Small whole numbers, so that sums are exact in any order.
            every = np.random.default_rng(length).integers(-50, 50, (ranks.size, length)).astype(np.float32)
            gradient, total = every[ranks.rank].copy(), np.full(length, np.nan, np.float32)
            case = f"{_many(length, 'number')} on {_many(ranks.size, 'rank')}"
            case += f", with {_many(servers, 'server')}" * bool(servers)
            with watched(script, f"on rank {ranks.rank}, for {case}"):
                function(ranks, gradient, total, *([servers] if servers else []))
            yield {
                "length": length,
                "servers": servers,
                "case": case,
                "empty": int(np.isnan(total).sum()),
                "wrong": int((total != every.sum(axis=0)).sum()),
                "own": bool(np.array_equal(total, gradient)),
                "changed": not np.array_equal(gradient, every[ranks.rank]),
            }


def layers(function: Callable, script: str, ranks: Counted) -> Iterator[dict]:
    """Layers of several shapes, of which each rank holds some rows of the input and some neurons."""
    for rows, inputs, neurons in ((2, 3, 5), (1, 1, 1), (64, 4, 32)):
        rng = np.random.default_rng(rows)
        x, weights, bias = (
            rng.integers(-9, 9, shape).astype(np.float32)
            for shape in ((ranks.size * rows, inputs), (inputs, ranks.size * neurons), (ranks.size * neurons,))
        )
        mine, own = (slice(ranks.rank * many, (ranks.rank + 1) * many) for many in (rows, neurons))
        given = x[mine].copy(), weights[:, own].copy(), bias[own].copy()
        before = [array.copy() for array in given]
        case = f"{_many(rows, 'row')} and {_many(neurons, 'neuron')} a rank, on {_many(ranks.size, 'rank')}"
        with watched(script, f"on rank {ranks.rank}, for {case}"):
            got = function(ranks, *given)
        right = (x @ weights + bias)[mine]
        fits = isinstance(got, np.ndarray) and got.shape == right.shape
        yield {
            "case": case,
            "type": None if got is None else type(got).__name__,
            "shape": list(np.shape(got)) if isinstance(got, np.ndarray) else None,
            "wanted": list(right.shape),
            "wrong": int((got != right).sum()) if fits else None,
            "mixed": bool(fits and np.array_equal(np.sort(got, axis=None), np.sort(right, axis=None))),
            "changed": not all(map(np.array_equal, given, before)),
            "least": (ranks.size - 1) * (4 * rows * inputs + 4 * rows * neurons),
        }


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"


CASES: dict[str, Callable[[Callable, str, Counted], Iterator[dict]]] = {
    "parameter_server": lambda function, script, ranks: reductions(
        function, script, ranks, tuple(sorted({1, min(2, ranks.size), ranks.size}))
    ),
    "ring_allreduce": lambda function, script, ranks: reductions(function, script, ranks, (0,)),
    "split_dense": layers,
}


def main() -> None:
    """Run the script's function on each number of ranks, and print what came."""
    what, script = sys.argv[1:]
    (function,) = load(script, what)
    world, told = MPI.COMM_WORLD, []
    for place, size in enumerate(SIZES):
        part = world.Split(0 if world.rank < size else MPI.UNDEFINED)
        if part == MPI.COMM_NULL:
            continue
        Counted.reset()
        for number, case in enumerate(CASES[what](function, script, Counted(part))):
            told.append(
                case
                | {
                    "size": size,
                    "order": [place, number],
                    "messages": len(Counted.messages),
                    "to": sorted({dest for dest, _ in Counted.messages}),
                    "collectives": sorted({name for name, _ in Counted.collectives}),
                    "bytes": Counted.bytes_sent(),
                }
            )
            Counted.reset()
            part.Barrier()
    tell(told)


if __name__ == "__main__":
    main()
