"""Exercises of lab 03: operations of training, thread placement, a sick log, what to improve first."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from labkit.exercises.engine.outcomes import expect
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import describe, integer, number, parts

EXERCISES: dict[int, Reference] = {}

FIRST = "the first layer that learns computed the gradient of its input"
NEEDED_HINT = (
    "The first layer that learns needs no gradient with respect to its input: all layers before it are frozen, and the "
    "gradient of the images is not needed."
)
EXERCISES[1] = Reference(
    cases=[([2], 1), ([2, 10, 100], 3), ([2, 10, 100], 2), ([2, 10, 100], 1), ([2, 10, 100], 0)],
    more=st.lists(st.integers(1, 10**10), min_size=1, max_size=8).flatmap(
        lambda each: st.tuples(st.just(each), st.integers(0, len(each)))
    ),
    returns=(Result(rel=1e-12),),
    wrong={
        FIRST: {"learning[1:]": "learning"},
        "no gradient with respect to an input were computed": {" + sum(learning[1:])": ""},
        "no gradient with respect to weights were computed": {" + sum(learning)": ""},
        "the forward pass were left out": {"sum(each) + ": ""},
        "the forward pass went through the layers that learn only": {"sum(each)": "sum(learning)"},
        "the first layers learned, not the last": {"each[len(each) - trained :]": "each[:trained]"},
        "all layers learned": {"each[len(each) - trained :]": "each"},
        "all layers learned if none does": {"each[len(each) - trained :]": "each[-trained:]"},
        "the last layer computed no gradient with respect to its input": {"learning[1:]": "learning[:-1]"},
        "frozen layers computed the gradient of their input": {"learning[1:]": "each[1:]"},
    },
    also=[{"sum(learning) + sum(learning[1:])": "2 * sum(learning) - sum(learning[:1])"}],
    hints=(
        "The forward pass goes through all layers, whether they learn or not. Which layers need the gradient of their "
        "weights? Which need the gradient of their input?",
        NEEDED_HINT,
        "learning = each[len(each) - trained :]; then sum(each) + sum(learning) + sum(learning[1:]).",
    ),
    hint_for={FIRST: NEEDED_HINT},
)


PIN_HINT = "First find the lowest CPU of each core, and its node: a dict by core. Then collect these CPUs by node."
QUOTA_HINT = (
    "With a quota, there are max(1, min(available, int(quota))) threads, where available is the number of cores that "
    "you may use, and nothing to pin."
)


def _box(sockets: int, cores_each: int, hardware_threads: int) -> list[tuple[int, int, int]]:
    """Return the (cpu, core, node) of a machine with a NUMA node for each socket, as Linux numbers them."""
    cores = sockets * cores_each
    return [(cpu, cpu % cores, cpu % cores // cores_each) for cpu in range(cores * hardware_threads)]


def _placed(answer: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Return an answer's number of threads, and its CPUs by node: any mapping of sequences, in any order."""
    threads, nodes = parts(answer(*args), 2, "the number of threads and the CPUs by node")
    expect(isinstance(nodes, Mapping), f"the CPUs by node to be a dict; they are {describe(nodes)}", PIN_HINT)
    for cpus in nodes.values():
        fits = isinstance(cpus, list | tuple | set | np.ndarray)
        expect(fits, f"the CPUs of each node to be a list; one is {describe(cpus)}", PIN_HINT)
    label = "each number of a node or a CPU"
    return threads, {integer(node, label): sorted(integer(cpu, label) for cpu in nodes[node]) for node in sorted(nodes)}


QUOTA = {
    "the quota were ignored": {"quota is not None": "False"},
    "threads were pinned under a quota": {"return max(": "cores = dict([*cores.items()][-max(", ", {}": ":])"},
    "the quota were rounded": {"int(quota)": "round(quota)"},
    "the quota were rounded up": {"int(quota)": "-int(-quota // 1)"},
    "a quota below one CPU left no thread": {"max(1, min(len(cores), int(quota)))": "min(len(cores), int(quota))"},
    "a quota could give more threads than cores": {"min(len(cores), int(quota))": "int(quota)"},
}
MIXED = [(9, 1, 0), (2, 0, 1), (4, 1, 0), (7, 0, 1), (11, 5, 1)]  # in no order, and core 0 on node 1
EXERCISES[2] = Reference(
    cases=[
        (_box(1, 2, 1), None),
        (_box(1, 2, 2), None),
        (_box(1, 2, 1), 0.5),
        (MIXED, None),
        (MIXED, 1.9),
        Case((_box(2, 3, 2), None), "2 sockets with 3 cores of 2 hardware threads each"),
        Case((_box(1, 4, 2), 6.0), "4 cores of 2 hardware threads each under a quota of 6 CPUs"),
        Case((_box(2, 28, 2), 2.4), "56 cores under a quota of 2.4 CPUs"),
    ],
    more=st.tuples(
        st.builds(_box, st.integers(1, 3), st.integers(1, 4), st.integers(1, 2)).flatmap(
            lambda box: st.lists(st.sampled_from(box), min_size=1, unique=True)
        ),
        st.none() | st.integers(1, 32).map(lambda quarters: quarters / 4),
    ),
    use=_placed,
    case=lambda cpus, quota: f"place_threads({cpus}, {quota})",
    returns=(Result("number of threads"), Result("CPUs by node", hint=PIN_HINT)),
    wrong={
        **QUOTA,
        "each hardware thread were a core": {"core: (cpu, node)": "cpu: (cpu, node)"},
        "the highest CPU of each core were taken": {"reverse=True": "reverse=False"},
        "there were one node": {"setdefault(node": "setdefault(0"},
        "all CPUs of a core were pinned": {"sorted(cores.values())": "sorted((c, n) for c, _, n in cpus)"},
    },
    also=[{"sorted(cpus, reverse=True)": "sorted(cpus)[::-1]"}],
    hints=(
        "How many cores are there among your CPUs? Two rows with the same core are its hardware threads.",
        PIN_HINT,
        QUOTA_HINT,
    ),
    hint_for=dict.fromkeys(QUOTA, QUOTA_HINT),
)

