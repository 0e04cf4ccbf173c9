import itertools
import json
import math
from pathlib import Path

import lab_cells
import launches
import numpy as np
import pytest
from labs import ThreeWays

from labkit.exercises import lab07
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
