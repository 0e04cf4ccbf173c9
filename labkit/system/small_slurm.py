"""The names by which ranks and jobs know a Slurm whose nodes are all this machine (`labkit.slurm.cluster`)."""

PREFIX = "lab-cluster-"  # begins the name of its folder, which is its cluster's name too
ON_WIRES = f"{PREFIX}wires-"  # of one whose nodes are joined by wires (`labkit.testbed`)


def is_small(name: str) -> bool:
    """Whether a cluster's or a folder's name is a small Slurm's."""
    return name.startswith(PREFIX)