CONV, DATA = ("convolution", "forward_training", "oh8kh3", "brg"), ("convolution", "backward_data", "oh8kh3", "brg")
JIT, REF = (*CONV[:3], "jit:avx2"), (*DATA[:3], "ref:any")
WIDE = ("convolution", "forward_training", "oh4kh1", "brg")
REORDER, COPY = ("reorder", "undef", "64x64x3x3", "jit:uni"), ("reorder", "undef", "2x64x8x8", "ref:any")


def _log(*lines: tuple[tuple[str, ...], float]) -> pd.DataFrame:
    rows = [(*work, ("abcd", "acdb")[index % 2], ms) for index, (work, ms) in enumerate(lines)]
    return pd.DataFrame(rows, columns=["primitive", "direction", "problem", "implementation", "src", "ms"])


def _rows(log: pd.DataFrame) -> str:
    return "; ".join(" ".join(map(str, row)) for row in log.to_numpy())


LINE = st.tuples(st.sampled_from((CONV, DATA, JIT, REF, WIDE, REORDER, COPY)), st.integers(1, 800).map(lambda n: n / 8))
HEALTHY = _log((CONV, 4), (DATA, 8), (WIDE, 1), (REORDER, 0.5))
# Milliseconds are powers of two, so that a sum shows which rows are in it.
EXERCISES[3] = Reference(
    cases=[
        (_log((CONV, 4)), _log((CONV, 4.5))),
        (_log((CONV, 4)), _log((CONV, 4), (REORDER, 16))),
        (_log((CONV, 4)), _log((JIT, 32))),
        (HEALTHY, _log((CONV, 64), (REF, 128), (WIDE, 0.25), (REORDER, 0.5), (COPY, 16))),
        (HEALTHY, _log((CONV, 2), (CONV, 32), (DATA, 8), (REORDER, 256), (REORDER, 16))),
        (HEALTHY, _log((JIT, 64), (CONV, 16), (DATA, 1), (DATA, 1), (WIDE, 1))),
    ],
    more=st.tuples(*[st.lists(LINE, min_size=1, max_size=6).map(lambda lines: _log(*lines))] * 2),
    case=lambda *logs: "lost for logs with the rows {} and {}".format(*map(_rows, logs)),
    returns=(Result("ms in reorders"), Result("ms in other code"), Result("ms in the same code")),
    wrong={
        "the two logs were exchanged": {"after.sub(before": "before.sub(after"},
        "work that only one log has were left out": {", fill_value=0": ""},
        "all implementations were the same code": {', "implementation"]': "]"},
        "forward and backward passes were the same work": {'"direction", ': ""},
        "all problems were the same work": {'"problem", ': ""},
        "rows with other layouts were other work": {'"implementation"]': '"implementation", "src"]'},
        "reorders also counted as code": {"~reorder & ": ""},
        "what only the healthy log has were the same code": {" & change.index.isin(after.index)": ""},
        "what only the sick log has were the same code": {"change.index.isin(before.index) & ": ""},
        "repeated work counted once": {"ms.sum() for": "ms.mean() for"},
        "what became faster were left out": {"fill_value=0)": "fill_value=0).clip(lower=0)"},
        "the healthy log's time were not subtracted": {"(before, fill": "(0 * before, fill"},
    },
    also=[{"log.groupby(work).ms.sum()": 'log.groupby(work, sort=False)["ms"].sum()'}],
    hints=(
        "Name each row by what it computed, and by which code: its primitive, direction, problem and implementation. "
        "How many ms does each name take in each log?",
        "before = healthy.groupby([…]).ms.sum() has the ms of each name, and after those of the sick log. The change "
        "is after.sub(before, fill_value=0), also where only one of them has a name.",
        "change.index.isin(before.index) & change.index.isin(after.index) selects what both logs have, and ~ negates "
        'it. change.index.get_level_values("primitive") == "reorder" selects the reorders.',
    ),
)


