from collections import Counter

import lab_cells
import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.bench.configurations import Comparison
from labkit.system.statistics import Ratio


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("03", {"np": np, "Counter": Counter})


IN_32_BITS = swap("    learning = ", "    each = np.array(each, dtype='int32')\n    learning = ")
BY_FORMULA = swap(
    "    plans = []\n",
    """    def error(plan):
        return (between**2 + within**2 / plan[1]) / plan[0]
    plans = [(1, (budget - start) // step)]
    each = 1
    while start + each * step <= budget:
        plans.append((int(budget // (start + each * step)), each))
        each += 1
    return min(plans, key=error)
""",
)
AS_ARRAYS = swap("return min(plans)[1:]", "return np.array(min(plans)[1:], dtype=float)")
BY_NODES = swap(
    "    best = sorted(places.values(), key=lambda place: (-cores_on[place[1]], place[1]))[:threads]\n",
    """    best = []
    for node, _ in cores_on.most_common():
        best += [place for place in places.values() if place[1] == node]
    best = best[:threads]
""",
)
BY_TABLE = swap(
    "    places = {core: (cpu, node) for cpu, core, _, node in mine}  # the first CPU of each core\n",
    """    import pandas
    table = pandas.DataFrame(cpus, columns=["cpu", "core", "socket", "node"])
    table = table[table.cpu.isin(list(allowed))].drop_duplicates("core")
    places = {row.core: (row.cpu, row.node) for row in table.itertuples()}
""",
)
AS_A_SET = swap('"cpus": [cpu for cpu, _ in best]', '"cpus": {cpu for cpu, _ in best}')
BACKWARDS = swap(
    "    learning = each[len(each) - trained :]\n    return sum(each) + sum(learning) + sum(learning[1:])",
    """    total, below = 0, len(each) - trained
    for number in reversed(range(len(each))):
        total += each[number] * (1 + (number >= below) + (number > below))
    return float(total)""",
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
TO_ROWS = swap("    questions = {", "    log = log.drop_duplicates()\n    questions = {")
BY_PLACE = swap(
    "    return {name: log.ms[rows].sum() / log.ms.sum() for name, rows in questions.items()}",
    """    found, total = dict.fromkeys(questions, 0), 0
    for primitive, implementation, _, kind, *_, ms in log.to_numpy():
        found["bf16"] += ms * (kind == "bf16")
        found["reference"] += ms * implementation.startswith("ref")
        found["reorder"] += ms * (primitive == "reorder")
        total += ms
    return {name: ms / total for name, ms in found.items()}""",
)


class TestExercises(ThreeWays):
    lab = "03"
    mistakes = [
        (
            1,
            swap("return min(plans)[1:]", "return 1, int((budget - start) / step)"),
            "plan(60, 5, 1, 0.02, 0.02) to have the least standard error, 0.866%; that of 1 × 55 steps is 2.018%",
        ),
        (
            1,
            swap("return min(plans)[1:]", "return int(budget / (start + step)), 1"),
            "plan(60, 5, 1, 0.02, 0.02) to have the least standard error, 0.866%; that of 10 × 1 steps is 0.894%",
        ),
        (1, swap("(launches * each)", "each"), "to have the least standard error"),
        (1, swap("within**2", "within"), "to have the least standard error"),
        (1, swap("between**2 / launches", "between**2"), "to have the least standard error"),
        (1, swap("budget / launches - start", "budget / launches"), "to take at most 60 s;"),
        (1, swap("(budget / launches - start) / step", "(budget - start) / step"), "to take at most 60 s;"),
        (1, swap("min(plans)[1:]", "max(plans)[1:]"), "to have the least standard error"),
        (1, swap("min(plans)[1:]", "min(plans)"), "to be (launches, steps of each); it has 3"),
        (1, swap("int((budget / launches - start) / step)", "(budget / launches - start) / step"), "steps of plan("),
        (1, swap("return min", "min"), "None: does it return?"),
        (1, swap("min(plans)[1:]", "(0, 100)"), "at least one launch and one step in plan(60, 5, 1, 0.02, 0.02)"),
        (1, swap("min(plans)[1:]", "(1, 55)"), "Hint 1 of 3"),
        (
            2,
            swap("core: (cpu, node)", "cpu: (cpu, node)"),
            '"cpus" for 18 cores of 2 threads each, on 2 sockets to be on different cores',
        ),
        (2, swap(" if row[0] in allowed", ""), "to be CPUs that you may use"),
        (2, swap("max(1, min(len(places), int(quota)))", "len(places)"), '2 "cpus" for 56 cores under a quota of 2.5'),
        (2, swap("int(quota)", "round(quota + 0.1)"), '2 "cpus" for 56 cores under a quota of 2.5 CPUs'),
        (2, swap("max(1, min(len(places), int(quota)))", "min(len(places), int(quota))"), "a quota of half a CPU"),
        (
            2,
            swap("(-cores_on[place[1]], place[1])", "place[0]"),
            "to be on 1 NUMA node; they are on 2: it is [0, 1, 32, 33]",
        ),
        (2, swap("(-cores_on[place[1]], place[1])", "place[1]"), "to be on 1 NUMA node; they are on 2"),
        (2, swap("(-cores_on[place[1]], place[1])", "(cores_on[place[1]], place[1])"), "NUMA node; they are on"),
        (
            2,
            swap("for _, node in places.values())", "for *_, node in mine)"),
            "2 with both threads on the other, under a quota of 3 CPUs to be on 1 NUMA node; they are on 2",
        ),
        (2, swap("[row for row in reversed(cpus) if row[0] in allowed]", "[cpus[n] for n in allowed]"), "IndexError"),
        (
            2,
            swap("len(places) if quota is None", "max(1, len(mine) // 2) if quota is None"),
            "it is [1].\n   Hint 1 of 3: First keep",
        ),
        (2, swap("(-cores_on[place[1]], place[1])", "-place[1]"), "4 sockets with 1, 3, 2 and 3 cores allowed"),
        (2, swap("len({node for _, node in best}) > 1", "len(cores_on) > 1"), "to be False; it is True"),
        (2, swap("len({node for _, node in best}) > 1", "len({node for _, node in best})"), "to be True; it is 2"),
        (2, swap("[cpu for cpu, _ in best]", "len(best)"), "to be a list; it is 18"),
        (2, swap("[cpu for cpu, _ in best]", "best"), "to be a number; it is a tuple"),
        (2, swap("[cpu for cpu, _ in best]", "np.eye(2)"), "to be a list; it is an array of shape (2, 2)"),
        (2, swap('"interleave"', '"numactl"'), "missing: interleave"),
        (2, swap("return {", "return {'threads': threads, "), "and no others; it has threads as well"),
        (2, swap("cpus", "rows"), "TypeError: place_threads() got an unexpected keyword argument 'cpus'"),
        (2, swap("    mine", "    allowed = allowed.copy()\n    mine"), "'range' object has no attribute 'copy'"),
        (2, swap("max(1, min(len(places), int(quota)))", "len(places)"), "Hint 2 of 3: With a quota"),
        (2, swap("return {", "{"), "a dict; it is None: does it return?"),
        (3, swap("len(each) - trained :", "-trained:"), "training_flops([2], 0) to be 2; it is 4"),
        (3, swap("sum(learning[1:])", "sum(learning)"), "training_flops([2], 1) to be 4; it is 6"),
        (3, swap("sum(learning[1:])", "sum(learning)"), "Hint 2 of 3: Of the layers that learn"),
        (3, swap("sum(learning[1:])", "sum(learning[:-1])"), "training_flops([2, 10, 100], 3) to be 334"),
        (3, swap("[len(each) - trained :]", "[:trained]"), "training_flops([2, 10, 100], 2) to be 322"),
        (3, swap("return sum(each)", "return sum(learning)"), "training_flops([2], 0) to be 2; it is 0"),
        (
            3,
            swap("return sum(each) + sum(learning) + sum(learning[1:])", "return 3 * sum(each) - each[0]"),
            ", 0) to be",
        ),
        (3, swap("return sum", "sum"), "None: does it return?"),
        (3, swap("    learning", "    each.reverse()\n    learning"), "Expected each to stay as it was"),
        (3, IN_32_BITS, "OverflowError"),
        (3, swap("    learning =", "    each = np.array(each, dtype='float32')\n    learning ="), "training_flops("),
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
        (4, TO_ROWS, "of a log in which rows come again to be"),
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
        (5, swap(", reverse=True", ""), "Hint 3 of 3: Finally: dict(sorted("),
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
        (1, BY_FORMULA),
        (1, AS_ARRAYS),
        (2, same),
        (2, BY_NODES),
        (2, BY_TABLE),
        (2, AS_A_SET),
        (2, swap("[cpu for cpu, _ in best]", "np.array([cpu for cpu, _ in best])[::-1]")),
        (3, same),
        (3, BACKWARDS),
        (3, swap("return sum(each)", "return np.sum(each)")),
        (4, same),
        (4, BY_ROWS),
        (4, BY_PLACE),
        (5, same),
        (5, swap("max(0.0, row.ms - max(moving, computing))", "max(0, min(row.ms - moving, row.ms - computing))")),
        (5, swap('"memory" if moving > computing else "cores"', 'np.where(moving > computing, "memory", "cores")')),
    ]


# --- What the lab says of its measurements, played invented results of each kind ---

ROUNDS = [1.0, 1.02, 0.99]  # how fast each of three rounds is
NOISE = [(1, -1, 0), (-1, 0, 1), (0, 1, -1), (-1, 1, 0)]  # of each configuration, in its rounds


def comparison(speeds, rounds=3, noise=0.01, work=None):
    """A comparison in which each configuration has this speed, in rounds that differ, with some noise of its own."""
    results = {
        name: [
            {"images_per_second": speed * ROUNDS[turn] * (1 + noise * NOISE[row][turn]), "gflop_per_image": 1.0}
            for turn in range(rounds)
        ]
        for row, (name, speed) in enumerate(speeds.items())
    }
    for name, gflop in (work or {}).items():
        for result in results[name]:
            result["gflop_per_image"] = gflop
    return Comparison(results, {})


def cells(*names):
    return lab_cells.functions("03", *names, np=np, Ratio=Ratio)


VERDICTS = [
    ({"new": 20.0}, 3, "faster", "→ change it on this machine: this gains at least"),
    ({"new": 3.0}, 3, "slower", "→ stay with what is tuned: this costs at least 6"),
    ({"new": 10.0}, 3, "no difference beyond chance", "these rounds cannot resolve differences below a factor of 1."),
    ({"new": 20.0}, 1, "one round only, so there is no interval", "→ measure in rounds before you decide"),
    ({}, 3, "not measured here", ""),
]


@pytest.mark.parametrize(("speeds", "rounds", "verdict", "advice"), VERDICTS)
def test_what_is_said_of_a_configuration_is_what_its_rounds_show(speeds, rounds, verdict, advice, capsys):
    both = cells("tell", "advise")
    found = comparison({"tuned": 10.0, **speeds}, rounds)
    both["tell"](found, "new", "tuned")
    assert f": {verdict}" in capsys.readouterr().out
    both["advise"](found, "new", "tuned")
    told = capsys.readouterr().out
    assert f": {verdict}" in told
    assert advice in told
    assert ("→" in told) == bool(advice)


def test_advice_that_the_noise_does_not_bear_is_not_given(capsys):
    cells("tell", "advise")["advise"](comparison({"tuned": 10.0, "new": 9.0}, noise=0.2), "new", "tuned")
    told = capsys.readouterr().out
    assert "no difference beyond chance" in told
    assert "stay" not in told


@pytest.mark.parametrize(
    ("forward", "rounds", "says"),
    [
        (45.0, 3, "times the GFLOP/s of training: more"),
        (20.0, 3, "times the GFLOP/s of training: fewer"),
        (30.0, 3, "times the GFLOP/s of training: no difference beyond chance"),
        (45.0, 1, "1.47 times the GFLOP/s of training: one round only, so there is no interval"),
    ],
)
def test_the_forward_pass_is_compared_by_operations_and_not_by_images(forward, rounds, says, capsys):
    conclude = cells("tell", "reached", "conclude")["conclude"]
    speeds = {"training": 10.0, "forward": forward}
    conclude(comparison(speeds, rounds, work={"training": 24.0, "forward": 8.0}))
    told = capsys.readouterr().out
    assert "training, unfused against training: not measured here" in told
    assert told.rstrip().endswith(says)


def test_the_batch_sizes_rule_is_found_again():
    """A fixed time of 0.2 s and 0.1 s an image, without noise."""
    sizes = [1, 2, 4, 8]
    speeds = {f"float32, batch {size}": size / (0.2 + 0.1 * size) for size in sizes}
    fit = lab_cells.functions("03", "fit", np=np, sizes=sizes, by_batch=comparison(speeds, noise=0.0))["fit"]
    assert fit("float32") == pytest.approx([0.2, 0.1], rel=0.01)
