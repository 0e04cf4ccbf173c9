"""Are the answers to lab 03 right: three numbers of a line, a set-up, an operation count, a log read, a bottleneck?"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from labkit.exercises.answers import call
from labkit.exercises.core import Lab
from labkit.exercises.values import describe, is_number
from labkit.exercises.verdicts import expect

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
    for images, seconds in ((10, [1.0, 1.0, 1.0]), (12, [1.0, 2.0, 4.0]), (64, [2.0, 1.0, 1.25, 8.0]), (16, [0.5])):
        got = call(answer, images, list(seconds))
        asked = f"speed({images}, {seconds})"
        expect(
            isinstance(got, tuple | list) and len(got) == 3,
            f"{asked} to be three numbers; it is {describe(got)}: {got!r}",
        )
        speeds = [images / value for value in seconds]
        mean = images * len(seconds) / sum(seconds)
        average = sum(speeds) / len(speeds)
        spread = math.sqrt(sum((value - average) ** 2 for value in speeds) / len(speeds))
        middle = _median(speeds)
        jitter = 1.4826 * _median([abs(value - middle) for value in speeds])
        right = {"mean": mean, "uncertainty": spread / math.sqrt(len(speeds)), "jitter": jitter}
        for (name, value), mine in zip(right.items(), got, strict=True):
            expect(is_number(mine), f"the {name} in {asked} to be a number; it is {mine!r}")
            expect(
                math.isclose(mine, value, rel_tol=1e-6, abs_tol=1e-9),
                f"the {name} in {asked} to be {value:.4f}; it is {mine:.4f}",
            )


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _lscpu(sockets: int, cores: int, threads: int, nodes: int, new: bool) -> str:
    """What lscpu says of a machine, in its old form or in that since version 2.37."""
    total = sockets * cores * threads
    about = {
        "Architecture": "x86_64",
        "CPU(s)": total,
        "On-line CPU(s) list": f"0-{total - 1}",
        "Thread(s) per core": threads,
        "Core(s) per socket": cores,
        "Socket(s)": sockets,
        "NUMA node(s)": nodes,
        "Model name": "Some CPU @ 2.10GHz",
        "L2 cache": "1024K",
    } | {
        f"NUMA node{node} CPU(s)": f"{node * total // nodes}-{(node + 1) * total // nodes - 1}" for node in range(nodes)
    }
    if not new:
        return "\n".join(f"{name + ':':21}{value}" for name, value in about.items()) + "\n"
    order = ["Architecture", "CPU(s)", "On-line CPU(s) list", "Model name", "Thread(s) per core", "Core(s) per socket"]
    order += ["Socket(s)", "L2 cache", "NUMA node(s)", *(f"NUMA node{node} CPU(s)" for node in range(nodes))]
    depths = {"Thread(s) per core": 4, "Core(s) per socket": 4, "Socket(s)": 4, "On-line CPU(s) list": 2}
    lines = []
    for name in order:
        indent = " " * depths.get(name, 2 if "NUMA" in name or name in ("Model name", "L2 cache") else 0)
        lines.append(f"{indent + name + ':':41}{about[name]}")
    lines.insert(1, f"{'  CPU op-mode(s):':41}32-bit, 64-bit")
    lines.insert(5, f"{'    CPU(s) scaling MHz:':41}28%")
    return "\n".join(lines) + "\n"


MACHINES = {  # what is told of it: (sockets, cores of each, threads of each core, NUMA nodes, the new form)
    "18 cores in 2 sockets with 2 threads each, 2 nodes": (2, 9, 2, 2, False),
    "2 cores with 1 thread each, 1 node": (1, 2, 1, 1, True),
    "64 cores in 1 socket with 2 threads each, 4 nodes": (1, 64, 2, 4, True),
    "56 cores in 2 sockets with 1 thread each, 1 node": (2, 28, 1, 1, False),
}


@lab.exercise(
    2,
    hints=(
        'Physical cores are "Core(s) per socket" times "Socket(s)". "CPU(s)" counts hardware threads.',
        'A line without its indentation, split at its first colon, gives a name and a value: line.strip().split(":", '
        '1). Several names end in "CPU(s)", so compare whole names.',
        'found = dict(re.findall(r"^\\s*(.+?):\\s+(\\d+)$", lscpu, flags=re.M)) has all the numbers by name; they are '
        'texts still. Interleave when int(found["NUMA node(s)"]) > 1.',
    ),
)
def setup_for(answer) -> None:
    """The settings of four machines, whose texts have both forms."""
    for told, (sockets, cores, threads, nodes, new) in MACHINES.items():
        text = _lscpu(sockets, cores, threads, nodes, new)
        right = {
            "OMP_NUM_THREADS": sockets * cores,
            "num_intra_threads": sockets * cores,
            "num_inter_threads": sockets,
            "interleave": nodes > 1,
        }
        got = call(answer, text)
        expect(isinstance(got, Mapping), f"a dict; it gave {describe(got)}")
        expect(
            set(got) == set(right), f"the keys {', '.join(sorted(right))}; it has {', '.join(sorted(map(str, got)))}"
        )
        for name, value in right.items():
            expect(
                isinstance(got[name], bool | np.bool_ if name == "interleave" else int | np.integer)
                and got[name] == value,
                f"{name} to be {value!r} for a machine with {told}; it is {got[name]!r}",
            )


@lab.exercise(
    3,
    hints=(
        "How many numbers has a layer's output? How many terms does each add up? And each term is two operations.",
        "Forward: 2 * kernel**2 * channels_in * channels_out * side**2, summed over the layers.",
        "Training is three times the way forward, less what the first layer takes for its gradient by the images: its "
        "share of the way forward, once.",
    ),
)
def flops(answer) -> None:
    """One layer, two layers in both orders, several."""
    cases = (
        [(1, 1, 1, 1)],
        [(3, 8, 16, 10)],
        [(7, 3, 64, 112), (1, 64, 256, 56)],
        [(1, 64, 256, 56), (7, 3, 64, 112)],
        [(3, 2, 4, 8), (1, 4, 10, 1), (5, 10, 3, 6)],
    )
    for layers in cases:
        each = [2 * k * k * c_in * c_out * side * side for k, c_in, c_out, side in layers]
        got = call(answer, list(layers))
        asked = f"flops({layers})"
        expect(isinstance(got, tuple | list) and len(got) == 2, f"{asked} to be two numbers; it is {describe(got)}")
        for name, mine, value in zip(("forward", "training"), got, (sum(each), 3 * sum(each) - each[0]), strict=True):
            expect(is_number(mine), f"{name} in {asked} to be a number; it is {mine!r}")
            expect(mine == value, f"{name} in {asked} to be {value:,}; it is {mine:,}")


# Milliseconds are powers of two, so that a sum tells which rows are in it. With the last row they add up to 256.
LOG = pd.DataFrame(
    [
        ("convolution", "brgconv_1x1:avx512_core_bf16", "bf16", 1.0),
        ("reorder", "jit:uni", "bf16", 2.0),
        ("reorder", "ref:any", "f32", 4.0),
        ("convolution", "ref:any", "bf16", 8.0),
        ("pooling", "ref_nhwc:any", "f32", 16.0),
        ("matmul", "brg_matmul:avx512_core_bf16", "f32", 32.0),
        ("softmax", "", "f32", 64.0),
        ("batch_normalization", "bnorm_tbb_jit:avx512_core", "f32", 128.0),
        ("pooling", "simple_layer_with_ref:any", "f32", 1.0),
    ],
    columns=["primitive", "implementation", "type", "ms"],
).assign(direction="", src="", wei="", dst="", attributes="", problem="")


@lab.exercise(
    4,
    hints=(
        "Each share is a sum of ms over some rows, by the sum over all of them. Which rows does each question mean?",
        'log.type == "bf16" marks rows, and log.ms[log.type == "bf16"].sum() is their time.',
        'The other two: log.implementation.str.startswith("ref"), and log.primitive == "reorder". Divide each sum by '
        "log.ms.sum().",
    ),
)
def diagnose(answer) -> None:
    """The three shares of a log, and of parts of it in which some are 0."""
    for told, log in (("a log", LOG), ("a log in float32 alone", LOG[LOG.type == "f32"]), ("another log", LOG[4:7])):
        total = log.ms.sum()
        right = {
            "bf16": log.ms[log.type == "bf16"].sum() / total,
            "reference": log.ms[[name.startswith("ref") for name in log.implementation]].sum() / total,
            "reorder": log.ms[log.primitive == "reorder"].sum() / total,
        }
        got = call(answer, log.copy())
        expect(isinstance(got, Mapping | pd.Series), f"a dict; it gave {describe(got)}")
        got = dict(got.items())
        expect(
            set(got) == set(right), f"the keys {', '.join(sorted(right))}; it has {', '.join(sorted(map(str, got)))}"
        )
        for name, value in right.items():
            expect(is_number(got[name]), f'"{name}" of {told} to be a number; it is {got[name]!r}')
            expect(
                math.isclose(got[name], value, abs_tol=1e-9),
                f'"{name}" of {told} to be {value:.4f}, which is {value * total:g} of {total:g} ms; '
                f"it is {got[name]:.4f}",
            )


# At 100 GFLOP/s and 10 GB/s: 1 GFLOP takes 10 ms, and so does 0.1 GB.
KINDS = pd.DataFrame(
    {"ms": [400.0, 90.0, 30.0, 5.0, 12.0], "gflop": [39.0, 0.2, 0.0, 0.01, 1.0], "gbyte": [0.5, 0.4, 0.25, 0.09, 0.05]},
    index=["3×3 convolution", "batch norm", "reorder", "pooling", "matrix product"],
)
LIMITS = ((100.0, 10.0), (1000.0, 10.0))  # GFLOP/s and GB/s: with the second, the convolution is limited by memory


@lab.exercise(
    5,
    hints=(
        "For each row, two times: that of its bytes at the bandwidth, and that of its operations at the peak. The "
        "longer one is the limit.",
        "moving = 1000 * row.gbyte / bandwidth and computing = 1000 * row.gflop / peak are in ms. The saving is row.ms "
        "less the larger of the two, and never below 0.",
        "In the end: dict(sorted(found.items(), key=lambda item: item[1][1], reverse=True)), with found[name] = "
        "(bound, saving).",
    ),
)
def bottleneck(answer) -> None:
    """Bounds, savings and their order, for two machines, and with the rows in another order."""
    for peak, bandwidth in LIMITS:
        for kinds in (KINDS, KINDS[::-1]):
            _one_machine(answer, kinds, peak, bandwidth)


def _one_machine(answer: Any, kinds: pd.DataFrame, peak: float, bandwidth: float) -> None:
    got = call(answer, kinds.copy(), peak, bandwidth)
    asked = f"at {peak:g} GFLOP/s and {bandwidth:g} GB/s"
    expect(isinstance(got, Mapping), f"a dict; it gave {describe(got)}")
    expect(set(got) == set(kinds.index), f"the names {', '.join(kinds.index)}; it has {', '.join(map(str, got))}")
    for name, row in kinds.iterrows():
        pair = got[name]
        expect(
            isinstance(pair, tuple | list) and len(pair) == 2,
            f"(bound, saving) for {name}; it is {describe(pair)}: {pair!r}",
        )
        bound, saving = pair
        moving, computing = 1000 * row.gbyte / bandwidth, 1000 * row.gflop / peak
        right = "memory" if moving > computing else "cores"
        why = f"moving takes {moving:g} ms, computing {computing:g} ms"
        expect(bound == right, f'"{right}" for {name} {asked}, since {why}; it is {bound!r}')
        least = max(moving, computing)
        expect(is_number(saving), f"a saving for {name} that is a number; it is {saving!r}")
        expect(
            math.isclose(saving, max(0.0, row.ms - least), abs_tol=1e-6),
            f"a saving of {max(0.0, row.ms - least):g} ms for {name} {asked}, which takes {row.ms:g} ms and must take "
            f"{least:g}; it is {saving:g}",
        )
    savings = [saving for _, saving in got.values()]
    expect(
        savings == sorted(savings, reverse=True),
        f"the largest saving first {asked}; the order is {', '.join(map(str, got))}",
    )
