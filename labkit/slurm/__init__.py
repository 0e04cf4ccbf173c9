"""Slurm: a real cluster's or a small one on this machine; submit jobs and follow them."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from labkit.slurm.cluster import Slurm, find_slurm, start_slurm, stop_slurm, watch_nodes
    from labkit.slurm.jobs import Job, NotStarted, RankJob, slurm_command, submit_job

__all__ = [
    "Job",
    "NotStarted",
    "RankJob",
    "Slurm",
    "find_slurm",
    "slurm_command",
    "start_slurm",
    "stop_slurm",
    "submit_job",
    "watch_nodes",
]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "cluster": ["Slurm", "find_slurm", "start_slurm", "stop_slurm", "watch_nodes"],
        "jobs": ["Job", "NotStarted", "RankJob", "slurm_command", "submit_job"],
    },
)
