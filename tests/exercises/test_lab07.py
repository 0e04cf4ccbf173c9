import json
from pathlib import Path

import lab_cells
import numpy as np
import pytest
from labs import ThreeWays

from labkit.measure import recorded
from labkit.mpi import torch_ranks
from labkit.mpi.launch import run_ranks
from labkit.system.paths import DATA

pytestmark = pytest.mark.timeout(900)

TESTS = "weights_agree", "loss_falls", "gradient_norms_agree", "same_step"
PASSED = {  # the tests that a script passes, by its fault
    "no sharding": (True, True, True, False),
    "sum": (True, True, True, False),
    "metrics of one rank": (True, True, True, False),
    "no broadcast": (False, True, True, False),
    "no averaging": (False, True, False, False),
    "none": (True, True, True, True),
}
FAULTS = {
    "horovod": ("no sharding", "sum", "none", "no broadcast", "no averaging", "metrics of one rank"),
    "ddp": ("metrics of one rank", "no averaging", "no broadcast", "sum", "no sharding", "none"),
}


class TestExercises(ThreeWays):
    lab = "07"
    on_ranks = frozenset({4, 5})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with the lab's scripts, and the kit's answers."""
    monkeypatch.chdir(tmp_path)
    Path("work/checked").mkdir(parents=True)
    lab_cells.write_files("07")
    Path("work/checked/plan.py").write_text(Path("work/plan.py").read_text())
    return tmp_path


def expected(kind):
    return {name: dict(zip(TESTS, PASSED[of], strict=True)) for name, of in zip("abcdef", FAULTS[kind], strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "one_process"), [("horovod", "serial"), ("ddp", "serial_torch")])
def test_the_five_fakes_are_convicted_and_the_right_script_is_acquitted(kind, one_process, folder):
    if kind == "ddp" and torch_ranks.obstacle():
        pytest.skip("NO PYTORCH HERE")
    env = torch_ranks.variables() if kind == "ddp" else None
    arguments = (DATA / "line-up" / kind, one_process, "work/same_step.py", "abcdef")
    run_ranks(2, "work/line_up.py", *arguments, threads=1, env=env, show=False)
    assert json.loads(Path("work/verdicts.json").read_text()) == expected(kind)


def test_the_recorded_verdicts_are_those_of_the_scripts():
    assert recorded("07-ddp").data["verdicts"] == expected("ddp")


@pytest.mark.slow
def test_the_serial_script_trains(folder):
    (lines,) = run_ranks(1, "work/serial.py", 2, show=False).lines
    assert [line.partition(":")[0] for line in lines if line.startswith("epoch")] == ["epoch 1", "epoch 2"]


@pytest.mark.slow
def test_a_launch_measures_each_variant(folder):
    run_ranks(2, "work/speed.py", 2, 16, threads=1, show=False)
    speeds = json.loads(Path("work/speeds.json").read_text())
    assert [*speeds] == ["one rank", "side by side", "Horovod"]
    assert min(speeds.values()) > 0


@pytest.mark.slow
def test_a_rank_with_an_extra_batch_hangs_and_horovod_reports_it(folder):
    """Section 9's run ends because of the variables; without them, it would hang forever."""
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": 1, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 2}
    run = run_ranks(2, "work/uneven.py", threads=1, env=env, timeout=300, show=False)
    lines = {line.replace("!", "") for line in run.lines[0]}  # the mark of a stalled rank
    assert {"Missing ranks:", "Horovod has shut down."} <= lines
    assert {"0: [accuracy]", "1: [gradient]"} & lines  # sometimes only the first stalled rank is reported
    assert "end of the epoch" not in run.lines[0] + run.lines[1]


def test_a_timeline_is_read(tmp_path):
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
    for start in (0, 20_000):
        events += [*step(7, start + 500, start + 5000), *step(3, start, start + 5000), *step(9, start, start + 1)]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events))
    small, large = lab_cells.functions("07", "read_timeline", json=json, np=np)["read_timeline"](path)
    assert (small["bytes"], large["bytes"]) == (24, 56)
    assert small["steps"][0] == [
        ("NEGOTIATE_ALLREDUCE", 0.0, 1.0),
        ("MPI_ALLREDUCE", 1.0, 5.0),
        ("ALLREDUCE", 1.0, 5.0),
    ]
    assert len(large["steps"]) == 2
