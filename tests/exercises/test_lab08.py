import ast
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import lab_cells
import numpy as np
import psutil
import pytest
from labs import ThreeWays

from labkit.data import synthetic
from labkit.display.consistency import Prediction, score
from labkit.display.measured import Measured
from labkit.mpi import run_ranks
from labkit.system import processes, statistics
from labkit.system.errors import LabError
from labkit.system.paths import ROOT
from labkit.testbed import Testbed, obstacle
from labkit.testbed.units import show_rate
from labkit.train import schedule
from labkit_author import sources


class TestExercises(ThreeWays):
    lab = "08"
    names = {"np": np, "math": math, "statistics": statistics, "Fraction": Fraction}


def code_of(path: Path, name: str) -> str:
    """Return a function's code without annotations and comments."""
    function = next(node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == name)
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(function)


def test_the_training_step_in_the_lab_is_the_programs():
    program = ROOT / "labkit" / "train" / "loop.py"
    assert code_of(sources.find("08"), "make_train_step") == code_of(program, "make_train_step")


@pytest.mark.parametrize("warmup", [0, 62.5, 100, 400])
def test_the_learning_rate_in_the_lab_is_the_programs(warmup):
    rate = lab_cells.functions("08", "learning_rate", math=math)["learning_rate"]
    for step in range(200):
        right = schedule.learning_rate(step, 200, warmup, schedule.peak_rate(0.8, 64), cosine=True)
        assert rate(step, 200, warmup, 64, 0.8) == pytest.approx(right, abs=1e-12)


def cells(*names):
    """Return functions of the lab's cells that judge a measurement."""
    return lab_cells.functions("08", *names, math=math, np=np, statistics=statistics, Measured=Measured)


@pytest.mark.parametrize(
    ("args", "new"),
    [
        ("--a 1 --b 2", []),
        ("--a 1 --b 3", ["--b", "3"]),
        ("--a 1 --b 2 --c", ["--c"]),
        ("--b 2", ["--b", "2"]),
        ("x --b 2", ["x", "--b", "2"]),
    ],
)
def test_a_submission_shows_the_changed_arguments(args, new):
    assert cells("difference")["difference"](args.split(), ["--a", "1", "--b", "2"]) == new


def test_shares_are_of_n_nodes_and_omit_runs_without_training():
    speeds = {"alone": [1000, 1010], "side by side": [2000, 2020], "exchange": [1800, 1818], "gradients alone": [9, 9]}
    shares = cells("shares_of")["shares_of"](speeds, 2)
    assert {name: round(share.value, 6) for name, share in shares.items()} == {"side by side": 1.0, "exchange": 0.9}


@pytest.mark.parametrize(("n", "right"), [(2, 0.5), (4, 2 / 3), (32, 2.5 / 1.9375)])
def test_fp16_via_mpi_halves_the_bytes_on_two_workers_only(n, right):
    assert cells("fp16_share")["fp16_share"](n) == pytest.approx(right)


MODEL = ("step_seconds", "efficiency")


def model(*names):
    """Return functions of the lab's model; `efficiency` finds the others as the notebook does."""
    return lab_cells.functions("08", *MODEL, *names, math=math)


@pytest.mark.parametrize(
    ("cluster", "right"),
    [
        ({"compute": 0.1, "gradient": 1e8, "latency": 0.0, "bandwidth": 1e9}, 0.1 / 0.25),  # 2 · 3/4 of the gradient
        ({"compute": 0.1, "gradient": 1e8, "latency": 0.0, "bandwidth": 1e9, "hidden": 0.5}, 0.1 / 0.2),
        ({"compute": 0.1, "gradient": 0, "latency": 1e-3, "bandwidth": 1e9}, 0.1 / 0.106),  # 6 messages
        ({"compute": 0.1, "gradient": 0, "latency": 0.0, "bandwidth": 1e9, "reading": 0.05}, 0.1 / 0.2),
        ({"compute": 0.1, "gradient": 0, "latency": 0.0, "bandwidth": 1e9, "reading": 0.02}, 1.0),
    ],
)
def test_the_step_model_has_a_partly_hidden_ring_and_a_shared_storage(cluster, right):
    assert model()["efficiency"](4, **cluster) == pytest.approx(right)


RATES = ("predicted_efficiency", "predicted_gain", "half_rate_of", "hidden_share", "report_rates", "in_percent")


