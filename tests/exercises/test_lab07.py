import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import lab_cells
import launches
import numpy as np
import pytest
from labs import ThreeWays

from labkit.display.consistency import Limit, Prediction
from labkit.display.measured import Measured
from labkit.exercises import lab07
from labkit.system import statistics
from labkit.system.words import plural
from labkit_author import sources
from labkit_author.mistakes import Change

pytestmark = pytest.mark.timeout(900)  # the shared launch of all scripts takes a minute, and many on a busy machine

VARIANT = {"active": lab07.RANKS, "steps": 2, "batch": 64, "every": 1, "horovod": True, "fp16": False}
# Some variants for compare.py: one rank alone, then all. Horovod starts and stops in each round.
VARIANTS = {
    "one rank": VARIANT | {"active": 1, "horovod": False},
    "default": VARIANT,
    "FP16": VARIANT | {"fp16": True},
    "4 batches": VARIANT | {"every": 4},
}
# The lab's own scripts, and their arguments.
ALONE = {
    "serial.py": ["--digits", 256, "--epochs", 2],
    "silent.py": [256],
    "compare.py": ["variants.json", "speeds.json", 2],
}


class TestExercises(ThreeWays):
    lab = "07"
    on_ranks = frozenset({4, 5})
    names = {"np": np, "math": math}

    @classmethod
    def make_student(cls, folder):
        """The lab up to its scripts: plan.py from the solutions, the other modules from the lab."""
        student = super().make_student(folder)
        student.names["shard"] = student.answer(1)  # which exercise 3 may use
        (folder / "work").mkdir(exist_ok=True)
        cells = sources.read(sources.find("07")).cells
        plan = next(cell.source for cell in cells if "plan.py" in cell.source and "write_text" in cell.source)
        exec(plan, {"check": student.check, "work": folder / "work"})
        for cell in cells:
            head, _, text = cell.source.partition("\n")
            if head.startswith("%%writefile work/") and "### BEGIN SOLUTION" not in text:
                (folder / head.split()[-1]).write_text(text)
        return student


@pytest.fixture(scope="module")
def outputs(request, tmp_path_factory):
    """Return each rank's output, for each answer in the selected tests and each of the lab's own scripts by name."""
    folder = tmp_path_factory.mktemp("outputs")
    lab = folder / "lab"
    lab.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(lab)
        TestExercises.make_student(lab)
    (lab / "variants.json").write_text(json.dumps(VARIANTS))
    more = {
        name: launches.Launch(lab07.RANKS, lab, [str(lab / "work" / name), *map(str, arguments)])
        for name, arguments in ALONE.items()
    }
    output = launches.run_all(request, folder, more)
    return output | {"speeds.json": json.loads((lab / "speeds.json").read_text())}


def test_plan_contains_its_functions_in_order(student, tmp_path):
    text = (tmp_path / "work" / "plan.py").read_text()
    places = [text.index(f"\n# def {name}(") for name in ("shard", "learning_rate", "steps_per_epoch")]
    assert places == sorted(places)


def test_a_failing_script_is_reported_when_launched_alone(student, capsys):
    """The script runs as a student runs it, not in the shared launch of the tests above."""
    student.check(4, student.answer(4, Change(before="    hvd.init()\n", after="")))
    assert "has not been initialized; use hvd.init(), in line" in capsys.readouterr().out


def test_the_serial_script_trains(outputs):
    lines = [line for line in outputs["serial.py"][0] if line.startswith("epoch")]
    assert [line.partition(":")[0] for line in lines] == ["epoch 1", "epoch 2"]


def test_a_run_that_only_looks_distributed_diverges(outputs):
    """Section 8's script raises no error, yet the weights differ."""
    for lines in outputs["silent.py"]:
        (difference,) = [line for line in lines if line.startswith("largest difference")]
        assert float(difference.split()[-1]) > 0


