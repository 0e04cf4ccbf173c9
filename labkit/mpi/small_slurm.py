"""Names that identify a small Slurm, whose nodes are all this machine (`labkit.slurm.cluster`), to ranks and jobs."""

PREFIX = "lab-cluster-"  # the prefix of its folder's name, which is also its cluster's name
ON_WIRES = f"{PREFIX}wires-"  # the same, if wires connect its nodes (`labkit.testbed`)


def is_small(name: str) -> bool:
    """Return whether the name of a cluster or folder is a small Slurm's."""
    return name.startswith(PREFIX)
