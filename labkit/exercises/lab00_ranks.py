"""A probe of lab 00: runs a student's script on a rank. Started by `lab00`:

    mpirun -n 4 python lab00_ranks.py SCRIPT [100]

Runs the whole script, watched. With a number, rank 1 adds it to all numbers that it sends, and reports how often: a sum
that another rank has without receiving any stays the same.
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
    counts: ClassVar[Counter[str]] = Counter(sent=0, louder=0)  # messages and collectives; numbers and arrays in them

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
        if self.rank != 1 or (name.lower().endswith(("bcast", "scatter")) and root != self.rank):  # it only receives
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


for _name in (*SENDING, *EXCHANGING, *COLLECTIVES, *ROOTED):
    for _form in (_name, _name.capitalize(), f"{_name.capitalize()}v", f"I{_name}"):
        if hasattr(MPI.Intracomm, _form):
            setattr(Louder, _form, _louder(_form))


class Window(MPI.Win):
    """A window into a rank's memory, through which others read and write: opening one counts as sending."""


def _counted(create: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> MPI.Win:
        Louder.counts["sent"] += 1
        window: MPI.Win = create(*args, **kwargs)
        return window

    return counted


for _name in ("Create", "Allocate", "Allocate_shared", "Create_dynamic"):
    setattr(Window, _name, staticmethod(_counted(getattr(MPI.Win, _name))))


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