def test_a_launch_measures_each_variant_in_each_round(outputs):
    measured = outputs["speeds.json"]
    assert list(measured["speeds"]) == list(VARIANTS)
    assert all(len(speeds) == 2 and min(speeds) > 0 for speeds in measured["speeds"].values())
    assert measured["gradients"] == 4 * 421_642
    assert set(itertools.chain(*measured["sent"].values())) == {0.0}  # bytes are counted only on request


def test_a_rank_with_an_extra_batch_hangs_and_horovod_reports_it(student, tmp_path):
    """Section 3's run ends because of the variables; without them, it would hang forever."""
    from labkit.mpi.launch import run_ranks

    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": 1, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 2}
    run = run_ranks(2, tmp_path / "work" / "uneven.py", threads=1, env=env, timeout=300, show=False)
    lines = {line.replace("!", "") for line in run.lines[0]}  # the mark of a stalled rank
    assert {"Missing ranks:", "Horovod has shut down."} <= lines
    assert {"0: [accuracy]", "1: [gradient]"} & lines  # sometimes only the first stalled rank is reported
    assert "end of the epoch" not in run.lines[0] + run.lines[1]


def test_each_round_has_each_launch_once(capsys):
    launched_ranks = []

    def launch(variants, **options):
        launched_ranks.append(options["ranks"])
        return {name: 10.0 * len(launched_ranks) for name in variants}, f"run {len(launched_ranks)}"

    alternate = lab_cells.functions("07", "alternate", launch=launch)["alternate"]
    speeds, runs = alternate([{"ranks": 1, "variants": ["a", "b"]}, {"ranks": 2, "variants": ["c"]}], rounds=2)
    assert speeds == {"a": [10.0, 30.0], "b": [10.0, 30.0], "c": [20.0, 40.0]}
    assert runs == ["run 1", "run 2", "run 3", "run 4"]
    assert launched_ranks == [1, 2, 1, 2]
    assert capsys.readouterr().out.splitlines() == ["round 1 of 2", "round 2 of 2"]
    assert alternate([{"ranks": 1, "variants": ["a"]}], rounds=0) == ({}, [])


# What the lab prints about its measurements, with synthetic results of each kind


NOISE = np.array([1.0, 1.01, 0.99, 1.005])


def lab_functions(*names, **variables):
    variables |= {"statistics": statistics, "math": math, "np": np, "plural": plural}
    variables |= {"Measured": Measured, "Limit": Limit, "Prediction": Prediction}
    return lab_cells.functions("07", "percent", *names, **variables)


def speeds_of(**factors):
    return {
        name.replace("__", ", ").replace("_", " "): list(100 * factor * np.roll(NOISE, shift))
        for shift, (name, factor) in enumerate(factors.items())
    }


@pytest.mark.parametrize(
    ("weak", "sentence"),
    [
        (1.6, "averaging costs 11% of the images per second"),
        (1.8, "not significant"),
        (2.2, "something else changed: measure again"),
    ],
)
def test_the_cost_of_averaging_follows_from_the_rounds(weak, sentence, capsys):
    speeds = speeds_of(one_rank=1, weak=weak, weak__side_by_side=1.8)
    lab_functions("cost_of", "show_scaling")["show_scaling"]("weak", speeds, 2)
    out = capsys.readouterr().out.splitlines()
    assert sentence in out[2]
    assert out[0].startswith(f"weak scaling on 2 ranks: efficiency {weak / 2:.0%} (")


def test_one_round_has_no_interval(capsys):
    speeds = {name: rounds[:1] for name, rounds in speeds_of(one_rank=1, weak=1.6, weak__side_by_side=1.8).items()}
    lab_functions("cost_of", "show_scaling")["show_scaling"]("weak", speeds, 2)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "weak scaling on 2 ranks: efficiency 80%"
    assert out[2].endswith("one round only, so there is no interval")


@pytest.mark.parametrize(
    ("strong", "sentence"),
    [(1.6, "not significant"), (1.4, "averaging costs more here"), (1.75, "averaging costs less here")],
)
def test_averaging_is_compared_between_weak_and_strong_scaling(strong, sentence, capsys):
    speeds = speeds_of(weak=1.6, weak__side_by_side=1.8, strong=strong, strong__side_by_side=1.8)
    lab_functions("show_averaging")["show_averaging"](speeds)
    assert sentence in capsys.readouterr().out


