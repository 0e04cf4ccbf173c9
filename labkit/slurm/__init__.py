"""A Slurm to submit jobs to: the cluster that is there, or a small one on this machine."""
