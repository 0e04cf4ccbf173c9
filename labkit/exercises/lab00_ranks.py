"""A probe of lab 00: runs a student's script on a rank. Started by `lab00`:

    mpirun -n 4 python lab00_ranks.py SCRIPT [100]

Runs the whole script, watched. With a number, rank 1 adds it to all numbers that it sends, and reports how often: a sum
that another rank has without receiving any stays the same. What it sends through windows, through communicators of
another kind, or by requests that are started again and again stays as it is, and is reported as not watched.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from labkit.exercises import ranks
from labkit.mpi.counting import COLLECTIVES, EXCHANGING, ROOTED, SENDING


class Louder(MPI.Intracomm):
    """A communicator with which rank 1 sends larger numbers than it is given."""

    more: ClassVar[int] = 0
    # Messages and collectives; numbers and arrays in them; those of `sent` that nobody watched.
    counts: ClassVar[Counter[str]] = Counter(sent=0, louder=0, unwatched=0)

    def louder(self, value: Any) -> Any:
        """Return a number, an array or a list of numbers with larger ones; anything else as it is."""
        if isinstance(value, list):
            return [self.louder(part) for part in value]
        if isinstance(value, int | float | np.number | np.ndarray) and not isinstance(value, bool):
            self.counts["louder"] += 1
            return value + self.more
        return value

    def louder_in_place(self, buffer: Any) -> None:
        """Make the numbers of a buffer larger, which mpi4py takes as an array or as [array, type]."""
        array = np.asarray(buffer[0] if isinstance(buffer, list | tuple) else buffer)
        if array.dtype.kind in "iuf" and array.itemsize > 1:
            self.counts["louder"] += 1
            array += self.more


def _louder(name: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    def louder(self: Louder, *args: Any, **kwargs: Any) -> Any:
        root = kwargs.get("root", next((arg for arg in args[1:] if isinstance(arg, int)), 0))
        from_root = name.lower().removeprefix("i").removesuffix("v") in ("bcast", "scatter")
        if self.rank != 1 or (from_root and root != self.rank):  # it only receives
            return method(self, *args, **kwargs)
        self.counts["sent"] += 1
        first, *rest = args or kwargs.values()
        if name.islower():
            first = self.louder(first)
        else:
            self.louder_in_place(rest[0] if first is MPI.IN_PLACE else first)
        if args:
            return method(self, first, *rest, **kwargs)
        return method(self, **kwargs | {next(iter(kwargs)): first})

    return louder


def _unwatched(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that counts as sending, whatever is sent by what it makes."""

    def counted(*args: Any, **kwargs: Any) -> Any:
        Louder.counts["sent"] += 1
        Louder.counts["unwatched"] += 1
        return method(*args, **kwargs)

    return counted


for _name in (*SENDING, *EXCHANGING, *COLLECTIVES, *ROOTED):
    for _form in (_name, _name.capitalize(), f"{_name.capitalize()}v", f"I{_name}", f"I{_name}v"):
        if hasattr(MPI.Intracomm, _form):
            setattr(Louder, _form, _louder(_form))
    for _form in (f"{_name.capitalize()}_init", f"{_name.capitalize()}v_init"):  # `Send_init`, and `Start` much later
        if hasattr(MPI.Intracomm, _form):
            setattr(Louder, _form, _unwatched(getattr(MPI.Intracomm, _form)))
for _name in (
    *("Split", "Split_type", "Create", "Create_group", "Create_cart", "Create_graph", "Create_intercomm"),
    *("Create_dist_graph", "Create_dist_graph_adjacent", "Psend_init", "Alltoallw", "Ialltoallw", "Alltoallw_init"),
):
    setattr(Louder, _name, _unwatched(getattr(MPI.Intracomm, _name)))


class Window(MPI.Win):
    """A window into a rank's memory, through which others read and write: opening one counts as sending."""


for _name in ("Create", "Allocate", "Allocate_shared", "Create_dynamic"):
    setattr(Window, _name, staticmethod(_unwatched(getattr(MPI.Win, _name))))


def main() -> None:
    """Run the script, and report what rank 1 sent."""
    # The first all-reduce of objects makes a communicator of its own, and nothing else in Python goes on meanwhile:
    # no watch would report a rank that hangs there.
    MPI.COMM_WORLD.allreduce(0)
    if len(sys.argv) > 2:
        Louder.more = int(sys.argv.pop())
        # For the script, which takes them from there.
        MPI.COMM_WORLD = Louder(MPI.COMM_WORLD)  # type: ignore[misc]
        MPI.Win = Window  # type: ignore[misc]
    ranks.main()
    if Louder.more:
        ranks.report(Louder.counts)


if __name__ == "__main__":
    main()