@pytest.mark.parametrize(("value", "verdict"), [(1.3, "faster"), (0.7, "slower"), (1.0, "not significant")])
def test_the_gain_of_a_setting_follows_from_the_rounds(value, verdict, capsys):
    speeds = speeds_of(weak=1, cycle=value)
    lab_functions("show_settings")["show_settings"](speeds, "weak", ["cycle"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"cycle: {value:.2f}× (")
    assert verdict in line


@pytest.mark.parametrize(("value", "verdict"), [(1.3, "higher"), (0.7, "lower"), (1.0, "not significant")])
def test_efficiencies_are_compared_round_by_round(value, verdict, capsys):
    speeds = speeds_of(one_rank=1, weak=1.6, one_rank__batch_256=2, batch_256=3.2 * value)
    lab_functions("show_batches")["show_batches"](speeds, 2)
    small, large, compared = capsys.readouterr().out.splitlines()
    assert small.startswith("  efficiency at batch 64: 80% (")
    assert large.startswith(f"  efficiency at batch 256: {80 * value:.0f}% (")
    assert verdict in compared


@pytest.mark.parametrize(
    ("ranks", "verdict", "winner"),
    [
        (1.3, "faster", "ranks"),
        (0.7, "slower", "threads"),
        (1.0, "not significant", "no clear difference"),
    ],
)
def test_ranks_and_threads_are_compared_round_by_round(ranks, verdict, winner, capsys):
    show = lab_functions("show_threads")["show_threads"]
    assert show(speeds_of(one_process=1, weak=ranks), 2) == winner
    last = capsys.readouterr().out.splitlines()[-1]
    assert verdict in last
    assert "talk" not in last  # which compared other ranks and threads


@pytest.mark.parametrize(
    ("speeds", "place"),
    [((5000, 8000), "1.60×, inside the interval"), ((4500, 10_000), "2.22×, outside the interval: they ran once")],
)
def test_training_runs_are_compared_with_the_rounds(speeds, place, capsys):
    logs = {
        ranks: {"history": [{"images_per_second": speed * factor} for factor in (0.7, 1, 1.1)]}
        for ranks, speed in zip((1, 2), speeds, strict=True)
    }
    vs_one = statistics.ratios(speeds_of(one_rank=1, weak=1.6), "one rank")["weak"]
    lab_functions("median_speed", "show_training_runs")["show_training_runs"](logs, vs_one, 2)
    assert f"the training runs gave {place}" in capsys.readouterr().out


def test_oversubscribed_ranks_are_marked_and_compared(capsys):
    names = ("2 × 1", "2 × 2")
    speeds = dict(zip(names, speeds_of(a=1, b=0.7).values(), strict=True))
    lab_functions("show_grid")["show_grid"](speeds, 2)
    out = capsys.readouterr().out.splitlines()
    assert "oversubscribed" not in out[0]
    assert out[1].endswith("(oversubscribed: 4 threads on 2 cores)")
    assert out[2].startswith("  0.70× (")
    assert out[2].endswith(" vs 2 × 1: slower")


def test_time_to_accuracy_uses_an_accuracy_that_all_runs_reach(capsys):
    def run(speed, *epochs):
        keys = ("epoch", "seconds", "accuracy", "images_per_second")
        return {
            "history": [dict(zip(keys, (i, *epoch, speed), strict=True)) for i, epoch in enumerate(epochs, start=1)]
        }

    logs = {1: run(4000, (5.0, 0.9), (10.0, 0.965)), 4: run(5000, (4.0, 0.7), (8.0, 0.948))}
    show = lab_functions("median_speed", "show_time_to_accuracy")["show_time_to_accuracy"]
    show(logs, 2)
    assert capsys.readouterr().out.splitlines() == [
        "First epoch with 94% test accuracy or more, and images/s of the median epoch:",
        "  1 rank   epoch 2,  10.0 s,  10.0 core-seconds;   4,000 images/s, 1.00×",
        "  4 ranks  epoch 2,   8.0 s,  16.0 core-seconds;   5,000 images/s, 1.25×",
        "Fewest seconds: 4 ranks; most images/s: 4 ranks. One run each, so no intervals.",
    ]
    show({1: run(4000, (5.0, 0.95)), 2: run(8500, (6.0, 0.96))}, 2)
    out = capsys.readouterr().out.splitlines()
    assert "More than 2×" in out[3]  # a speed-up that only a change of the machine explains is reported
    assert out[-1].startswith("Fewest seconds: 1 rank; most images/s: 2 ranks.")


def test_the_closing_table_has_section_5s_rows():
    row = lab_functions("scaling_row")["scaling_row"]
    speeds = speeds_of(one_rank=1, weak=1.6, weak__side_by_side=1.8, strong=1.2, strong__side_by_side=1.7)
    name, _, reached, limit, others = row("weak", speeds, 2, 2, "watch")
    assert name == "weak: this CNN, 2 ranks on 2 cores"
    assert str(reached).startswith("80% (")
    assert limit.describe(reached).startswith("90% (")
    assert others == "watch"
    assert str(row("strong", speeds, 2, 2, "watch")[2]).startswith("60% (")
    assert row("weak", {}, 2, 2, None)[2] == ""
    assert row("weak", {}, 4, 64, None)[0].endswith("4 ranks on 4 cores")  # not on all 64


# Horovod's timeline


def test_the_step_of_median_length_is_drawn(tmp_path):
    def step(pid, start, end):
        return [
            {"pid": pid, "ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": start},
            {"pid": pid, "ph": "E", "ts": start + 1000},
            {"pid": pid, "ph": "B", "name": "ALLREDUCE", "ts": start + 1000},
            {"pid": pid, "ph": "B", "name": "MPI_ALLREDUCE", "ts": start + 1000},
            {"pid": pid, "ph": "E", "ts": end},
            {"pid": pid, "ph": "E", "ts": end, "args": {"shape": f"[{pid}, 2]"}},
        ]

    def name(pid, text):
        return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": text}}

    events = [name(7, "DistributedGradientTape_b"), name(3, "DistributedGradientTape_a"), name(9, "metrics")]
    for start, length in ((0, 9000), (20_000, 3000), (40_000, 5000)):
        events += [*step(7, start + 500, start + length), *step(3, start, start + length), *step(9, start, start + 1)]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events))
    timeline = lab_cells.functions("07", "read_timeline", "median_step", json=json, math=math, Path=Path)
    gradients = timeline["read_timeline"](path)
    assert [gradient["shape"] for gradient in gradients] == [[3, 2], [7, 2]]  # the smaller first
    small, large = timeline["median_step"](gradients)
    assert small == [("NEGOTIATE_ALLREDUCE", 0.0, 1.0), ("MPI_ALLREDUCE", 1.0, 5.0), ("ALLREDUCE", 1.0, 5.0)]
    assert large[0] == ("NEGOTIATE_ALLREDUCE", 0.5, 1.5)