def _ranked(answer: Callable[..., Any], *args: Any) -> tuple[str, np.ndarray]:
    """Return the names of an answer's rows as a text, and their milliseconds."""
    rows = answer(*args)
    expect(isinstance(rows, list | tuple), f"a list of tuples (name, ms); it is {describe(rows)}")
    pairs = [parts(row, 2, "each row to be a tuple (name, ms)") for row in rows]
    return " > ".join(str(name) for name, _ in pairs), np.array([float(number(ms, "the ms")) for _, ms in pairs])


# At 100 GFLOP/s and 10 GB/s, 1 GFLOP takes 10 ms, and so does 0.1 GB. No two savings are equal.
KINDS = {
    "norm": (90.0, 0.0, 0.4),
    "3×3": (400.0, 39.0, 0.5),
    "sum": (30.0, 0.0, 0.25),
    "1×1": (350.0, 20.0, 0.9),
    "update": (5.0, 0.0, 0.09),
}
SUM = 875.0
ROW = st.tuples(st.integers(1, 500), st.integers(0, 256), st.integers(1, 64))
LIMIT, LAST = "max(gflop / peak, gbyte / bandwidth)", '[*ranked, ("unaccounted", unaccounted)]'  # in the solution
LIMIT_HINT = (
    "1000 * gflop / peak and 1000 * gbyte / bandwidth are in ms, and the longer of both is the limit. The saving is "
    "ms - limit."
)
UNACCOUNTED_HINT = (
    "unaccounted = abs(step_ms - sum of all ms). Keep the savings that are larger, sort them, and append "
    '("unaccounted", unaccounted).'
)
EXERCISES[4] = Reference(
    cases=[
        ({"sum": KINDS["sum"]}, 31.0, 100, 10),
        (KINDS, SUM + 1, 100, 10),
        (KINDS, SUM + 20, 100, 10),
        (KINDS, SUM - 20, 100, 10),
        (KINDS, SUM + 400, 100, 10),
        (KINDS, SUM + 1, 1000, 10),
    ],
    more=st.tuples(
        st.lists(ROW, min_size=1, max_size=5, unique_by=lambda row: row[0]).map(
            lambda rows: {f"kind {i}": (ms + 0.125, n / 8, m / 64) for i, (ms, n, m) in enumerate(rows)}
        ),
        st.integers(1, 3000).map(float),
        st.just(331.0),  # no two savings are equal, and none is equal to unaccounted
        st.just(13.7),
    ),
    use=_ranked,
    case=lambda kinds, *limits: f"what_first({kinds}, {', '.join(f'{limit:g}' for limit in limits)})",
    returns=(Result("order", hint=UNACCOUNTED_HINT), Result("ms", abs=1e-6, hint=LIMIT_HINT)),
    wrong={
        "what comes after unaccounted were kept": {
            "larger.items()": '[*savings.items(), ("unaccounted", unaccounted)]',
            LAST: "ranked",
        },
        "all kinds were ranked, and unaccounted came last": {" if saving > unaccounted": ""},
        "all kinds were there, without unaccounted": {" if saving > unaccounted": "", LAST: "ranked"},
        "savings above 0 were kept": {"saving > unaccounted": "saving > 0"},
        "kinds were ranked by their times": {f"ms - 1000 * {LIMIT}": "ms"},
        "the limits were returned, not the savings": {"ms - 1000 * ": "1000 * "},
        "memory were the only limit": {LIMIT: "gbyte / bandwidth"},
        "the peak were the only limit": {LIMIT: "gflop / peak"},
        "both times of the limit were added": {LIMIT: "(gflop / peak + gbyte / bandwidth)"},
        "the shorter time were the limit": {"max(gflop": "min(gflop"},
        "the limit were in seconds": {"1000 * ": ""},
        "a step shorter than its parts left nothing unaccounted": {"abs(": "max(0.0, "},
        "what is unaccounted for could be below 0": {"abs(": "("},
        "the smallest came first": {"reverse=True": "reverse=False"},
        "unaccounted were left out": {LAST: "ranked"},
        "unaccounted came first": {LAST: '[("unaccounted", unaccounted), *ranked]'},
    },
    also=[{f"1000 * {LIMIT}": "max(1000 * gflop / peak, 1000 * gbyte / bandwidth)"}],
    hints=(
        "Each kind has two times: for its bytes at the bandwidth, and for its operations at the peak. Which one can't "
        "it beat?",
        LIMIT_HINT,
        UNACCOUNTED_HINT,
    ),
)
