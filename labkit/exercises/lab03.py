"""Checks of lab 03: the numbers of a benchmark, a configuration, an operation count, a log, a bottleneck."""

import random
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from hypothesis import strategies as st

from labkit.exercises.answers import call, for_all
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import expect
from labkit.exercises.values import describe, number, parts, same, whole

lab = Lab("03")


@lab.exercise(
    1,
    hints=(
        "Make an array of the steps' speeds first: images / np.array(seconds). Two of the three numbers come from it. "
        "The mean does not: a slow step takes more of the time.",
        "The mean is images * n / sum(seconds). The uncertainty is np.std(speeds) / np.sqrt(n).",
        "The jitter is 1.4826 * np.median(np.abs(speeds - np.median(speeds))).",
    ),
)
def speed(answer) -> None:
    """The three numbers of several runs: even steps, uneven ones, an even number of them, a single one."""

    def decide(images: int, seconds: list[float]) -> None:
        called = f"speed({images}, {seconds})"
        got = parts(call(answer, images, seconds), 3, f"{called} to be three numbers")
        speeds = [images / value for value in seconds]
        middle = statistics.median(speeds)
        right = {
            "mean": images * len(seconds) / sum(seconds),
            "uncertainty": statistics.pstdev(speeds) / len(speeds) ** 0.5,
            "jitter": 1.4826 * statistics.median(abs(value - middle) for value in speeds),
        }
        for (name, value), mine in zip(right.items(), got, strict=True):
            # What is left of equal speeds is what rounding makes of them.
            same(mine, value, f"the {name} in {called}", rel=1e-5, abs=1e-6 * right["mean"])

    for images, seconds in ((10, [1.0, 1.0, 1.0]), (12, [1.0, 2.0, 4.0]), (64, [2.0, 1.0, 1.25, 8.0]), (16, [0.5])):
        decide(images, seconds)
    tenths = st.integers(1, 60).map(lambda count: count / 10)
    for_all(decide, images=st.integers(1, 256), seconds=st.lists(tenths, min_size=1, max_size=9))


def _lscpu(sockets: int, cores: int, threads: int, nodes: int, new: bool, seed: int = 0) -> str:
    """What lscpu says of a machine, in its old form or in that since version 2.37; from seed 1, lines are shuffled."""
    total = sockets * cores * threads
    of_nodes = [
        (2, f"NUMA node{node} CPU(s)", f"{node * total // nodes}-{(node + 1) * total // nodes - 1}")
        for node in range(nodes)
    ]
    counts = [
        (4, "Thread(s) per core", threads),
        (4, "Core(s) per socket", cores),
        (4, "Socket(s)", sockets),
    ]
    if new:
        lines = [
            (0, "Architecture", "x86_64"),
            (2, "CPU op-mode(s)", "32-bit, 64-bit"),
            (0, "CPU(s)", total),
            (2, "On-line CPU(s) list", f"0-{total - 1}"),
            (0, "Vendor ID", "GenuineIntel"),
            (2, "Model name", "Some CPU @ 2.10GHz"),
            (4, "Model", 85),
            *counts,
            (4, "Stepping", 7),
            (4, "CPU(s) scaling MHz", "28%"),
            (0, "Caches (sum of all)", ""),
            (2, "L2", f"{sockets * cores} MiB ({sockets * cores} instances)"),
            (0, "NUMA", ""),
            (2, "NUMA node(s)", nodes),
            *of_nodes,
            (0, "Vulnerabilities", ""),
            (2, "Spec rstack overflow", "Vulnerable: Safe RET, no microcode"),
        ]
    else:
        lines = [
            (0, "Architecture", "x86_64"),
            (0, "CPU(s)", total),
            (0, "On-line CPU(s) list", f"0-{total - 1}"),
            *counts,
            (0, "NUMA node(s)", nodes),
            (0, "Model name", "Some CPU @ 2.10GHz"),
            (0, "L2 cache", "1024K"),
            *of_nodes,
        ]
    if seed:
        random.Random(seed).shuffle(lines)
    width = 41 if new else 21
    return "".join(f"{' ' * (indent * new) + name + ':':{width}}{value}\n" for indent, name, value in lines)


