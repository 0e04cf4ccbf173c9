"""A made-up machine for all tests."""

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
    """Return a machine as Linux numbers CPUs: all first siblings before all second ones, cores by node.

    Parameters
    ----------
    cores, smt, numa : int
        Physical cores, CPUs of each core, NUMA nodes.
    quota : float, optional
        CPU time that cgroups allow, in CPUs.
    first : int
        The lowest CPU's number.
    gib : float
        Memory; nine tenths of it are free.
    isa : tuple of str
        The instruction sets it has.
    """
    grouped = tuple(tuple(range(first + core, first + cores * smt, cores)) for core in range(cores))
    share = cores // numa
    nodes = (grouped[node * share : (node + 1) * share] for node in range(numa))
    return Machine(
        cpus=tuple(range(first, first + cores * smt)),
        cores=grouped,
        quota=quota,
        memory=int(gib * GIB),
        memory_free=int(gib * GIB * 0.9),
        isa=isa,
        numa=tuple(tuple(sorted(cpu for core in node for cpu in core)) for node in nodes),
        model="Made-up CPU",
    )
