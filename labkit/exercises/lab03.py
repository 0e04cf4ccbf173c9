"""Checks for lab 03: thread placement, operations of training, a oneDNN log, a bottleneck."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import expect, hinting
from labkit.exercises.engine.values import describe, expect_equal, integer, number, parts, short
from labkit.system.words import plural

lab = Lab("03")


Row = tuple[int, int, int, int]  # a logical CPU: its number, core, socket and NUMA node


def _box(sockets: int, cores: int, threads: int, nodes: int) -> list[Row]:
    """Return a machine's rows, with CPUs numbered as in Linux; `cores` and `nodes` are per socket."""
    total = sockets * cores
    return [
        (thread * total + core, core, core // cores, core * sockets * nodes // total)
        for thread in range(threads)
        for core in range(total)
    ]


# Description; sockets, cores per socket, threads per core, NUMA nodes per socket; allowed CPUs, if not all; quota.
MACHINES: tuple[tuple[str, tuple[int, int, int, int], list[int] | None, float | None], ...] = (
    ("18 cores of 2 threads each, on 2 sockets", (2, 9, 2, 1), None, None),
    ("4 cores of 2 threads each", (1, 4, 2, 1), None, None),
    ("2 cores of 1 thread each", (1, 2, 1, 1), None, None),
    ("64 cores on one socket with 4 NUMA nodes", (1, 64, 2, 4), None, None),
    ("56 cores under a quota of 2.5 CPUs", (2, 28, 2, 1), None, 2.5),
    ("2 cores under a quota of half a CPU", (1, 2, 1, 1), None, 0.5),
    ("4 cores under a quota of 6 CPUs", (1, 4, 2, 1), None, 6.0),
    ("4 cores under a quota of 2 CPUs", (1, 4, 2, 1), None, 2.0),
    ("8 cores on 2 sockets under a quota of 1.5 CPUs", (2, 4, 2, 1), None, 1.5),
    ("64 cores, of which 4 are allowed with both their threads", (2, 32, 2, 1), [0, 1, 2, 3, 64, 65, 66, 67], None),
    ("64 cores, of which 2 are allowed, one on each socket", (2, 32, 2, 1), [5, 40], None),
    ("64 cores, of which 3 are allowed, on the second socket", (2, 32, 2, 1), [33, 34, 99, 98], None),
    ("96 cores, of which 2 are allowed, on the first and the last of 4 sockets", (4, 24, 2, 1), [0, 95], None),
    (
        "64 cores, of which 2 are allowed on one socket and 4 on the other, under a quota of 4 CPUs",
        (2, 32, 2, 1),
        [0, 1, *range(32, 36), 64, 65, *range(96, 100)],
        4.0,
    ),
    (
        "4 sockets with 1, 3, 2 and 3 cores allowed, under a quota of 6 CPUs",
        (4, 4, 1, 1),
        [0, 4, 5, 6, 8, 9, 12, 13, 14],
        6.0,
    ),
    (
        "8 cores, of which 3 are allowed on one socket, and 2 with both threads on the other, under a quota of 3 CPUs",
        (2, 4, 2, 1),
        [0, 1, 2, 4, 5, 12, 13],
        3.0,
    ),
)


QUOTA_HINT = (
    "With a quota, there are max(1, min(available, int(quota))) threads, where available is the number of cores that "
    "you may use."
)
NODES_HINT = (
    "Count the cores that you may use on each node. Fill the node with the most of them first, then the next: sort the "
    "CPUs by (-cores_on[node], node), and take one for each thread."
)


@lab.exercise(
    1,
    hints=(
        "First select the rows of the CPUs that you may use, one row per core: a dict with the core as its key does "
        "that. How many threads can be busy? Which node has the most of these cores?",
        QUOTA_HINT,
        NODES_HINT,
    ),
)
def place_threads(answer: Callable[..., Any]) -> None:
    """Check thread placement on machines of all sizes, parts of them, and under quotas; any valid placement passes."""

    def decide(machine: str, cpus: list[Row], allowed: Sequence[int], quota: float | None) -> None:
        rows = {row[0]: row for row in cpus if row[0] in allowed}
        cores_on = Counter(node for _, node in {(core, node) for _, core, _, node in rows.values()})
        available = cores_on.total()
        threads = available if quota is None else max(1, min(available, int(quota)))
        min_nodes = next(
            count
            for count in range(1, len(cores_on) + 1)
            if sum(cores for _, cores in cores_on.most_common(count)) >= threads
        )
        # With keyword arguments, and a range or a list, as in the lab's next cell.
        result = _with_keys(call(answer, cpus=cpus, allowed=allowed, quota=quota), ("cpus", "interleave"))
        case = f"for {machine}"
        cpu_list = result["cpus"]
        is_list = isinstance(cpu_list, tuple | list | set | range | np.ndarray | pd.Series)
        is_list = is_list and getattr(cpu_list, "ndim", 1) == 1
        expect(is_list, f'"cpus" {case} to be a list; it is {describe(cpu_list)}')
        placed = [integer(cpu, f'each of "cpus" {case}') for cpu in cpu_list]
        actual = f"it is {short(placed)}"
        outside = [cpu for cpu in placed if cpu not in rows]
        expect(not outside, f'"cpus" {case} to be CPUs that you may use, not {", ".join(map(str, outside[:4]))}')
        cores = [rows[cpu][1] for cpu in placed]
        expect(len(set(cores)) == len(cores), f'"cpus" {case} to be on different cores; {actual}')
        expect(len(placed) == threads, f'{threads} "cpus" {case}; {actual}', "" if quota is None else QUOTA_HINT)
        nodes = len({rows[cpu][3] for cpu in placed})
        expect(
            nodes == min_nodes,
            f'"cpus" {case} to be on {plural(min_nodes, "NUMA node")}; they are on {nodes}: {short(placed)}',
            NODES_HINT,
        )
        expect_equal(result["interleave"], nodes > 1, f'"interleave" {case}')

    for machine, size, allowed, quota in MACHINES:
        cpus = _box(*size)
        decide(machine, cpus, range(len(cpus)) if allowed is None else allowed, quota)

    evens = [(cpu, cpu, cpu % 2, cpu % 2) for cpu in range(8)]
    decide("8 cores, even ones on node 0 and odd ones on node 1, under a quota of 4 CPUs", evens, range(8), 4.0)
    reversed_nodes = [(0, 0, 1, 1), (1, 1, 1, 1), (2, 2, 0, 0)]
    decide("3 cores, the first two on node 1, under a quota of 2 CPUs", reversed_nodes, range(3), 2.0)
    without_1 = [row for row in _box(1, 4, 1, 1) if row[0] != 1]
    decide("3 cores, CPUs 0, 2 and 3, since CPU 1 is off", without_1, [0, 2, 3], None)

    def decide_on_size(size: tuple[int, int, int, int], picks: list[int] | None, quota: float | None) -> None:
        cpus = _box(*size)
        allowed = range(len(cpus)) if picks is None else sorted({pick % len(cpus) for pick in picks})
        decide(f"cpus={cpus}, allowed={allowed}, quota={quota}", cpus, allowed, quota)

    for_all(
        decide_on_size,
        size=st.tuples(*(st.integers(1, maximum) for maximum in (4, 4, 4, 2))),
        picks=st.none() | st.lists(st.integers(0, 63), min_size=1, max_size=12),
        quota=st.none() | st.integers(1, 32).map(lambda quarters: quarters / 4),
    )


def _with_keys(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return a dict or a table's column as a dict, after checking that it has exactly these keys."""
    expect(isinstance(result, Mapping | pd.Series), f"a dict; it is {describe(result)}")
    keys = sorted(names)
    missing = [key for key in keys if key not in result]
    extra = [str(key) for key in dict(result.items()) if key not in keys]
    expect(not missing, f"the keys {', '.join(keys)}; missing: {', '.join(missing)}")
    expect(not extra, f"only the keys {', '.join(keys)}; it also has {', '.join(extra)}")
    return dict(result.items())


NEEDED_HINT = (
    "The first layer that learns needs no gradient with respect to its input: all layers before it are frozen, and the "
    "gradient of the images is not needed."
)


@lab.exercise(
    2,
    hints=(
        "The forward pass goes through all layers, whether they learn or not. Which layers need the gradient of their "
        "weights? Which need the gradient of their input?",
        NEEDED_HINT,
        "learning = each[len(each) - trained :]; then sum(each) + sum(learning) + sum(learning[1:]).",
    ),
)
def training_flops(answer: Callable[..., Any]) -> None:
    """Check chains in which all, some and no layers learn, and counts that overflow 32 bits."""

    def decide(each: list[int], trained: int) -> None:
        learning = each[len(each) - trained :]
        label = f"training_flops({each}, {trained})"
        flops, expected = number(call(answer, each, trained), label), sum(each) + sum(learning) + sum(learning[1:])
        with hinting(NEEDED_HINT if learning and flops == expected + learning[0] else ""):
            expect_equal(flops, expected, label, rel=1e-12)

    for each in ([2], [2, 10, 100], [100, 10, 2], [7, 7, 7, 7], [3 * 10**9, 10**9, 2 * 10**9]):
        for trained in range(len(each), -1, -1):
            decide(each, trained)

    def decide_on_frozen(each: list[int], frozen: int) -> None:
        decide(each, max(0, len(each) - frozen))

    for_all(decide_on_frozen, each=st.lists(st.integers(1, 10**10), min_size=1, max_size=8), frozen=st.integers(0, 8))


COLUMNS = ["primitive", "implementation", "type", "ms"]
ALL_COLUMNS = [*COLUMNS[:2], "direction", "type", "src", "wei", "dst", "attributes", "problem", "ms"]  # of a real log
# Milliseconds are powers of two, so that a sum shows which rows are in it. With the last row they add up to 64.
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
MIXED = [  # other types, other primitives and fractional times
    ("convolution", "brgconv:avx512_core_bf16", "bf16", 3.7),
    ("convolution", "brgconv:avx512_core_fp16", "f16", 0.4),
    ("matmul", "gemm:ref", "s8", 1.1),
    ("reduction", "re_dispatch:any", "u8", 0.9),
    ("gemm_api", "", "", 2.3),
    ("reorder", "ref:any", "s32", 0.6),
]


@lab.exercise(
    3,
    hints=(
        "Each share is a sum of ms over some rows, divided by the sum over all rows. Which rows count for each?",
        'log.type == "bf16" selects rows, and log.ms[log.type == "bf16"].sum() is their time.',
        'The other two: log.implementation.str.startswith("ref"), and log.primitive == "reorder". Divide each sum by '
        "log.ms.sum().",
    ),
)
def diagnose(answer: Callable[..., Any]) -> None:
    """Check the three shares of a log, of parts in which some are 0, and of logs with other primitives and types."""

    def decide(rows: list[tuple[str, str, str, float]], case: str = "") -> None:
        case = case or f"a log whose {', '.join(COLUMNS)} are {', '.join(map(str, rows))}"
        log = (
            pd.DataFrame(rows, columns=COLUMNS)
            .assign(problem="mb1ic3_ih8oh8")
            .reindex(columns=ALL_COLUMNS, fill_value="")
        )
        result = _with_keys(call(answer, log), ("bf16", "reference", "reorder"))
        total = sum(ms for *_, ms in rows)
        times = {
            "bf16": sum(ms for *_, dtype, ms in rows if dtype == "bf16"),
            "reference": sum(ms for _, name, _, ms in rows if name.startswith("ref")),
            "reorder": sum(ms for primitive, *_, ms in rows if primitive == "reorder"),
        }
        for name, ms in times.items():
            expect_equal(result[name], ms / total, f'"{name}" of {case}', because=f"{ms:g} of {total:g} ms")

    decide(LOG, "a log")
    decide([row for row in LOG if row[2] == "f32"], "a log with only float32")
    decide(LOG[4:7], "another log")
    decide(MIXED, "a log with other types")
    decide(LOG * 3 + LOG[3:5], "a log with repeated rows")
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
        "calls": [48.0, 53.0, 70.0, 2.0, 1.0, 36.0, 1.0],
        "ms": [400.0, 90.0, 30.0, 5.0, 12.3, 350.0, 60.0],
        "gflop": [39.0, 0.2, 0.0, 0.01, 1.0, 20.0, 3.0],
        "gbyte": [0.5, 0.4, 0.25, 0.09, 0.0625, 0.9, 0.1],
    },
    index=pd.Index(
        [
            *("3×3 convolution", "batch norm", "reorder", "pooling", "matrix product"),
            *("1×1 convolution", "7×7 convolution"),
        ],
        name="kind",
    ),
)
# GFLOP/s and GB/s. With the second pair, convolutions are limited by memory; with the third, a matmul that moves
# 1/16 GB for 1 GFLOP takes equally long for both.
LIMITS = ((100.0, 10.0), (1000.0, 10.0), (128.0, 8.0))