def test_a_pinning_is_described():
    describe = lab_cells.functions("07", "pinning", "describe_pinning")["describe_pinning"]
    node = [(0, 4), (1, 5)]
    assert describe([{0}, {4}], node, 1) == "pairs of ranks that may share a core: 1; idle cores: 1 of 2"
    assert describe([{0, 4}, {1, 5}], node, 2) == "ranks whose threads take turns: 2"
    assert describe([{0, 4}, {1, 5}], node, 1) == "each rank has its own cores, and none is idle"


# On wires


def results_on(nodes, sent=1.0, **factors):
    """Return results like work/compare.py's: speeds by factor, and `sent` times the traffic of a node in a ring."""
    speeds = {name.replace("four", "4"): rounds for name, rounds in speeds_of(**factors).items()}
    ring = 2 * (nodes - 1) / nodes * 1e6
    bytes_sent = {"default": [sent * ring] * 2, "FP16": [sent * ring / 2] * 2}
    return {"nodes": nodes, "speeds": speeds, "sent": bytes_sent, "gradients": 1_000_000}


def one_round(results):
    return results | {"speeds": {name: rounds[:1] for name, rounds in results["speeds"].items()}}


def wired(**factors):
    base = {"one_rank": 1, "side_by_side": 1.8, "default": 0.9, "FP16": 1.2, "four_batches": 0.7}
    return {"2 nodes, 1 Gbit/s": results_on(2, **base | factors)}


