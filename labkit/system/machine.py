"""The share of this machine that a process may use: cores, memory, huge pages, instruction sets, NUMA nodes."""

import math
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import zip_longest
from pathlib import Path

from labkit.system import lacks

# The flags in /proc/cpuinfo that each name requires: one complete set.
# The sets follow oneDNN's dispatch: `avx512_core` means F, BW, DQ and VL, and its AMX kernels require tiles with
# both BF16 and INT8 (https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html).
# VNNI is the 4-way INT8 dot product, of any width: client CPUs have it as AVX-VNNI, without AVX-512.
# The first three are Arm64's (the kernel's arch/arm64/elf_hwcaps); DotProd is its 4-way INT8 dot product.
_ISA: dict[str, tuple[set[str], ...]] = {
    "NEON": ({"asimd"},),
    "DotProd": ({"asimddp"},),
    "SVE": ({"sve"},),
    "AVX": ({"avx"},),
    "AVX2": ({"avx2", "fma"},),
    "AVX-512": ({"avx512f", "avx512bw", "avx512dq", "avx512vl"},),
    "VNNI": ({"avx512_vnni"}, {"avx_vnni"}),
    "BF16": ({"avx512_bf16"},),  # not on Arm: TensorFlow leaves bfloat16 to Eigen there, and OpenVINO uses FP16
    "AMX": ({"amx_tile", "amx_bf16", "amx_int8"},),
}
# On Arm64, the kernel shows a number, "CPU part", instead of a name (util-linux' lscpu-arm.c has more).
_PARTS = {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2", "0xd4f": "Neoverse V2"}
# With this variable, glibc's malloc requests 2 MB pages from Linux (its manual, "Memory Allocation Tunables").
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
TENSORFLOW = "tensorflow-cpu" if platform.machine() == "x86_64" else "tensorflow"


@dataclass(frozen=True)
class Machine:
    """The share of a machine that one process may use.

    Attributes
    ----------
    cpus : tuple of int
        Logical CPUs this process may run on.
    cores : tuple of tuple of int
        Those CPUs by physical core, SMT siblings together; only P or only E cores, so that ranks can be compared.
    quota : float or None
        The CPU time limit, in CPUs: from cgroups, or in `cores.usable_machine` from a measuring slot; None if there is
        no limit.
    memory, memory_free : int
        Bytes, within cgroup limits; `memory_free` can be allocated without swapping.
    isa : tuple of str
        The instruction sets: any of AVX, AVX2, AVX-512, VNNI, BF16 and AMX, or of NEON, DotProd and SVE.
    numa : tuple of tuple of int
        Those CPUs by NUMA node; nodes without a usable CPU are left out.
    model : str
        The CPU's name.
    unequal_cores : int
        The number of cores of other types.
    """

    cpus: tuple[int, ...]
    cores: tuple[tuple[int, ...], ...]
    quota: float | None
    memory: int
    memory_free: int
    isa: tuple[str, ...]
    numa: tuple[tuple[int, ...], ...]
    model: str
    unequal_cores: int = 0

    @property
    def usable_cores(self) -> int:
        """The number of physical cores that can be kept busy: those allowed, within the quota; at least 1."""
        limit = len(self.cores) if self.quota is None else math.floor(self.quota)
        return max(1, min(len(self.cores), limit))

    @property
    def may_bind(self) -> bool:
        """Whether to bind ranks to cores: not under a CPU quota, as others may use the same CPUs at any time."""
        return self.quota is None or self.quota >= len(self.cpus)


def this_machine(root: Path = Path("/"), affinity: Iterable[int] | None = None) -> Machine:
    """Read this process's share of the machine from /proc and /sys; see `cores.usable_machine` on a shared server.

    Parameters
    ----------
    root : Path
        Where proc/ and sys/ are; tests point it at synthetic trees.
    affinity : iterable of int, optional
        CPUs the process may run on. By default the kernel's answer for this process; in a synthetic tree, all CPUs
        that are online.
    """
    if affinity is None:
        affinity = os.sched_getaffinity(0) if root == Path("/") else _online(root)
    cpus = tuple(sorted(affinity))
    groups = list(own_cgroups(root))
    cores = _cores(root, cpus)
    equal = _equal_cores(root, cores)
    memory = [_meminfo(root), *(pair for group in groups for pair in _memory(group))]
    cpuinfo, flags = _cpuinfo(root), {*cpu_flags(root)}
    absent = {"BF16", "AMX"} if lacks.reason("bf16") else set()
    part = cpuinfo.get("CPU part", "")
    return Machine(
        cpus=cpus,
        cores=equal,
        quota=min(filter(None, map(quota, groups)), default=None),
        memory=min(limit for limit, _ in memory),
        memory_free=min(free for _, free in memory),
        isa=tuple(name for name, sets in _ISA.items() if name not in absent and any(s <= flags for s in sets)),
        numa=_numa(root, cpus),
        model=cpuinfo.get("model name") or (part and f"Arm {_PARTS.get(part, part)}") or "unknown CPU",
        unequal_cores=len(cores) - len(equal),
    )


def _text(file: Path) -> str | None:
    """Return the file's text; None if this kernel or container does not show the file."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def cpu_list(text: str | None) -> set[int]:
    """Return the CPUs of the kernel's list format, such as `0-3,8`."""
    spans = (part.partition("-") for part in (text or "").split(",") if part)
    return {cpu for first, _, last in spans for cpu in range(int(first), int(last or first) + 1)}


def _online(root: Path) -> set[int]:
    return cpu_list(_text(root / "sys/devices/system/cpu/online"))


def siblings(cpu: int, root: Path = Path("/")) -> set[int]:
    """Return all CPUs of a CPU's core, usable by this process or not; only that CPU if /sys is hidden."""
    return cpu_list(_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")) | {cpu}


def _cores(root: Path, cpus: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted({tuple(sorted(siblings(cpu, root) & set(cpus))) for cpu in cpus}))


def _equal_cores(root: Path, cores: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return the cores of one type, by Intel's lists or Arm's capacities; frequencies differ even within a type."""
    lists = {file.parent.name: cpu_list(_text(file)) for file in root.glob("sys/devices/cpu_*/cpus")}
    types: dict[tuple[int, str], list[tuple[int, ...]]] = {}
    for core in cores:
        listed = next((name for name, cpus in lists.items() if core[0] in cpus), "")
        capacity = "" if listed else _text(root / f"sys/devices/system/cpu/cpu{core[0]}/cpu_capacity")
        types.setdefault((int(capacity or listed == "cpu_core"), listed), []).append(core)
    fastest_first = (types[key] for key in sorted(types, reverse=True))
    # An E core has about half the speed of a P core.
    chosen = reduce(lambda best, slower: slower if len(slower) > 2 * len(best) else best, fastest_first)
    return tuple(chosen)


def _numa(root: Path, cpus: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    files = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    nodes = (tuple(sorted(cpu_list(_text(file)) & set(cpus))) for file in files)
    return tuple(sorted(node for node in nodes if node)) or (cpus,)


def cpu_flags(root: Path = Path("/")) -> list[str]:
    """Return the names of the CPU's features in /proc/cpuinfo, sorted; Arm's kernel has another name for them."""
    cpuinfo = _cpuinfo(root)
    return sorted(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return the fields of the first CPU in /proc/cpuinfo."""
    first = (_text(root / "proc/cpuinfo") or "").partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def _meminfo(root: Path) -> tuple[int, int]:
    """Return the machine's total and free memory in bytes; WSL 1 doesn't report available memory."""
    fields = (line.split() for line in (_text(root / "proc/meminfo") or "").splitlines() if line.endswith("kB"))
    sizes = {name: int(size) * 1024 for name, size, _ in fields}
    return sizes["MemTotal:"], sizes.get("MemAvailable:") or sizes["MemFree:"]


def own_cgroups(root: Path) -> Iterator[Path]:
    """Yield the folder of each cgroup that contains this process, v1 and v2, from the innermost up to the mount's top.

    A limit anywhere on this path applies. In a container, the path in /proc/self/cgroup may start above the mount, or
    name a folder that cannot be seen from inside: then the mount's top is the container's own group.
    """
    paths: dict[str, str] = {}
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)  # v2 names no controller: ""

    for line in (_text(root / "proc/self/mountinfo") or "").splitlines():
        fields = line.split()
        shown_root, mount_point = fields[3:5]
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        mounted = {"cgroup2": {""}, "cgroup": {"cpu", "memory"} & set(options.split(","))}.get(kind, set())
        top = root / mount_point.lstrip("/")
        for path in sorted({paths[controller] for controller in mounted & paths.keys()}):
            inside = Path(os.path.relpath(path, shown_root))
            innermost = top if ".." in inside.parts else top / inside
            yield innermost
            yield from (parent for parent in innermost.parents if parent.is_relative_to(top))


def quota(group: Path) -> float | None:
    """Return the CPU time a cgroup allows, in CPUs."""
    limit = _text(group / "cpu.max")  # v2: "150000 100000", or "max 100000"
    if limit is None:
        limit = f"{_text(group / 'cpu.cfs_quota_us') or -1} {_text(group / 'cpu.cfs_period_us') or 100000}"  # v1
    allowed, period = limit.split()
    return None if allowed in ("max", "-1") else int(allowed) / int(period)


def _memory(group: Path) -> Iterator[tuple[int, int]]:
    """Yield a cgroup's memory limit and the rest of it, in bytes, for v1 and v2.

    The page cache that the kernel would drop first counts as free, as in MemAvailable of /proc/meminfo.
    """
    names = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for limit_file, used_file, cache_field in names:
        limit = _text(group / limit_file)
        if limit is None or limit == "max":
            continue
        used = int(_text(group / used_file) or 0)
        stat = dict(line.split() for line in (_text(group / "memory.stat") or "").splitlines())
        yield int(limit), max(0, int(limit) - used + int(stat.get(cache_field, 0)))


def shares(machine: Machine, n: int, threads: int) -> list[tuple[int, ...]]:
    """Return n shares of the CPUs, of `threads` whole cores each; they overlap if the machine has fewer cores.

    All n and threads with the same product get the same cores, so that ranks can be compared with threads: cores of the
    largest NUMA node. If it has too few, the same number comes from each of as few nodes as possible.
    """
    nodes = [[core for core in machine.cores if core[0] in node] for node in machine.numa]
    nodes.sort(key=len, reverse=True)
    while sum(map(len, nodes[:-1])) >= n * threads:
        nodes.pop()
    alternating = [core for row in zip_longest(*nodes) for core in row if core]
    chosen = set(alternating[: n * threads])
    cores = [core for node in nodes for core in node if core in chosen]
    starts = [share * len(cores) // n for share in range(n)]
    return [tuple(sorted(cpu for core in cores[start : start + threads] for cpu in core)) for start in starts]


def node_cores(machine: Machine, nodes: int) -> int:
    """Return the cores per node on this machine: an equal share, or one shared core if nodes outnumber cores."""
    return max(1, machine.usable_cores // nodes)


def node_cpus(machine: Machine, nodes: int) -> list[tuple[int, ...]]:
    """Return the CPUs of each node on this machine; all CPUs if a quota, not their number, is the limit."""
    return shares(machine, nodes, node_cores(machine, nodes)) if machine.may_bind else [machine.cpus] * nodes
