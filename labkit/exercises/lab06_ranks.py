"""Probe for lab 06: call a function of a student's script. `lab06` starts it on 4 ranks:

    mpirun -n 4 python lab06_ranks.py FUNCTION SCRIPT LIMIT

FUNCTION is one of `CASES`, LIMIT the seconds that a call may take. The function is called on 1, 2, 3 and 4 of the ranks
with all cases of that size, and each rank reports the results.
"""

import contextlib
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from labkit.exercises.ranks.runner import load, report, watched
from labkit.mpi.counting import CountingComm
from labkit.system.words import plural

# The ranks of MPI.COMM_WORLD in each communicator, ordered so that no rank keeps its number or neighbours. The first
# failure is the one reported, so the simplest size is first.
MEMBERS = ((3, 1), (2, 0, 3), (2, 0, 3, 1), (1,))
LENGTHS = (12, 1_000, 10, 5, 3, 2, 1, 300_003)  # some shorter than the number of ranks, one too long to be sent eagerly
SHAPES = (  # rows per rank, inputs, neurons per rank
    (2, 3, 5),
    (1, 1, 1),
    (64, 4, 32),  # fewer bytes in the weights than in rows and outputs
    (2, 64, 48),  # far more
)
BEFORE, AFTERWARDS = (
    4_096.0,
    -12_345.0,
)  # in `total` before the call; in all arrays after it, for late senders
PAUSE_S = 0.2  # the last rank's pause after each message in a short case: time for a server to overtake its pushes
DELAY_S = 0.05  # the last rank's delay before it receives the longest arrays: time for others to return too early


class World(MPI.Intracomm):
    """MPI.COMM_WORLD, closed while a student's function runs on another communicator."""

    closed: ClassVar[bool] = False

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, unless the communicator is closed."""
        if World.closed and not name.startswith("__"):
            raise RuntimeError(
                f"MPI.COMM_WORLD.{name} is used. Your function gets the communicator `ranks`, with different "
                f"ranks in a different order: use ranks.{name}"
            )
        return super().__getattribute__(name)


class Hesitant(CountingComm):
    """A counting communicator on which this rank may receive late, or pause after it has sent.

    It takes only float32 arrays: MPICH aborts a rank that receives float32 into float64, with a stack trace of its own
    functions.
    """

    delay_s: ClassVar[float] = 0.0  # before each receive
    pause_s: ClassVar[float] = 0.0  # after each send


def _hesitant(name: str) -> Callable[..., Any]:
    method, late, sends = getattr(CountingComm, name), name.lower() in ("recv", "irecv"), "send" in name.lower()

    def communicate(self: Hesitant, *args: Any, **kwargs: Any) -> Any:
        if late:
            time.sleep(self.delay_s)
        for part in (*args, *kwargs.values()):
            if isinstance(part, np.ndarray) and part.dtype != np.float32 and part.itemsize > 1:  # bytes may be anything
                raise TypeError(
                    f"an array of {part.dtype} is sent or received into, but all numbers are float32. Create it "
                    "with that type, as with dtype=np.float32"
                )
        result = method(self, *args, **kwargs)
        if sends:
            time.sleep(self.pause_s)
        return result

    return communicate


for _name in dir(MPI.Intracomm):
    if re.search("send|recv|gather|scatter|reduce|toall|bcast", _name.lower()):
        setattr(Hesitant, _name, _hesitant(_name))


@contextlib.contextmanager
def calling(script: str, ranks: CountingComm, case: str) -> Iterator[None]:
    """Watch a call of a student's function, which must use this communicator for everything."""
    limit_s = float(sys.argv[3])
    with watched(script, f"on rank {ranks.rank}, for {case}", limit_s, limit_s):
        World.closed = True
        yield
        World.closed = False