# Sockets, cores of each, threads of each core, NUMA nodes, whether lscpu is new.
MACHINES = ((2, 9, 2, 2, False), (1, 2, 1, 1, True), (1, 64, 2, 4, True), (2, 28, 1, 1, False))


@lab.exercise(
    2,
    hints=(
        'Physical cores are "Core(s) per socket" times "Socket(s)". "CPU(s)" counts hardware threads.',
        'A line without its indentation, split at its first colon, gives a name and a value: line.strip().split(":", '
        '1). Several names end in "CPU(s)", so compare whole names.',
        'found = dict(re.findall(r"^\\s*(.+?):\\s+(\\d+)$", lscpu, flags=re.M)) has all the numbers by name, still '
        'as text. Interleave when int(found["NUMA node(s)"]) > 1.',
    ),
)
def settings_for(answer) -> None:
    """The settings of machines of all sizes, whose texts have both forms, and their lines in any order."""

    def decide(sockets: int, cores: int, threads: int, nodes: int, new: bool, seed: int = 0) -> None:
        right = {
            "OMP_NUM_THREADS": sockets * cores,
            "num_intra_threads": sockets * cores,
            "num_inter_threads": sockets,
            "interleave": nodes > 1,
        }
        machine = ", ".join(
            f"{count} {what}" + "s" * (count > 1)
            for count, what in ((sockets, "socket"), (cores, "core"), (threads, "thread"), (nodes, "node"))
        )
        case = f"for a machine of {machine} (cores for each socket, threads for each core)"
        case += ", whose lscpu has its lines in another order" * (seed > 0)
        got = _named(call(answer, _lscpu(sockets, cores, threads, nodes, new, seed)), right)
        for name, value in right.items():
            if name == "interleave":
                same(got[name], value, f"{name} {case}")
            else:
                same(whole(got[name], f"{name} {case}", int_only=True), value, f"{name} {case}")

    for seed in range(3):
        for machine in MACHINES:
            decide(*machine, seed)
    for_all(
        decide,
        sockets=st.integers(1, 8),
        cores=st.integers(1, 128),
        threads=st.integers(1, 8),
        nodes=st.integers(1, 12),
        new=st.booleans(),
        seed=st.integers(0, 99),
    )


