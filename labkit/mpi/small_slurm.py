"""The names by which ranks and jobs know a Slurm whose nodes are all this machine (`labkit.slurm.cluster`)."""

PREFIX = "lab-cluster-"  # the beginning of the name of its folder, which is its cluster's name too
ON_WIRES = f"{PREFIX}wires-"  # the same, where wires join its nodes (`labkit.testbed`)


def is_small(name: str) -> bool:
    """Whether a cluster's or a folder's name is a small Slurm's."""
    return name.startswith(PREFIX)
