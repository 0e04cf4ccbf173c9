"""Run a script's function on the cases of an exercise, and judge what the ranks saw. `launches.check` starts it:

    mpirun -n 4 python run_cases.py MODULE FUNCTION LIMIT SCRIPT …

MODULE has the exercise (`engine.on_ranks`) of FUNCTION; LIMIT is the time limit of one call, in seconds. Each rank
reports the first mistake of each script, or null.
"""

import copy
import importlib
import re
import sys
import time
import traceback
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.exercises.engine.on_ranks import OVERWRITTEN, Case, OnRanks, Saw
from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.ranks.runner import load, report, watched
from labkit.mpi.counting import CountingComm

# The ranks of each communicator: all in order, as a script might assume, with the first case only; then other ranks in
# another order, so that none keeps its number or neighbours.
MEMBERS = ((0, 1, 2, 3), (2, 0, 3, 1), (3, 1), (2, 0, 3), (1,))
WORLD_HINT = (
    "It was right with the ranks in the order of MPI.COMM_WORLD. Does your script use MPI.COMM_WORLD, or its rank or "
    "size? Use only `ranks`: other ranks, in another order."
)
TRANSFER = re.compile("send|recv|gather|scatter|reduce|toall|bcast")

Mistake = dict[str, str] | None


class CaseComm(CountingComm):
    """A counting communicator on which a rank receives late or pauses after sending, as its case says.

    It takes only arrays of the arguments' type: MPICH aborts a rank that receives float32 into float64, with a stack
    trace of its own functions.
    """

    def __init__(self, comm: MPI.Comm, case: Case, dtype: np.dtype | None) -> None:
        super().__init__(comm)
        last = comm.rank == comm.size - 1
        self._receive_delay_s, self._send_pause_s = (case.receive_delay_s * last, case.send_pause_s * last)
        self._dtype = dtype

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method, slowly."""
        lower = name.lower()
        if lower in ("recv", "irecv"):
            time.sleep(self._receive_delay_s)
        for part in (*args, *kwargs.values()) if self._dtype and TRANSFER.search(lower) else ():
            if (
                isinstance(part, np.ndarray) and part.dtype != self._dtype and part.itemsize > 1
            ):  # bytes may be anything
                raise TypeError(
                    f"an array of {part.dtype} is sent or received into, but all numbers are {self._dtype}. Create it "
                    f"with that type, as with dtype=np.{self._dtype}"
                )
        result = super().call(name, *args, **kwargs)
        if "send" in lower:
            time.sleep(self._send_pause_s)
        return result


def run(exercise: OnRanks, function: Callable[..., Any], script: str, comm: MPI.Comm, case: Case, hint: str) -> Saw:
    """Call the function on this rank, and return what it saw."""
    arguments = copy.deepcopy(case.arguments[comm.rank])
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    ranks, limit_s = CaseComm(comm, case, arrays[0].dtype if arrays else None), float(sys.argv[3])
    with watched(script, f"on rank {comm.rank}, for {case.text}", limit_s, limit_s, hint):
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = copy.deepcopy(function(*() if exercise.world else (ranks,), *arguments))
        allocated = tracemalloc.get_traced_memory()[1] - before
    after = copy.deepcopy(arguments)
    for array in arrays:
        array[...] = OVERWRITTEN
    return Saw(comm.rank, result, after, ranks.messages, ranks.collectives, allocated)


def judge(exercise: OnRanks, case: Case, seen: list[Saw], hint: str) -> Mistake:
    """Return the first invariant that doesn't hold, with its message and hint; no name if it failed itself."""
    for invariant in (exercise.unchanged, *exercise.invariants):
        try:
            invariant(case, seen)
        except NotYet as mistake:
            return {"invariant": invariant.__name__, "message": str(mistake), "hint": mistake.hint or hint}
        except Exception:
            return {"invariant": "", "message": traceback.format_exc(), "hint": ""}
    return None


def try_all(exercise: OnRanks, function: Callable[..., Any], script: str) -> Mistake:
    """Run all cases on all communicators up to the first mistake, and return it on every rank."""
    world = MPI.COMM_WORLD
    own = world.Dup()  # a script's messages never mix with these
    for stage, members in enumerate(MEMBERS[:1] if exercise.world else MEMBERS):
        inside = world.rank in members
        comm = own.Split(0 if inside else MPI.UNDEFINED, members.index(world.rank) if inside else 0)
        mistake: Mistake = None
        if inside:
            script_comm = world if stage == 0 else comm.Dup()
            # The first allreduce of objects duplicates the communicator with the GIL: no thread could report a hang.
            script_comm.allreduce(0)
            for number, case in enumerate(exercise.cases(len(members))):
                hint = WORLD_HINT if stage == 1 and number == 0 else case.hint
                seen = comm.gather(run(exercise, function, script, script_comm, case, hint))
                mistake = comm.bcast(judge(exercise, case, seen, hint) if seen else None)
                if mistake or stage == 0:
                    break
        mistakes: list[Mistake] = own.allgather(mistake)
        if any(mistakes):
            return next(filter(None, mistakes))
    return None


def main() -> None:
    """Run the scripts, and report their mistakes."""
    module, name, _, *scripts = sys.argv[1:]
    exercises = importlib.import_module(module).EXERCISES.values()
    exercise = next(exercise for exercise in exercises if getattr(exercise, "function", "") == name)
    if not exercise.world:
        tracemalloc.start()  # never stopped, which is unsafe while other threads run
    report([try_all(exercise, load(script, name), script) for script in scripts])


if __name__ == "__main__":
    main()
