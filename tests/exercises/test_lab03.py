import lab_cells
import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap

from labkit.bench.configurations import Comparison
from labkit.system.statistics import Ratio


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("03", {"np": np})


IN_32_BITS = swap(
    "    return sum(each), ",
    """    each = np.array(each).astype("int32")
    return each.sum(dtype="int32"), 3 * each.sum(dtype="int32") - each[0]
    return sum(each), """,
)
TWO_SLOW = swap(
    "    return [each] * (steps - 1) + [all_steps - (steps - 1) * each]\n",
    """    slow = 2 if steps > 4 else 1
    rest = all_steps - (steps - slow) * each
    return np.array([rest / slow] * slow + [each] * (steps - slow))
""",
)
BY_LOOP = swap(
    "    mine = [row for row in cpus if row[0] in allowed]\n    physical = len({core for _, core, _, _ in mine})\n",
    """    import pandas
    table = pandas.DataFrame(cpus, columns=["cpu", "core", "socket", "node"]).set_index("cpu").loc[list(allowed)]
    mine = [(0, *row) for row in table.values.tolist()]
    physical = table.core.nunique()
""",
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
BY_FRACTIONS = swap(
    "    all_steps, each = steps * images / mean, images / usual\n",
    """    from fractions import Fraction
    each = Fraction(images) / Fraction(usual)
    all_steps = steps * images / Fraction(mean)
""",
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
LABELLED = swap(
    "return sum(each), 3 * sum(each) - each[0]",
    "import pandas\n    return pandas.Series({'forward': sum(each), 'training': 3 * sum(each) - each[0]})",
)


class TestExercises(ThreeWays):
    lab = "03"
    mistakes = [
        (
            1,
            swap("return [each] * (steps - 1) + [all_steps - (steps - 1) * each]", "return [images / mean] * steps"),
            "the usual step's images/s in disturbed(16, 10, 11, 8) to be 11; it is 8",
        ),
        (
            1,
            swap("all_steps - (steps - 1) * each", "images / (steps * mean - (steps - 1) * usual)"),
            "more than 0 seconds for each step in disturbed(16, 10, 11, 8)",
        ),
        (
            1,
            swap("[each] * (steps - 1) + [all_steps - (steps - 1) * each]", "[each] * (steps - 1) + [each * 5]"),
            "the line's first number for disturbed(16, 10, 11, 8) to be 8; it is",
        ),
        (
            1,
            swap(
                "[each] * (steps - 1) + [all_steps - (steps - 1) * each]",
                "[each] * (steps - 2) + [each * 0.9, all_steps - (steps - 2 + 0.9) * each]",
            ),
            "the jitter in disturbed(32, 3, 20, 5) to be 0",
        ),
        (1, swap("(steps - 1) + [", "steps + ["), "to be a list with the seconds of 10 steps; it has 11: ["),
        (1, swap("images / usual\n", "images / int(usual)\n"), "in disturbed(8, 5, 17.3, 12.9) to be 17.3; it is 17"),
        (1, swap("return [", "yield from ["), "to be a list with the seconds of 10 steps; it is a generator"),
        (1, swap("return [each]", "[each]"), "None: does it return?"),
        (1, swap("images / usual", "usual / images"), "in disturbed(16, 10, 11, 8)"),
        (
            2,
            swap("len({core for _, core, _, _ in mine})", "len(mine)"),
            "OMP_NUM_THREADS for 18 cores of 2 threads each, on 2 sockets to be 18; it is 36",
        ),
        (2, swap("if row[0] in allowed", ""), "of which 4 are allowed with both their threads to be 4; it is 64"),
        (2, swap("{socket for _, _, socket, _ in mine}", "{node for _, _, _, node in mine}"), "to be 1; it is 4"),
        (2, swap("{node for _, _, _, node in mine}", "{node for _, _, node, _ in mine}"), "to be True; it is False"),
        (2, swap("max(1, min(physical, int(quota)))", "physical"), "a quota of 2.5 CPUs to be 2; it is 56"),
        (2, swap("int(quota)", "round(quota + 0.1)"), "a quota of 2.5 CPUs to be 2; it is 3"),
        (2, swap("max(1, min(physical, int(quota)))", "min(physical, int(quota))"), "half a CPU to be 1; it is 0"),
        (2, swap("max(1, min(physical, int(quota)))", "max(1, int(quota))"), "a quota of 6 CPUs to be 4; it is 6"),
        (2, swap("int(quota)", "quota"), "to be a whole number; it is 2.5"),
        (2, swap("physical if quota is None", "len(mine) if quota is None"), "to be 18; it is 36"),
        (2, swap('"interleave"', '"numactl"'), "num_intra_threads; missing: interleave"),
        (2, swap("return {", "return {'numactl': True, "), "and no others; it has numactl as well"),
        (2, swap("cpus", "rows"), "TypeError: settings_for() got an unexpected keyword argument 'cpus'"),
        (2, swap("    mine", "    allowed = allowed.copy()\n    mine"), "'range' object has no attribute 'copy'"),
        (2, swap("    mine", "    allowed = [] + allowed\n    mine"), 'in line 4: "allowed = [] + allowed"'),
        (
            2,
            swap("len({socket for _, _, socket, _ in mine})", "1 + mine[-1][2] - mine[0][2]"),
            "on the first and the last of 4 sockets to be 2; it is 4",
        ),
        (2, swap("{socket for _, _, socket, _ in mine}", "cpus"), "Hint 2 of 3"),
        (2, swap("int(quota)", "round(quota + 0.1)"), "Hint 3 of 3"),
        (2, swap("return {", "{"), "a dict; it is None: does it return?"),
        (2, swap('"num_intra_threads": busy', '"num_intra_threads": str(busy)'), "to be a number; it is '18'"),
        (2, swap('"num_intra_threads": busy', '"num_intra_threads": busy / 1'), "to be an int; it is 18.0, a float"),
        (3, swap("2 * kernel", "kernel"), "forward in flops([(1, 1, 1, 1)]) to be 2; it is 1"),
        (3, swap("kernel**2", "kernel"), "forward in flops([(3, 8, 16, 10)])"),
        (3, swap("side**2", "side"), "forward in flops([(3, 8, 16, 10)])"),
        (3, swap("3 * sum(each) - each[0]", "3 * sum(each)"), "training in flops([(1, 1, 1, 1)]) to be 4; it is 6"),
        (3, swap("each[0]", "each[-1]"), "training in flops([(7, 3, 64, 112), (1, 64, 256, 56)])"),
        (3, swap("return sum(each), ", "return "), "to be two numbers"),
        (3, swap("3 * sum(each) - each[0]", "3 * sum(each)"), "Hint 3 of 3: Training is three times"),
        (3, LABELLED, "to be a tuple; it is a Series"),
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
        (1, TWO_SLOW),
        (1, BY_FRACTIONS),
        (2, same),
        (2, BY_LOOP),
        (2, swap("len({node for _, _, _, node in mine}) > 1", "min(r[3] for r in mine) < max(r[3] for r in mine)")),
        (2, swap("if row[0] in allowed", "if row[0] in {*allowed}")),
        (3, same),
        (3, swap("3 * sum(each) - each[0]", "2 * each[0] + 3 * sum(each[1:])")),
        (3, swap("return sum(each), ", "return np.array(sum(each)), 1.0 * ")),
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
    ({"new": 20.0}, 3, "faster", "→ change it on this machine: this gains"),
    ({"new": 3.0}, 3, "slower", "→ stay with what is set: this loses 6"),
    ({"new": 10.0}, 3, "no difference beyond chance", "cannot be seen in these rounds"),
    ({"new": 20.0}, 1, "one round only, so there is no interval", "→ measure in rounds before you decide"),
    ({}, 3, "not measured here", ""),
]


@pytest.mark.parametrize(("speeds", "rounds", "verdict", "advice"), VERDICTS)
def test_what_is_said_of_a_configuration_is_what_its_rounds_show(speeds, rounds, verdict, advice, capsys):
    both = cells("tell", "advise")
    found = comparison({"as set": 10.0, **speeds}, rounds)
    both["tell"](found, "new", "as set")
    assert capsys.readouterr().out.rstrip().endswith(f": {verdict}")
    both["advise"](found, "new", "as set")
    told = capsys.readouterr().out
    assert f": {verdict}\n" in told
    assert advice in told
    assert ("→" in told) == bool(advice)


def test_advice_that_the_noise_does_not_bear_is_not_given(capsys):
    cells("tell", "advise")["advise"](comparison({"as set": 10.0, "new": 9.0}, noise=0.2), "new", "as set")
    told = capsys.readouterr().out
    assert "no difference beyond chance" in told
    assert "stay" not in told


FUSED = {"onednn": 10.0, "onednn, unfused": 8.0, "onednn-bf16": 20.0}


@pytest.mark.parametrize(
    ("unfused", "says"),
    [
        (10.0, "it costs more in bfloat16"),
        (19.9, "it costs less in bfloat16"),
        (16.0, "no difference beyond chance"),
    ],
)
def test_what_bfloat16_does_to_the_batch_norm_is_what_four_speeds_show(unfused, says, capsys):
    conclude = cells("tell", "quotient", "reached", "conclude")["conclude"]
    conclude(comparison(FUSED | {"onednn-bf16, unfused": unfused}))
    assert capsys.readouterr().out.rstrip().endswith(f": {says}")


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
    conclude = cells("tell", "quotient", "reached", "conclude")["conclude"]
    speeds = {"onednn": 10.0, "onednn, forward": forward}
    conclude(comparison(speeds, rounds, work={"onednn": 24.0, "onednn, forward": 8.0}))
    told = capsys.readouterr().out
    assert "onednn-bf16, unfused against onednn-bf16: not measured here" in told
    assert told.rstrip().endswith(says)


def test_a_ratio_of_ratios_is_less_certain_than_either():
    quotient = cells("quotient")["quotient"]
    found = quotient(Ratio(2.0, 1.6, 2.5), Ratio(1.0, 0.8, 1.25))
    assert found.value == 2
    assert found.low == pytest.approx(2 / 1.25**2**0.5)
    assert found.high == pytest.approx(2 * 1.25**2**0.5)
    assert np.isnan(quotient(Ratio(2.0), Ratio(1.0)).low)