ORDER_HINT = (
    "Finally: dict(sorted(bounds.items(), key=lambda item: item[1][1], reverse=True)), with bounds[name] = "
    "(bound, saving)."
)


@lab.exercise(
    4,
    hints=(
        "Each row has two times: for its bytes at the bandwidth, and for its operations at the peak. The longer one is "
        "the limit.",
        "moving = 1000 * row.gbyte / bandwidth and computing = 1000 * row.gflop / peak are in ms. The saving is row.ms "
        "minus the larger of the two, and never below 0.",
        ORDER_HINT,
    ),
)
def bottleneck(answer: Callable[..., Any]) -> None:
    """Check bounds, savings and their order, for several machines, and with the rows in another order."""
    for peak, bandwidth in LIMITS:
        for kinds in (KINDS, KINDS[::-1]):
            _check_machine(answer, kinds, peak, bandwidth)

    def decide(rows: list[tuple[float, ...]], peak: float, bandwidth: float) -> None:
        kinds = pd.DataFrame(rows, columns=KINDS.columns, index=KINDS.index[: len(rows)])
        _check_machine(answer, kinds, peak, bandwidth)

    # Fractions of powers of two, so that equal times are equal however they are computed.
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


def _check_machine(answer: Any, kinds: pd.DataFrame, peak: float, bandwidth: float) -> None:
    result = call(answer, kinds, peak, bandwidth)
    case = f"at {peak:g} GFLOP/s and {bandwidth:g} GB/s"
    expect(isinstance(result, Mapping), f"a dict; it is {describe(result)}")
    result = _with_keys(result, kinds.index)
    for name, row in kinds.iterrows():
        bound, saving = parts(result[str(name)], 2, f"(bound, saving) for {name}")
        moving, computing = 1000 * row.gbyte / bandwidth, 1000 * row.gflop / peak
        min_ms = max(moving, computing)
        times = f"{row.gbyte:g} GB and {row.gflop:g} GFLOP: moving takes {moving:g} ms, computing {computing:g} ms"
        expect_equal(bound, "memory" if moving > computing else "cores", f"the bound of {name} {case}", because=times)
        expect_equal(
            saving,
            max(0.0, row.ms - min_ms),
            f"the saving of {name} {case}",
            abs=1e-6 * row.ms,
            because=f"it takes {row.ms:g} ms and needs at least {min_ms:g}",
        )
    savings = [number(saving, "the saving") for _, saving in result.values()]
    expect(
        savings == sorted(savings, reverse=True),
        f"the largest saving first {case}; the order is {', '.join(map(str, result))}",
        ORDER_HINT,
    )
