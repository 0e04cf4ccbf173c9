"""A synthetic machine for all tests."""

from labkit.system.machine import Machine

GIB = 2**30
ALL_ISA = ("AVX", "AVX2", "AVX-512", "VNNI", "BF16", "AMX")


def machine(
    cores: int = 2,
    smt: int = 1,
    numa: int = 1,
    *,
    quota: float | None = None,
    first: int = 0,
    gib: float = 16,
    isa: tuple[str, ...] = ALL_ISA,
) -> Machine:
    """Return a machine with Linux's CPU numbers: all first siblings before all second ones, cores by node.

    Parameters
    ----------
    cores, smt, numa : int
        The numbers of physical cores, CPUs per core, and NUMA nodes.
    quota : float, optional
        The cgroups' CPU time limit, in CPUs.
    first : int
        The lowest CPU number.
    gib : float
        Memory in GiB, 90% of it free.
    isa : tuple of str
        The instruction sets.
    """
    core_list = tuple(tuple(range(first + core, first + cores * smt, cores)) for core in range(cores))
    share = cores // numa
    nodes = (core_list[node * share : (node + 1) * share] for node in range(numa))
    return Machine(
        cpus=tuple(range(first, first + cores * smt)),
        cores=core_list,
        quota=quota,
        memory=int(gib * GIB),
        memory_free=int(gib * GIB * 0.9),
        isa=isa,
        numa=tuple(tuple(sorted(cpu for core in node for cpu in core)) for node in nodes),
        model="Synthetic CPU",
    )