def _named(got: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return a dict, or a column of a table, that has these names and no others."""
    expect(isinstance(got, Mapping | pd.Series), f"a dict; it is {describe(got)}")
    expect(
        set(got.keys()) == set(names), f"the keys {', '.join(sorted(names))}; it has {', '.join(map(str, got.keys()))}"
    )
    return dict(got.items())


@lab.exercise(
    3,
    hints=(
        "How many numbers does a layer's output have? How many terms does each add up? Each term is two operations.",
        "Forward: 2 * kernel**2 * channels_in * channels_out * side**2, summed over the layers.",
        "Training is three times the forward pass, less the gradient of the first layer with respect to the images: "
        "that layer's share of the forward pass, once.",
    ),
)
def flops(answer) -> None:
    """One layer, two layers in both orders, several, and counts that 32 bits do not hold."""

    def decide(layers: list[tuple[int, int, int, int]]) -> None:
        each = [2 * k * k * c_in * c_out * side * side for k, c_in, c_out, side in layers]
        called = f"flops({layers})"
        got = parts(call(answer, layers), 2, f"{called} to be two numbers")
        for name, mine, value in zip(("forward", "training"), got, (sum(each), 3 * sum(each) - each[0]), strict=True):
            same(mine, value, f"{name} in {called}")

    for layers in (
        [(1, 1, 1, 1)],
        [(3, 8, 16, 10)],
        [(7, 3, 64, 112), (1, 64, 256, 56)],
        [(1, 64, 256, 56), (7, 3, 64, 112)],
        [(3, 2, 4, 8), (1, 4, 10, 1), (5, 10, 3, 6)],
        [(7, 3, 64, 224), (3, 512, 512, 56)],
    ):
        decide(layers)
    channels = st.integers(1, 2048)
    layer = st.tuples(st.sampled_from((1, 2, 3, 5, 7, 11)), channels, channels, st.integers(1, 224))
    for_all(decide, layers=st.lists(layer, min_size=1, max_size=6))


COLUMNS = ["primitive", "implementation", "type", "ms"]
# Milliseconds are powers of two, so that a sum tells which rows are in it. With the last row they add up to 64.
LOG = [
    ("convolution", "brgconv_1x1:avx512_core_bf16", "bf16", 0.25),
    ("reorder", "jit:uni", "bf16", 0.5),
    ("reorder", "ref:any", "f32", 1.0),
    ("convolution", "ref:any", "bf16", 2.0),
    ("pooling", "ref_nhwc:any", "f32", 4.0),
    ("matmul", "brg_matmul:avx512_core_bf16", "f32", 8.0),
    ("softmax", "", "f32", 16.0),
    ("batch_normalization", "bnorm_tbb_jit:avx512_core", "f32", 32.0),
    ("pooling", "simple_layer_with_ref:any", "f32", 0.25),
]
MIXED = [  # other types, other primitives and times that are not whole
    ("convolution", "brgconv:avx512_core_bf16", "bf16", 3.7),
    ("convolution", "brgconv:avx512_core_fp16", "f16", 0.4),
    ("matmul", "gemm:ref", "s8", 1.1),
    ("reduction", "re_dispatch:any", "u8", 0.9),
    ("gemm_api", "", "", 2.3),
    ("reorder", "ref:any", "s32", 0.6),
]


@lab.exercise(
    4,
    hints=(
        "Each share is a sum of ms over some rows, divided by the sum over all of them. Which rows does each mean?",
        'log.type == "bf16" marks rows, and log.ms[log.type == "bf16"].sum() is their time.',
        'The other two: log.implementation.str.startswith("ref"), and log.primitive == "reorder". Divide each sum by '
        "log.ms.sum().",
    ),
)
def diagnose(answer) -> None:
    """The three shares of a log, of parts of it in which some are 0, and of logs with other primitives and types."""

    def decide(rows: list[tuple[str, str, str, float]], case: str = "") -> None:
        case = case or f"a log whose {', '.join(COLUMNS)} are {', '.join(map(str, rows))}"
        log = pd.DataFrame(rows, columns=COLUMNS).assign(direction="", src="", wei="", dst="", attributes="")
        got = _named(call(answer, log.assign(problem="mb1ic3_ih8oh8")), ("bf16", "reference", "reorder"))
        total = sum(ms for *_, ms in rows)
        times = {
            "bf16": sum(ms for *_, kind, ms in rows if kind == "bf16"),
            "reference": sum(ms for _, name, _, ms in rows if name.startswith("ref")),
            "reorder": sum(ms for primitive, *_, ms in rows if primitive == "reorder"),
        }
        for name, ms in times.items():
            same(got[name], ms / total, f'"{name}" of {case}', because=f"{ms:g} of {total:g} ms")

    decide(LOG, "a log")
    decide([row for row in LOG if row[2] == "f32"], "a log in float32 alone")
    decide(LOG[4:7], "another log")
    decide(MIXED, "a log with other types")
    row = st.tuples(
        st.sampled_from(("convolution", "reorder", "reduction", "matmul", "softmax", "gemm_api")),
        st.sampled_from(
            ("", "ref:any", "ref_nhwc:any", "simple:any", "jit:uni", "gemm:ref", "brgconv:avx512_core_bf16")
        ),
        st.sampled_from(("f32", "bf16", "f16", "s8", "u8", "s32", "")),
        st.integers(1, 999).map(lambda count: count / 80),
    )
    for_all(decide, examples=80, rows=st.lists(row, min_size=1, max_size=8))


# At 100 GFLOP/s and 10 GB/s: 1 GFLOP takes 10 ms, and so does 0.1 GB. The table is as by_kind makes it.
KINDS = pd.DataFrame(
    {
        "calls": [48.0, 53.0, 70.0, 2.0, 1.0],
        "ms": [400.0, 90.0, 30.0, 5.0, 12.3],
        "gflop": [39.0, 0.2, 0.0, 0.01, 1.0],
        "gbyte": [0.5, 0.4, 0.25, 0.09, 0.0625],
    },
    index=pd.Index(["3×3 convolution", "batch norm", "reorder", "pooling", "matrix product"], name="kind"),
)
# GFLOP/s and GB/s. With the second, the convolution is limited by memory; with the third, a matrix product that moves
# 1/16 GB for 1 GFLOP takes equally long for both.
LIMITS = ((100.0, 10.0), (1000.0, 10.0), (128.0, 8.0))


@lab.exercise(
    5,
    hints=(
        "For each row, two times: that of its bytes at the bandwidth, and that of its operations at the peak. The "
        "longer one is the limit.",
        "moving = 1000 * row.gbyte / bandwidth and computing = 1000 * row.gflop / peak are in ms. The saving is row.ms "
        "less the larger of the two, and never below 0.",
        "Finally: dict(sorted(found.items(), key=lambda item: item[1][1], reverse=True)), with found[name] = "
        "(bound, saving).",
    ),
)
def bottleneck(answer) -> None:
    """Bounds, savings and their order, for several machines, and with the rows in another order."""
    for peak, bandwidth in LIMITS:
        for kinds in (KINDS, KINDS[::-1]):
            _one_machine(answer, kinds, peak, bandwidth)

    def decide(rows: list[tuple[float, ...]], peak: float, bandwidth: float) -> None:
        kinds = pd.DataFrame(rows, columns=KINDS.columns, index=KINDS.index[: len(rows)])
        _one_machine(answer, kinds, peak, bandwidth)

    # By powers of two, so that what takes equally long does so however it is computed.
    row = st.tuples(
        st.integers(1, 99).map(float),
        st.integers(1, 4000).map(lambda count: count / 8),
        st.integers(0, 256).map(lambda count: count / 8),
        st.integers(1, 64).map(lambda count: count / 64),
    )
    for_all(
        decide,
        examples=80,
        rows=st.lists(row, min_size=1, max_size=len(KINDS)),
        peak=st.sampled_from((128.0, 512.0, 4096.0)),
        bandwidth=st.sampled_from((8.0, 16.0, 256.0)),
    )


def _one_machine(answer: Any, kinds: pd.DataFrame, peak: float, bandwidth: float) -> None:
    got = call(answer, kinds, peak, bandwidth)
    called = f"at {peak:g} GFLOP/s and {bandwidth:g} GB/s"
    expect(isinstance(got, Mapping), f"a dict; it is {describe(got)}")
    got = _named(got, kinds.index)
    for name, row in kinds.iterrows():
        bound, saving = parts(got[str(name)], 2, f"(bound, saving) for {name}")
        moving, computing = 1000 * row.gbyte / bandwidth, 1000 * row.gflop / peak
        least = max(moving, computing)
        needs = f"{row.gbyte:g} GB and {row.gflop:g} GFLOP: moving takes {moving:g} ms, computing {computing:g} ms"
        same(bound, "memory" if moving > computing else "cores", f"the bound of {name} {called}", because=needs)
        same(
            saving,
            max(0.0, row.ms - least),
            f"the saving of {name} {called}",
            abs=1e-6 * row.ms,
            because=f"it takes {row.ms:g} ms and needs at least {least:g}",
        )
    savings = [number(saving, "the saving") for _, saving in got.values()]
    expect(
        savings == sorted(savings, reverse=True),
        f"the largest saving first {called}; the order is {', '.join(map(str, got))}",
    )
