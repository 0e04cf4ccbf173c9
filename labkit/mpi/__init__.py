"""MPI ranks: start them with `mpirun` on separate cores, read their output, end them together, count their messages."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.mpi.counting import CountingComm
    from labkit.mpi.failure import RankError
    from labkit.mpi.launch import Run, placement, run_ranks

__all__ = ["CountingComm", "RankError", "Run", "placement", "run_ranks"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "counting": ["CountingComm"],
        "failure": ["RankError"],
        "launch": ["Run", "placement", "run_ranks"],
    },
)
