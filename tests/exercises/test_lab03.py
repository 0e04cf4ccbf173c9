import re

import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("03", {"np": np, "re": re})


BY_LINES = swap(
    r"""found = dict(re.findall(r"^\s*(.+?):\s+(\d+)$", lscpu, flags=re.M))""",
    """found = {}
    for line in lscpu.splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()""",
)
BY_PLACE = swap(
    r"""found = dict(re.findall(r"^\s*(.+?):\s+(\d+)$", lscpu, flags=re.M))""",
    """lines = lscpu.splitlines()
    first = next(number for number, line in enumerate(lines) if "Core(s) per socket" in line)
    found = {"Core(s) per socket": lines[first].split()[-1], "Socket(s)": lines[first + 1].split()[-1]}
    found["NUMA node(s)"] = sum("NUMA node" in line for line in lines) - 1""",
)
BY_COLONS = swap(
    r"""found = dict(re.findall(r"^\s*(.+?):\s+(\d+)$", lscpu, flags=re.M))""",
    """found = dict(line.strip().split(":") for line in lscpu.splitlines())""",
)
IN_32_BITS = swap(
    "    return sum(each), ",
    """    each = np.array(each).astype("int32")
    return each.sum(dtype="int32"), 3 * each.sum(dtype="int32") - each[0]
    return sum(each), """,
)
AS_ARRAY = swap(
    "    return images * len(speeds) / np.sum(seconds), np.std(speeds) / np.sqrt(len(speeds)), jitter",
    "    return np.array([images / np.mean(seconds), np.std(speeds) / len(speeds) ** 0.5, jitter])",
)
BY_COLUMNS = swap(
    "    for name, row in kinds.iterrows():\n",
    "    for name, (ms, gflop, gbyte) in kinds.iterrows():\n        row = kinds.loc[name]\n",
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
        (1, swap("np.array(seconds)", "seconds"), "TypeError: unsupported operand type(s)"),
        (1, swap(", jitter\n", ", round(jitter, 3)\n"), "the jitter in speed(12, [1.0, 2.0, 4.0]) to be 4.4478"),
        (1, swap("    speeds = ", "    seconds.sort()\n    speeds = "), "Expected seconds to stay as it was"),
        (2, swap('int(found["Core(s) per socket"]) * sockets', 'int(found["CPU(s)"])'), "to be 18; it is 36"),
        (2, swap('int(found["Core(s) per socket"]) * sockets', 'int(found["Core(s) per socket"])'), "it is 9"),
        (2, swap(r"^\s*(.+?)", r"^(\S.*?)"), "KeyError: 'Socket(s)', in line "),
        (
            2,
            swap('"num_inter_threads": sockets', '"num_inter_threads": int(found["NUMA node(s)"])'),
            "to be 1; it is 4",
        ),
        (2, swap('int(found["NUMA node(s)"]) > 1', "sockets > 1"), "to be True; it is False"),
        (2, swap('int(found["NUMA node(s)"]) > 1', 'found["NUMA node(s)"]'), "to be True; it is '2', of type str"),
        (2, swap('"interleave"', '"numactl"'), "the keys OMP_NUM_THREADS, interleave"),
        (2, swap("return {", "{"), "a dict; it is None: does it return?"),
        (
            2,
            swap('"num_intra_threads": physical', '"num_intra_threads": str(physical)'),
            "to be a number; it is '18', of type str",
        ),
        (
            2,
            swap('"num_intra_threads": physical', '"num_intra_threads": physical / 1'),
            "to be an int; it is 18.0, a float",
        ),
        (2, BY_PLACE, "whose lscpu has its lines in another order"),
        (2, BY_COLONS, "ValueError: dictionary update sequence element"),
        (3, swap("2 * kernel", "kernel"), "forward in flops([(1, 1, 1, 1)]) to be 2; it is 1"),
        (3, swap("kernel**2", "kernel"), "forward in flops([(3, 8, 16, 10)])"),
        (3, swap("side**2", "side"), "forward in flops([(3, 8, 16, 10)])"),
        (3, swap("3 * sum(each) - each[0]", "3 * sum(each)"), "training in flops([(1, 1, 1, 1)]) to be 4; it is 6"),
        (3, swap("each[0]", "each[-1]"), "training in flops([(7, 3, 64, 112), (1, 64, 256, 56)])"),
        (3, swap("return sum(each), ", "return "), "to be two numbers"),
        (
            3,
            swap("    each = ", "    layers.sort()\n    each = "),
            "Expected layers to stay as it was; flops changed it",
        ),
        (
            3,
            IN_32_BITS,
            "forward in flops([(7, 3, 64, 224), (3, 512, 512, 56)]) to be 15,741,616,128; it is -1,438,253,056",
        ),
        (
            4,
            swap('log.type == "bf16"', 'log.implementation.str.contains("bf16")'),
            '"bf16" of a log to be 0.04297 (2.75 of 64 ms)',
        ),
        (4, swap('.startswith("ref")', '.contains("ref")'), '"reference" of a log to be'),
        (4, swap('.str.startswith("ref")', ' == "ref:any"'), '"reference" of a log to be'),
        (4, swap(".sum() / log.ms.sum()", ".count() / log.ms.count()"), '"bf16" of a log to be'),
        (4, swap(" / log.ms.sum()", ""), "(2.75 of 64 ms); it is 2.75"),
        (4, swap('log.type == "bf16"', 'log.type != "f32"'), '"bf16" of a log with other types to be 0.4111'),
        (4, swap('log.type == "bf16"', 'log.type.str.contains("16")'), "(3.7 of 9 ms); it is 0.4556"),
        (4, swap('log.primitive == "reorder"', 'log.primitive.str.startswith("re")'), '"reorder" of a log with other'),
        (
            4,
            swap("log.ms[rows].sum() / log.ms.sum()", "log.ms[rows].round().sum() / log.ms.round().sum()"),
            "2.75 of 64 ms",
        ),
        (4, swap("log.ms[rows].sum() / log.ms.sum()", "round(log.ms[rows].sum() / log.ms.sum(), 6)"), "it is 0.042969"),
        (
            4,
            swap("    questions = {", "    log.ms = log.ms / log.ms.sum()\n    questions = {"),
            "Expected log to stay as it was",
        ),
        (4, swap("log.ms[rows].sum() / log.ms.sum()", "rows"), "a boolean mask of shape (9,)"),
        (4, swap('"reorder": log', '"reorders": log'), "the keys bf16, reference, reorder"),
        (4, swap("return {", "{"), "a dict; it is None: does it return?"),
        (
            5,
            swap("moving > computing", "moving < computing"),
            "the bound of 3×3 convolution at 100 GFLOP/s and 10 GB/s to be 'cores'",
        ),
        (
            5,
            swap("max(moving, computing)", "moving + computing"),
            "the saving of 3×3 convolution at 100 GFLOP/s and 10 GB/s to be 10",
        ),
        (
            5,
            swap("max(0.0, row.ms - max(moving, computing))", "row.ms - max(moving, computing)"),
            "the saving of pooling at 100 GFLOP/s and 10 GB/s to be 0",
        ),
        (5, swap(", reverse=True", ""), "the largest saving first"),
        (
            5,
            swap("dict(sorted(found.items(), key=lambda item: item[1][1], reverse=True))", "found"),
            "the largest saving",
        ),
        (5, swap("1000 * row.gbyte", "row.gbyte"), "the bound of batch norm"),
        (
            5,
            swap("return dict(", "return dict((name, both[1]) for name, both in "),
            "(bound, saving) for 3×3 convolution",
        ),
        (5, swap("return dict(", "dict("), "a dict; it is None: does it return?"),
        (5, swap("moving > computing", "moving >= computing"), "1 GFLOP: moving takes 7.8125 ms, computing 7.8125 ms"),
        (5, BY_COLUMNS, "ValueError: too many values to unpack (expected 3)"),
        (
            5,
            swap("    found = {}", "    kinds['gbyte'] /= bandwidth\n    found = {}"),
            "Expected kinds to stay as it was",
        ),
    ]
    right = [
        (1, same),
        (1, swap("images * len(speeds) / np.sum(seconds)", "len(speeds) / np.sum(1 / speeds)")),
        (1, swap("np.array(seconds)", 'np.array(seconds, "float32")')),
        (1, AS_ARRAY),
        (2, same),
        (2, BY_LINES),
        (3, same),
        (3, swap("3 * sum(each) - each[0]", "2 * each[0] + 3 * sum(each[1:])")),
        (3, swap("return sum(each), ", "return np.array(sum(each)), 1.0 * ")),
        (4, same),
        (4, BY_ROWS),
        (5, same),
        (5, swap("max(0.0, row.ms - max(moving, computing))", "max(0, min(row.ms - moving, row.ms - computing))")),
        (5, swap('"memory" if moving > computing else "cores"', 'np.where(moving > computing, "memory", "cores")')),
    ]
