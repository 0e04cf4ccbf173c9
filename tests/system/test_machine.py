"""`this_machine` reads synthetic machines and this one correctly."""

import os
from pathlib import Path

import psutil
import pytest

from labkit.system.machine import Machine, shares, this_machine

GIB = 1024**3
AVX2 = "fpu sse4_2 avx f16c fma avx2 bmi2"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl avx512cd"
SAPPHIRE_RAPIDS = f"{AVX512} avx512_bf16 avx512_vnni avx_vnni amx_bf16 amx_tile amx_int8"


class Tree:
    """A synthetic /proc and /sys: by default `cpus` CPUs in one NUMA node, without SMT or limits."""

    def __init__(self, root: Path, cpus: int, memory: int = 16 * GIB, flags: str = AVX2, model: str = "Synthetic CPU"):
        self.root = root
        self.write("proc/cpuinfo", "\n\n".join(f"processor\t: {c}\nmodel name\t: {model}\nflags\t\t: {flags}"
                                               for c in range(cpus)))  # fmt: skip
        self.write("proc/meminfo", f"MemTotal: {memory // 1024} kB\nMemAvailable: {memory // 2048} kB\nHugePages: 0")
        self.write("sys/devices/system/cpu/online", f"0-{cpus - 1}")
        self.numa(f"0-{cpus - 1}")
        self.siblings([str(c) for c in range(cpus)])

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def numa(self, *cpu_lists: str) -> None:
        for node, cpus in enumerate(cpu_lists):
            self.write(f"sys/devices/system/node/node{node}/cpulist", cpus)

    def siblings(self, of_each_cpu: list[str]) -> None:
        for cpu, siblings in enumerate(of_each_cpu):
            self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings)

    def cgroup(self, mounts: str, own: str, files: dict[str, str | int]) -> None:
        self.write("proc/self/mountinfo", mounts)
        self.write("proc/self/cgroup", own)
        for path, text in files.items():
            self.write(path, str(text))

    def read(self, affinity=None) -> Machine:
        return this_machine(self.root, affinity)


V2 = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1_CPU = "33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "34 30 0:30 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory"
V1_UNLIMITED = 9223372036854771712  # memory.limit_in_bytes without a limit


def test_two_core_vm(tmp_path):
    machine = Tree(tmp_path, 2, model="Intel(R) Xeon(R) Processor").read()
    assert machine == Machine(
        cpus=(0, 1),
        cores=((0,), (1,)),
        quota=None,
        memory=16 * GIB,
        memory_free=8 * GIB,
        isa=("AVX", "AVX2"),
        numa=((0, 1),),
        model="Intel(R) Xeon(R) Processor",
    )
    assert machine.usable_cores == 2


@pytest.fixture
def big(tmp_path):
    """64 cores on 2 NUMA nodes, with SMT: CPU n and n + 64 share a core."""
    tree = Tree(tmp_path, 128, memory=512 * GIB, flags=SAPPHIRE_RAPIDS)
    tree.siblings([f"{c % 64},{c % 64 + 64}" for c in range(128)])
    tree.numa("0-31,64-95", "32-63,96-127")
    return tree


def test_smt_siblings_are_one_core_and_nodes_are_distinguished(big):
    machine = big.read()
    assert len(machine.cpus) == 128
    assert machine.usable_cores == len(machine.cores) == 64
    assert machine.cores[5] == (5, 69)
    assert [len(node) for node in machine.numa] == [64, 64]
    assert machine.numa[1][:2] == (32, 33)
    assert machine.isa == ("AVX", "AVX2", "AVX-512", "VNNI", "BF16", "AMX")


