"""Slurm: a real cluster's or a small one on this machine, and a terminal for its commands."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.slurm.cluster import Slurm, find_slurm, start_slurm
    from labkit.slurm.terminal import Terminal

__all__ = ["Slurm", "Terminal", "find_slurm", "start_slurm"]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__, submod_attrs={"cluster": ["Slurm", "find_slurm", "start_slurm"], "terminal": ["Terminal"]}
)