def reductions(
    function: Callable[..., Any], script: str, ranks: CountingComm, server_numbers: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    """Sum arrays of all lengths with each number of servers, (0,) for none, and yield the reports."""
    for length in LENGTHS:
        for servers in server_numbers:
            # 17 bits, so that sums are exact in any order in float32, but not in fewer bits.
            gradients = _numbers(np.random.default_rng(length), 2**16, (ranks.size, length), 2**10)
            gradient, total = gradients[ranks.rank].copy(), np.full(length, BEFORE, np.float32)
            case = f"{plural(length, 'number')} on {plural(ranks.size, 'rank')}"
            case += f", with {plural(servers, 'server')}" * bool(servers)
            last = ranks.rank == ranks.size - 1
            # While its next push is under way, a server that has all pushes may send its sum to another one.
            paused = length == LENGTHS[0] and servers == 2 and ranks.size > 2
            case += f", where rank {ranks.size - 1} waits after each message, so a sum may overtake its push" * paused
            Hesitant.delay_s = DELAY_S if last and length == max(LENGTHS) else 0.0
            Hesitant.pause_s = PAUSE_S if last and paused else 0.0
            with calling(script, ranks, case):
                function(ranks, gradient, total, *([servers] if servers else []))
            sums, gradient_after, right = total.copy(), gradient.copy(), gradients.sum(axis=0)
            at = int(np.argmax(sums != right))  # the first wrong sum; then how often it contains each rank's gradient
            times = (t for t in itertools.product((1, 0, 2), repeat=ranks.size) if t @ gradients[:, at] == sums[at])
            total[:] = gradient[:] = AFTERWARDS
            yield {
                "length": length,
                "servers": servers,
                "case": case,
                "paused": paused,
                "empty": int((sums == BEFORE).sum()),
                "wrong": int((sums != right).sum()),
                "first": [at, float(sums[at]), float(right[at]), next(times, None)],
                "own": bool(np.array_equal(sums, gradient_after)),
                "late": bool((sums == AFTERWARDS).any()),
                "added": np.array_equal(sums[sums != right] - BEFORE, right[sums != right]),
                "changed": not np.array_equal(gradient_after, gradients[ranks.rank]),
            }


def layers(function: Callable[..., Any], script: str, ranks: CountingComm) -> Iterator[dict[str, Any]]:
    """Run layers of several shapes, each rank with some input rows and some neurons, and yield the reports."""
    for rows, inputs, neurons in SHAPES:
        rng = np.random.default_rng(rows)
        x, weights, bias = (
            _numbers(rng, 36, shape, 4)
            for shape in ((ranks.size * rows, inputs), (inputs, ranks.size * neurons), (ranks.size * neurons,))
        )
        mine, columns = (slice(ranks.rank * width, (ranks.rank + 1) * width) for width in (rows, neurons))
        arguments = x[mine].copy(), weights[:, columns].copy(), bias[columns].copy()
        before = [array.copy() for array in arguments]
        case = f"{plural(rows, 'row')} and {plural(neurons, 'neuron')} per rank, on {plural(ranks.size, 'rank')}"
        with calling(script, ranks, case):
            result = function(ranks, *arguments)
        right = (x @ weights + bias)[mine]
        fits = isinstance(result, np.ndarray) and result.shape == right.shape
        yield {
            "case": case,
            "type": None if result is None else type(result).__name__,
            "shape": list(np.shape(result)) if isinstance(result, np.ndarray) else None,
            "wanted": list(right.shape),
            "wrong": int((result != right).sum()) if fits else None,
            "mixed": bool(fits and np.array_equal(np.sort(result, axis=None), np.sort(right, axis=None))),
            "changed": not all(map(np.array_equal, arguments, before)),
            "least": (ranks.size - 1) * (4 * rows * inputs + 4 * rows * neurons),
        }


def _numbers(rng: np.random.Generator, below: int, shape: tuple[int, ...], parts: int) -> np.ndarray:
    """Return float32 numbers of both signs, mostly not integers: multiples of 1 / `parts`."""
    return rng.integers(-below, below, shape).astype(np.float32) / np.float32(parts)


CASES: dict[str, Callable[[Callable[..., Any], str, CountingComm], Iterator[dict[str, Any]]]] = {
    "parameter_server": lambda function, script, ranks: reductions(
        function, script, ranks, tuple(range(1, ranks.size + 1))
    ),
    "ring_allreduce": lambda function, script, ranks: reductions(function, script, ranks, (0,)),
    "split_dense": layers,
}


def main() -> None:
    """Run the script's function on each number of ranks, and report the results."""
    name, script = sys.argv[1:3]
    world, findings = MPI.COMM_WORLD, []
    MPI.COMM_WORLD = World(world)  # type: ignore[misc]  # for the script, which gets it from there
    (function,) = load(script, name)
    for place, members in enumerate(MEMBERS):
        if world.rank not in members:
            world.Split(MPI.UNDEFINED)
            continue
        part = world.Split(0, key=members.index(world.rank))
        CountingComm.reset()
        for number, case in enumerate(CASES[name](function, script, Hesitant(part))):
            findings.append(
                case
                | {
                    "rank": part.rank,
                    "size": part.size,
                    "order": [place, number],
                    "messages": len(CountingComm.messages),
                    "longest": max((size for _, size in CountingComm.messages), default=0),
                    "to": sorted({dest for dest, _ in CountingComm.messages}),
                    "collectives": sorted({name for name, _ in CountingComm.collectives}),
                    "bytes": CountingComm.bytes_sent(),
                }
            )
            CountingComm.reset()
            part.Barrier()
    report(findings)


if __name__ == "__main__":
    main()