def test_affinity_restricts_cores_and_nodes(big):
    machine = big.read(affinity=[7, 4, 5, 6])
    assert machine.cpus == (4, 5, 6, 7)
    assert machine.cores == ((4,), (5,), (6,), (7,))
    assert machine.numa == ((4, 5, 6, 7),)
    assert machine.usable_cores == 4


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ("fpu sse4_2", ()),
        ("fpu avx", ("AVX",)),
        ("avx avx2", ("AVX",)),  # AVX2 kernels use FMA
        (f"{AVX2} avx_vnni", ("AVX", "AVX2", "VNNI")),
        (f"{AVX2} avx512f avx512cd avx512er avx512pf", ("AVX", "AVX2")),  # Knights Landing: no kernels for it
        (f"{AVX512} avx512_vnni", ("AVX", "AVX2", "AVX-512", "VNNI")),
        (f"{AVX512} amx_tile", ("AVX", "AVX2", "AVX-512")),  # tiles, but no instructions to multiply them
    ],
)
def test_isa(tmp_path, flags, isa):
    assert Tree(tmp_path, 2, flags=flags).read().isa == isa


def p_and_e(tree: Tree, p_cores: int, e_cores: int, lists: dict[str, str]) -> None:
    """Number CPUs like Intel: adjacent siblings of P cores, then E cores, which have no SMT."""
    pairs = [f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" for cpu in range(2 * p_cores)]
    tree.siblings(pairs + [str(2 * p_cores + core) for core in range(e_cores)])
    for name, cpus in lists.items():
        tree.write(f"sys/devices/{name}/cpus", cpus)


@pytest.mark.parametrize(
    ("p_cores", "e_cores", "lists", "usable"),
    [
        (6, 8, {"cpu_core": "0-11", "cpu_atom": "12-19"}, "P"),
        (4, 8, {"cpu_core": "0-7", "cpu_atom": "8-15"}, "P"),
        (2, 8, {"cpu_core": "0-3", "cpu_atom": "4-11"}, "E"),
        (4, 10, {"cpu_core": "0-7", "cpu_atom": "8-15", "cpu_lowpower": "16-17"}, "P"),
        (6, 8, {}, "both"),  # as in a VM, which hides core types
        (0, 14, {"cpu_core": "0-13"}, "both"),
    ],
)
def test_p_and_e_cores_are_not_mixed(tmp_path, p_cores, e_cores, lists, usable):
    tree = Tree(tmp_path, 2 * p_cores + e_cores)
    p_and_e(tree, p_cores, e_cores, lists)
    machine = tree.read()
    p, e = set(range(2 * p_cores)), set(range(2 * p_cores, 2 * p_cores + e_cores))
    assert set().union(*machine.cores) == {"P": p, "E": e, "both": p | e}[usable]
    assert len(machine.cores) + machine.unequal_cores == p_cores + e_cores
    assert machine.cpus == tuple(range(2 * p_cores + e_cores))
    for share in shares(machine, 2, len(machine.cores) // 2):
        assert set(share) <= set().union(*machine.cores)


@pytest.mark.parametrize(
    ("capacities", "cores"),
    [
        ([1024] * 4, {0, 1, 2, 3}),
        ([446] * 4 + [1024] * 4, {4, 5, 6, 7}),
        ([400] * 4 + [871] * 3 + [1024], {4, 5, 6}),
    ],
)
def test_arm_shows_the_capacity_of_each_core(tmp_path, capacities, cores):
    tree = Tree(tmp_path, len(capacities))
    for cpu, capacity in enumerate(capacities):
        tree.write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", str(capacity))
    assert set().union(*tree.read().cores) == cores


def test_wsl_1_does_not_report_available_memory(tmp_path):
    tree = Tree(tmp_path, 2)
    tree.write("proc/meminfo", "MemTotal:       16651528 kB\nMemFree:         6253416 kB\nHighTotal:             0 kB")
    machine = tree.read()
    assert (machine.memory, machine.memory_free) == (16651528 * 1024, 6253416 * 1024)


# The first CPU in Arm64 kernels: no "flags", no "model name".
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: {features}
CPU implementer\t: {implementer}
CPU architecture: 8
CPU part\t: {part}
CPU revision\t: 1
"""
NEOVERSE_N1 = "fp asimd evtstrm aes crc32 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"


@pytest.mark.parametrize(
    ("features", "numbers", "isa", "model"),
    [
        (NEOVERSE_N1, ("0x41", "0xd0c"), ("NEON", "DotProd"), "Arm Neoverse N1"),
        (f"{NEOVERSE_N1} sve svei8mm svebf16 i8mm bf16", ("0x41", "0xd40"), ("NEON", "DotProd", "SVE"),
         "Arm Neoverse V1"),
        ("fp asimd evtstrm crc32 cpuid", ("0x41", "0xd08"), ("NEON",), "Arm 0xd08"),
        (f"{NEOVERSE_N1} bf16", ("0x61", "0x000"), ("NEON", "DotProd"), "Arm 0x000"),
    ],
)  # fmt: skip
def test_arm64_names_are_recognised(tmp_path, features, numbers, isa, model):
    tree = Tree(tmp_path, 2)
    tree.write("proc/cpuinfo", ARM.format(features=features, implementer=numbers[0], part=numbers[1]))
    assert (tree.read().isa, tree.read().model) == (isa, model)


def test_container_with_cpu_max_and_memory_max(tmp_path):
    tree = Tree(tmp_path, 8)
    top = "sys/fs/cgroup"
    tree.cgroup(
        V2,
        "0::/",
        {
            f"{top}/cpu.max": "150000 100000",
            f"{top}/memory.max": 2 * GIB,
            f"{top}/memory.current": GIB,
            f"{top}/memory.stat": f"anon 1\ninactive_file {GIB // 2}",
        },
    )
    machine = tree.read()
    assert machine.quota == 1.5
    assert machine.usable_cores == 1
    assert len(machine.cores) == 8
    assert machine.memory == 2 * GIB
    assert machine.memory_free == GIB + GIB // 2


def test_the_tightest_limit_of_the_hierarchy_applies(tmp_path):
    tree = Tree(tmp_path, 8)
    top = "sys/fs/cgroup"
    tree.cgroup(
        V2,
        "0::/user.slice/job.scope",
        {
            f"{top}/user.slice/cpu.max": "300000 100000",
            f"{top}/user.slice/memory.max": "max",
            f"{top}/user.slice/job.scope/cpu.max": "max 100000",
            f"{top}/user.slice/job.scope/memory.max": 3 * GIB,
            f"{top}/neighbour.slice/cpu.max": "50000 100000",  # not ours
        },
    )
    machine = tree.read()
    assert (machine.quota, machine.usable_cores) == (3.0, 3)
    assert (machine.memory, machine.memory_free) == (3 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("quota", "period", "seen", "usable"),
    [(-1, 100000, None, 4), (200000, 100000, 2.0, 2), (25000, 50000, 0.5, 1), (800000, 100000, 8.0, 4)],
)
def test_cgroup_v1(tmp_path, quota, period, seen, usable):
    tree = Tree(tmp_path, 4)
    cpu = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    tree.cgroup(
        f"{V1_CPU}\n{V1_MEMORY}",
        "4:memory:/\n2:cpu,cpuacct:/docker/abc",
        {
            f"{cpu}/cpu.cfs_quota_us": quota,
            f"{cpu}/cpu.cfs_period_us": period,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB,
        },
    )
    machine = tree.read()
    assert (machine.quota, machine.usable_cores) == (seen, usable)
    assert (machine.memory, machine.memory_free) == (16 * GIB, 8 * GIB)


def test_bare_minimum_of_files(tmp_path):
    """No topology, NUMA, cgroups or cpuinfo, as in some sandboxes."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1048576 kB\nMemAvailable: 524288 kB\n")
    machine = this_machine(tmp_path, affinity=[2, 3])
    assert machine == Machine((2, 3), ((2,), (3,)), None, GIB, GIB // 2, (), ((2, 3),), "unknown CPU")


def test_this_machine_agrees_with_the_kernel():
    machine = this_machine()
    assert set(machine.cpus) == os.sched_getaffinity(0)
    assert sorted(cpu for core in machine.cores for cpu in core) == list(machine.cpus)
    assert sorted(cpu for node in machine.numa for cpu in node) == list(machine.cpus)
    assert 1 <= machine.usable_cores <= len(machine.cpus)
    assert 0 < machine.memory_free <= machine.memory <= psutil.virtual_memory().total
    assert machine.model != "unknown CPU"