def rates(nodes=2):
    """Return the functions that judge slow wires; a step of 50 ms sends 300 kB, at half efficiency 48 Mbit/s."""
    options = {"FP16 gradients": (1, 1 / 2), "4 batches per step": (4, 1)}
    variables = {
        "nodes": nodes,
        "compute": 0.05,
        "gradient": 300_000,
        "latency": 0.0,
        "PAYLOAD": 1.0,
        "OPTIONS": options,
    }
    variables |= {"math": math, "np": np, "statistics": statistics, "Measured": Measured, "show_rate": show_rate}
    return lab_cells.functions("08", *MODEL, *RATES, **variables, Prediction=Prediction, score=score)


def test_at_the_half_efficiency_rate_half_of_a_step_is_exchange():
    predicted = rates()["predicted_efficiency"]
    assert predicted(48e6) == pytest.approx(1 / 2)
    assert predicted(48e6, 1, 1 / 2) == pytest.approx(2 / 3)
    assert predicted(48e6, 4, 1) == pytest.approx(4 / 5)
    assert predicted(12e6, 4, 1) == pytest.approx(1 / 2)


def test_the_hidden_share_follows_from_an_efficiency_and_raises_the_gain_of_fp16():
    functions = rates()
    hidden = functions["hidden_share"](48e6, statistics.Ratio(1 / 1.8))  # 0.8 of 1.0 are exposed
    assert hidden == pytest.approx(0.2)
    assert functions["hidden_share"](48e6, statistics.Ratio(0.4)) == 0.0  # slower than predicted: nothing is hidden
    assert functions["predicted_efficiency"](48e6, hidden=hidden) == pytest.approx(1 / 1.8)
    gain = functions["predicted_gain"]
    assert gain(48e6, "FP16 gradients") == pytest.approx(4 / 3)
    assert gain(48e6, "FP16 gradients", hidden) == pytest.approx(1.8 / 1.3)
    assert gain(48e6, "4 batches per step", hidden) == pytest.approx(4 * 1.8 / 4.8)  # the last batch hides as much


@pytest.mark.parametrize(
    ("rate", "measured", "right"),
    [
        (48e6, statistics.Ratio(0.50, 0.48, 0.52), (48e6, 44.3e6, 52e6)),
        (12e6, statistics.Ratio(0.20, 0.19, 0.21), (48e6, 45.1e6, 51.2e6)),
        (1e9, statistics.Ratio(1.02, 0.98, 1.06), (0.0, 0.0, 20.4e6)),
    ],
)
def test_an_efficiency_on_any_wires_gives_the_half_efficiency_rate(rate, measured, right):
    assert rates()["half_rate_of"](rate, measured) == pytest.approx(right, rel=0.01)


# The storage

SERVED = """
import json, os, signal, sys, time
from mpi4py import MPI
import served
ranks, address, folder, end = MPI.COMM_WORLD, *sys.argv[1:]
servers = served.serve(address) if ranks.rank == 0 else None
ranks.Barrier()
received = []
if ranks.rank:
    for batch in served.read_from(address, served.read(folder, 3, epochs=1 if end == "whole" else None), "epoch"):
        received += [record.hex() for record in batch.numpy()]
elif end == "killed":
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
request = ranks.Ibarrier()
while not request.Test():
    time.sleep(0.01)
print("GOT", json.dumps(received))
"""


@pytest.fixture
def storage(tmp_path):
    """Run the lab's storage with two trainers on wires until `end`; return the records that they received."""
    if reason := obstacle():
        pytest.skip(reason)
    served = next(c.source for c in sources.read(sources.find("08")).cells if "writefile work/served.py" in c.source)
    (tmp_path / "served.py").write_text(served.partition("\n")[2])
    (tmp_path / "script.py").write_text(SERVED)
    synthetic.write(tmp_path / "images", train=50, validation=4, size=32)

    def serve(end):
        with Testbed(3, "100 Mbit/s") as wires:
            address = wires.nodes[0].address
            run = run_ranks(
                3, "script.py", address, "images", end, cwd=tmp_path, network=wires, show=False, timeout=120
            )
        return [json.loads(line[4:]) for lines in run.lines for line in lines if line.startswith("GOT")]

    return serve


@pytest.mark.slow
def test_the_storage_serves_each_whole_record_once_per_epoch(storage, tmp_path):
    import tensorflow as tf  # which takes seconds

    files = [str(path) for path in sorted((tmp_path / "images").glob("train-*"))]
    right = sorted(record.numpy().hex() for record in tf.data.TFRecordDataset(files))
    of_server, *of_trainers = storage("whole")
    assert not of_server
    assert sorted(itertools.chain(*of_trainers)) == right


@pytest.mark.slow
def test_a_storage_that_dies_ends_the_trainers_with_one_error(storage):
    with pytest.raises(LabError, match="Rank 0 was killed by SIGKILL"):
        storage("killed")
    this = psutil.Process()
    assert not processes.find(lambda process: "script.py" in " ".join(process.cmdline()) and this in process.parents())
