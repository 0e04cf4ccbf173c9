import re

import numpy as np
import pytest
from labs import Bench, ThreeWays, same, swap


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Bench("03", {"np": np, "re": re})


BY_LINES = swap(
    r"""found = dict(re.findall(r"^\s*(.+?):\s+(\d+)$", lscpu, flags=re.M))""",
    """found = {}
    for line in lscpu.splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()""",
)
BY_ROWS = swap(
    "return {name: log.ms[rows].sum() / log.ms.sum() for name, rows in questions.items()}",
    """total = sum(log.ms)
    found = dict.fromkeys(questions, 0)
    for row in log.itertuples():
        found["bf16"] += (row.type == "bf16") * row.ms / total
        found["reference"] += (row.implementation[:3] == "ref") * row.ms / total
        found["reorder"] += (row.primitive == "reorder") * row.ms / total
    return found""",
)


class TestExercises(ThreeWays):
    lab = "03"
    mistakes = [
        (
            1,
            swap("images * len(speeds) / np.sum(seconds)", "np.mean(speeds)"),
            "the mean in speed(12, [1.0, 2.0, 4.0])",
        ),
        (1, swap(" / np.sqrt(len(speeds))", ""), "the uncertainty in speed(12"),
        (1, swap("np.std(speeds)", "np.std(speeds, ddof=1)"), "the uncertainty in speed(12"),
        (1, swap("1.4826 * ", ""), "the jitter in speed(12"),
        (1, swap("np.median(speeds)", "np.mean(speeds)"), "the jitter in speed(12"),
        (1, swap("jitter = 1.4826 * np.median", "jitter = 1.4826 * np.mean"), "the jitter in speed(64"),
        (1, swap(", jitter\n", "\n"), "to be three numbers; it is a tuple"),
        (1, swap("return images", "images"), "None: does it return?"),
        (1, swap("np.array(seconds)", "seconds"), "raised TypeError"),
        (2, swap('int(found["Core(s) per socket"]) * sockets', 'int(found["CPU(s)"])'), "OMP_NUM_THREADS to be 18 for"),
        (2, swap('int(found["Core(s) per socket"]) * sockets', 'int(found["Core(s) per socket"])'), "it is 9"),
        (2, swap(r"^\s*(.+?)", r"^(\S.*?)"), "raised KeyError: 'Socket(s)'"),
        (
            2,
            swap('"num_inter_threads": sockets', '"num_inter_threads": int(found["NUMA node(s)"])'),
            "4 nodes; it is 4",
        ),
        (2, swap('int(found["NUMA node(s)"]) > 1', "sockets > 1"), "interleave to be True for a machine with 64 cores"),
        (2, swap('int(found["NUMA node(s)"]) > 1', 'found["NUMA node(s)"]'), "interleave to be True"),
        (2, swap('"interleave"', '"numactl"'), "the keys OMP_NUM_THREADS, interleave"),
        (2, swap("return {", "{"), "a dict; it gave None: does it return?"),
        (2, swap('"num_intra_threads": physical', '"num_intra_threads": str(physical)'), "to be 18 for a machine"),
        (3, swap("2 * kernel", "kernel"), "forward in flops([(1, 1, 1, 1)]) to be 2; it is 1"),
        (3, swap("kernel**2", "kernel"), "forward in flops([(3, 8, 16, 10)])"),
        (3, swap("side**2", "side"), "forward in flops([(3, 8, 16, 10)])"),
        (3, swap("3 * sum(each) - each[0]", "3 * sum(each)"), "training in flops([(1, 1, 1, 1)]) to be 4; it is 6"),
        (3, swap("each[0]", "each[-1]"), "training in flops([(7, 3, 64, 112), (1, 64, 256, 56)])"),
        (3, swap("return sum(each), ", "return "), "to be two numbers"),
        (4, swap('log.type == "bf16"', 'log.implementation.str.contains("bf16")'), '"bf16" of a log to be 0.0430'),
        (4, swap('.startswith("ref")', '.contains("ref")'), '"reference" of a log to be'),
        (4, swap('.str.startswith("ref")', ' == "ref:any"'), '"reference" of a log to be'),
        (4, swap(".sum() / log.ms.sum()", ".count() / log.ms.count()"), '"bf16" of a log to be'),
        (4, swap(" / log.ms.sum()", ""), "it is 11.0000"),
        (4, swap('"reorder": log', '"reorders": log'), "the keys bf16, reference, reorder"),
        (4, swap("return {", "{"), "a dict; it gave None: does it return?"),
        (5, swap("moving > computing", "moving < computing"), '"cores" for 3×3 convolution at 100 GFLOP/s'),
        (5, swap("max(moving, computing)", "moving + computing"), "a saving of 10 ms for 3×3 convolution"),
        (
            5,
            swap("max(0.0, row.ms - max(moving, computing))", "row.ms - max(moving, computing)"),
            "of 0 ms for pooling",
        ),
        (5, swap(", reverse=True", ""), "the largest saving first"),
        (
            5,
            swap("dict(sorted(found.items(), key=lambda item: item[1][1], reverse=True))", "found"),
            "the largest saving",
        ),
        (5, swap("1000 * row.gbyte", "row.gbyte"), "for batch norm"),
        (
            5,
            swap("return dict(", "return dict((name, both[1]) for name, both in "),
            "(bound, saving) for 3×3 convolution",
        ),
        (5, swap("return dict(", "dict("), "a dict; it gave None: does it return?"),
    ]
    right = [
        (1, same),
        (1, swap("images * len(speeds) / np.sum(seconds)", "len(speeds) / np.sum(1 / speeds)")),
        (2, same),
        (2, BY_LINES),
        (3, same),
        (3, swap("3 * sum(each) - each[0]", "2 * each[0] + 3 * sum(each[1:])")),
        (4, same),
        (4, BY_ROWS),
        (5, same),
        (5, swap("max(0.0, row.ms - max(moving, computing))", "max(0, min(row.ms - moving, row.ms - computing))")),
    ]