@pytest.mark.parametrize(
    ("default", "sentence"),
    [
        (0.9, "averaging costs 50% of the images per second"),
        (1.8, "not significant"),
        (2.5, "something else changed: measure again"),
    ],
)
def test_the_cost_of_averaging_on_wires_follows_from_the_rounds(default, sentence, capsys):
    lab_functions("cost_of", "show_wires")["show_wires"](wired(default=default))
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"2 nodes, 1 Gbit/s: efficiency {default / 2:.0%} (")
    assert sentence in out[2]


def test_the_gain_of_a_change_on_wires_follows_from_the_rounds(capsys):
    show = lab_functions("show_changes", CHANGES=("FP16", "4 batches", "one rank"))["show_changes"]
    show(wired(one_rank=0.9))
    _, *out = capsys.readouterr().out.splitlines()
    verdicts = [line.rpartition(": ")[2].partition(";")[0] for line in out]
    assert verdicts == ["faster", "slower", "not significant"]
    show({case: one_round(results) for case, results in wired().items()})
    _, *out = capsys.readouterr().out.splitlines()
    assert all(line.endswith("one round only, so there is no interval") for line in out)


@pytest.mark.parametrize(("sent", "algorithm"), [(1.02, "ring"), (1.34, "doubling")])
def test_bytes_reveal_the_algorithm(sent, algorithm, capsys):
    show = lab_functions("ring", "show_bytes")["show_bytes"]
    show({"4 nodes, 1 Gbit/s": results_on(4, sent, one_rank=1), "2 nodes, 1 Gbit/s": results_on(2, one_rank=1)})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4:] for line in lines[1:]] == [
        ["default", f"{1.5 * sent:.2f}", "1.50", "2.00", "nearer", "to", algorithm],
        ["FP16", f"{0.75 * sent:.2f}", "0.75", "1.00", "nearer", "to", algorithm],
        ["default", "1.00", "1.00", "1.00", "on", "2", "nodes,", "the", "same"],
        ["FP16", "0.50", "0.50", "0.50", "on", "2", "nodes,", "the", "same"],
    ]
    assert max(map(len, lines)) <= 100


def test_fp16s_share_of_the_bytes():
    share = lab_functions("share_of_bytes")["share_of_bytes"]
    assert share(results_on(4, one_rank=1)).value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("default", "share", "sentence"),
    [
        (0.9, "50%", "inside"),
        (0.6, "67%", "outside, 25% too low"),
        (1.5, "17%", "outside, 200% too high"),
    ],
)
def test_prediction_errors_follow_from_the_rounds(default, share, sentence, capsys):
    lab_functions("show_prediction")["show_prediction"](speeds_of(side_by_side=1.8, default=default))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"communication's share of a step: predicted 50%, measured {share} (")
    assert sentence in line


def test_one_round_cannot_judge_a_prediction(capsys):
    lab_functions("show_prediction")["show_prediction"]({"side by side": [2.0], "default": [0.5]})
    assert capsys.readouterr().out.splitlines() == [
        "communication's share of a step: predicted 50%, measured 75%: no interval, 33% too low"
    ]


def test_without_a_network_the_table_says_why():
    rows = lab_functions("wire_rows", machine=SimpleNamespace(usable_cores=2))["wire_rows"]
    assert rows({}, None, "no room") == [("weak, on wires", "", "not here: no room", "")]
    ((name, _, reached, limit, others),) = rows(wired(), "watch", "")
    assert name == "weak: this CNN, 2 nodes, 1 Gbit/s, on 2 cores"
    assert str(reached).startswith("45% (")
    assert limit.describe(reached).startswith("90% (")
    assert others == "watch"
