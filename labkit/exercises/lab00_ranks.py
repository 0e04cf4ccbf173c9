"""Probe for lab 00: run a student's script on a rank. `lab00` starts it:

    mpirun -n 4 python lab00_ranks.py SCRIPT [100]

It runs the whole script, watched. With a number, rank 1 adds it to all numbers that it sends, and reports how often: a
rank that receives none of them still prints the same total. Data sent through windows, other kinds of communicators or
persistent requests is unchanged, and reported as unwatched.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from labkit.exercises.ranks import runner
from labkit.mpi.counting import COLLECTIVES, EXCHANGING, ROOTED, SENDING


class RaisingComm(MPI.Intracomm):
    """A communicator that adds `amount` to the numbers that rank 1 sends."""

    amount: ClassVar[int] = 0
    # Messages and collectives; numbers and arrays raised in them; messages and collectives that were not watched.
    counts: ClassVar[Counter[str]] = Counter(sent=0, raised=0, unwatched=0)

    def raised(self, value: Any) -> Any:
        """Return a number, an array or a list of numbers, raised; anything else unchanged."""
        if isinstance(value, list):
            return [self.raised(part) for part in value]
        if isinstance(value, int | float | np.number | np.ndarray) and not isinstance(value, bool):
            self.counts["raised"] += 1
            return value + self.amount
        return value

    def raise_in_place(self, buffer: Any) -> None:
        """Raise the numbers in a buffer, which is an array or [array, type], as in mpi4py."""
        array = np.asarray(buffer[0] if isinstance(buffer, list | tuple) else buffer)
        if array.dtype.kind in "iuf" and array.itemsize > 1:
            self.counts["raised"] += 1
            array += self.amount


def _raising(name: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    def raising(self: RaisingComm, *args: Any, **kwargs: Any) -> Any:
        root = kwargs.get("root", next((arg for arg in args[1:] if isinstance(arg, int)), 0))
        from_root = name.lower().removeprefix("i").removesuffix("v") in ("bcast", "scatter")
        if self.rank != 1 or (from_root and root != self.rank):  # it only receives
            return method(self, *args, **kwargs)
        self.counts["sent"] += 1
        first, *rest = args or kwargs.values()
        if name.islower():
            first = self.raised(first)
        else:
            self.raise_in_place(rest[0] if first is MPI.IN_PLACE else first)
        if args:
            return method(self, first, *rest, **kwargs)
        return method(self, **kwargs | {next(iter(kwargs)): first})

    return raising


def _unwatched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose calls count as unwatched sending."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        RaisingComm.counts["sent"] += 1
        RaisingComm.counts["unwatched"] += 1
        return method(*args, **kwargs)

    return counted


for _name in (*SENDING, *EXCHANGING, *COLLECTIVES, *ROOTED):
    for _form in (_name, _name.capitalize(), f"{_name.capitalize()}v", f"I{_name}", f"I{_name}v"):
        if hasattr(MPI.Intracomm, _form):
            setattr(RaisingComm, _form, _raising(_form))
    for _form in (f"{_name.capitalize()}_init", f"{_name.capitalize()}v_init"):  # `Send_init`, with `Start` much later
        if hasattr(MPI.Intracomm, _form):
            setattr(RaisingComm, _form, _unwatched(getattr(MPI.Intracomm, _form)))
for _name in (
    *("Split", "Split_type", "Create", "Create_group", "Create_cart", "Create_graph", "Create_intercomm"),
    *("Create_dist_graph", "Create_dist_graph_adjacent", "Psend_init", "Alltoallw", "Ialltoallw", "Alltoallw_init"),
):
    setattr(RaisingComm, _name, _unwatched(getattr(MPI.Intracomm, _name)))


class Window(MPI.Win):
    """A window into a rank's memory, which others read and write; creating one counts as sending."""


for _name in ("Create", "Allocate", "Allocate_shared", "Create_dynamic"):
    setattr(Window, _name, staticmethod(_unwatched(getattr(MPI.Win, _name))))


def main() -> None:
    """Run the script, and report what rank 1 sent."""
    # The first all-reduce of objects creates a communicator, and blocks all of Python meanwhile: the watch couldn't
    # report a rank that hangs there.
    MPI.COMM_WORLD.allreduce(0)
    if len(sys.argv) > 2:
        RaisingComm.amount = int(sys.argv.pop())
        # The script imports them from MPI.
        MPI.COMM_WORLD = RaisingComm(MPI.COMM_WORLD)  # type: ignore[misc]
        MPI.Win = Window  # type: ignore[misc]
    runner.main()
    if RaisingComm.amount:
        runner.report(RaisingComm.counts)


if __name__ == "__main__":
    main()
