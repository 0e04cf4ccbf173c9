"""MPI ranks: started by `mpirun` on cores of their own, read line by line, ended together; what they send, counted."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.mpi.counting import CountingComm
    from labkit.mpi.launch import RankError, Run, placement, run_ranks

__all__ = ["CountingComm", "RankError", "Run", "placement", "run_ranks"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"counting": ["CountingComm"], "launch": ["RankError", "Run", "placement", "run_ranks"]}
)
