import ast
import itertools
import json
import math
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import lab_cells
import matplotlib.pyplot as plt
import numpy as np
import psutil
import pytest
from labs import ThreeWays

from labkit.data import synthetic
from labkit.display.measured import Measured
from labkit.mpi import run_ranks
from labkit.system import processes, statistics
from labkit.system.errors import LabError
from labkit.system.paths import ROOT
from labkit.testbed import Testbed, obstacle
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


def test_the_training_step_that_students_read_is_the_programs():
    program = ROOT / "labkit" / "train" / "loop.py"
    assert code_of(sources.find("08"), "make_train_step") == code_of(program, "make_train_step")


@pytest.mark.parametrize("warmup", [0, 62.5, 100, 400])
def test_the_rate_that_students_read_is_the_programs(warmup):
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
        ("--a 1", []),
        ("--b 2", ["--b", "2"]),
        ("x --b 2", ["x", "--b", "2"]),
    ],
)
def test_a_submission_shows_what_differs_from_the_last(args, new):
    assert cells("difference")["difference"](args.split(), ["--a", "1", "--b", "2"]) == new


@pytest.mark.parametrize(
    ("side", "exchange", "strong", "of_weak", "of_limit", "between"),
    [
        ([1900, 1915, 1890], [1800, 1810, 1790], [1500, 1510, 1490], "below 100%", "below 100%", "faster"),
        (
            [2000, 2010, 1990],
            [2005, 1990, 2000],
            [2000, 2015, 1995],
            "not significant",
            "not significant",
            "not significant",
        ),
        ([2400, 2410, 2390], [2200, 2210, 2190], [2400, 2410, 2390], "above 100%", "below 100%", "slower"),
        (
            [2000, 2010, 1990],
            [1500, 2600, 1900],
            [1950, 1990, 2100],
            "not significant",
            "not significant",
            "not significant",
        ),
        (
            [1500, 2600, 1900],
            [2000, 2010, 1990],
            [1950, 1990, 2100],
            "not significant",
            "; measure again: ",
            "no",
        ),
        ([1980], [1960], [1800], "98%", "99%", "one round only"),
    ],
)
def test_scaling_is_told_as_far_as_its_rounds_show(side, exchange, strong, of_weak, of_limit, between, capsys):
    one = [1000, 1005, 995][: len(side)]
    speeds = {"alone": one, "side by side": side, "exchange": exchange, "strong scaling": strong}
    cells("shares_of", "in_percent", "tell_scaling")["tell_scaling"](speeds, 2)
    _, weak, _, limit, both = capsys.readouterr().out.splitlines()
    assert weak.startswith("weak scaling")
    assert of_weak in weak
    assert "its limit" in limit
    assert of_limit in limit
    assert both.startswith("weak scaling has ")
    assert between in both


@pytest.mark.parametrize(
    ("top1", "reference", "verdict"),
    [
        (0.946, 0.942, "+0.4 points, no more than the 2.9 of chance"),
        (0.686, 0.946, "-26.0 points, more than the"),
        (0.99, 0.90, "+9.0 points, more than the"),
        (1.0, 1.0, "+0.0 points, no more than the 0.0 of chance"),
    ],
)
def test_two_accuracies_are_told_apart_only_beyond_chance(top1, reference, verdict, capsys):
    cells("tell_accuracy")["tell_accuracy"]("a run", top1, reference, 500)
    assert verdict in capsys.readouterr().out


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (statistics.Ratio(0.96, 0.94, 0.98), "predicts 97%, which is inside the measured 94% to 98%"),
        (statistics.Ratio(0.90, 0.88, 0.92), "predicts 97%, which is outside the measured 88% to 92%"),
        (statistics.Ratio(1.05, 1.0, 1.1), "outside"),
        (statistics.Ratio(0.96), "one round measured 96%, so there is no interval"),
    ],
)
def test_a_prediction_is_held_against_the_interval(found, text, capsys):
    cells("tell_prediction")["tell_prediction"](0.97, found)
    assert text in capsys.readouterr().out


RATES = ("predicted_efficiency", "tell_half_rate", "tell_rate", "half_rate_of", "tell_options", "written", "in_percent")


def fp16_share():
    return cells("fp16_share")["fp16_share"]


@pytest.mark.parametrize(("n", "right"), [(2, 0.5), (4, 2 / 3), (32, 2.5 / 1.9375)])
def test_fp16_by_mpi_halves_the_bytes_on_two_workers_alone(n, right):
    assert fp16_share()(n) == pytest.approx(right)


def rates(nodes=2):
    """Return the functions that judge slow wires; a step of 50 ms sends 300 kB, at half efficiency 48 Mbit/s."""

    def efficiency(n, compute, gradient, latency, bandwidth):
        return compute / (compute + 2 * (n - 1) * (latency + gradient / n / bandwidth))

    options = {"FP16 gradients": (1, 1 / 2), "4 batches a step": (4, 1), "batches 4 times as large": (4, 1)}
    given = {"efficiency": efficiency, "nodes": nodes, "compute": 0.05, "gradient": 300_000, "latency": 0.0}
    constants = {"PAYLOAD": 1.0, "OPTIONS": options, "math": math, "np": np, "statistics": statistics}
    return lab_cells.functions("08", *RATES, **given, **constants, Measured=Measured)


def test_at_the_half_efficiency_rate_half_of_a_step_is_exchange():
    predicted = rates()["predicted_efficiency"]
    assert predicted(48e6) == pytest.approx(1 / 2)
    assert predicted(48e6, 1, 1 / 2) == pytest.approx(2 / 3)
    assert predicted(48e6, 4, 1) == pytest.approx(4 / 5)
    assert predicted(12e6, 4, 1) == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    ("rate", "found", "text"),
    [
        (
            48e6,
            statistics.Ratio(0.50, 0.48, 0.52),
            "efficiency 50% (48 to 52); half of a step is exchange at 48 Mbit/s (44.3 Mbit/s to 52 Mbit/s)",
        ),
        (12e6, statistics.Ratio(0.20, 0.19, 0.21), "wires of 12 Mbit/s: efficiency 20% (19 to 21); half of a step is"),
        (12e6, statistics.Ratio(0.20), "exchange at 48 Mbit/s\n"),
        (1e9, statistics.Ratio(1.02, 0.98, 1.06), "half of a step is exchange at no rate that this shows"),
        (1e9, statistics.Ratio(0.95, 0.85, 1.05), "half of a step is exchange at 52.6 Mbit/s (0 Mbit/s to 176 Mbit/s)"),
    ],
)
def test_an_efficiency_on_any_wires_tells_the_half_efficiency_rate(rate, found, text, capsys):
    rates()["tell_half_rate"](rate, found)
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fp16", "text"),
    [
        ([1333, 1352, 1314], "(1.30 to 1.36) times the images/s of the plain exchange: faster; predicted 1.33, inside"),
        ([1100, 1110, 1090], "times the images/s of the plain exchange: faster; predicted 1.33, outside"),
        ([1005, 1000, 995], "either way; predicted 1.33, outside"),
        ([800, 810, 790], "slower; predicted 1.33, outside"),
        (
            [1333],
            "FP16 gradients: 1.33 times the images/s of the plain exchange: one round only, so there is no interval",
        ),
    ],
)
def test_an_option_is_told_as_far_as_its_rounds_show(fp16, text, capsys):
    others = {
        "side by side": [2000, 2010, 1990],
        "exchange": [1000, 1005, 995],
        "4 batches a step": [1600, 1610, 1590],
        "batches 4 times as large": [1700, 1710, 1690],
    }
    speeds = {name: values[: len(fp16)] for name, values in others.items()} | {"FP16 gradients": fp16}
    rates()["tell_options"](speeds, 48e6)
    out = capsys.readouterr().out
    assert text in next(line for line in out.splitlines() if line.startswith("FP16 gradients"))
    assert len(out.splitlines()) == 3  # the plain exchange and none at all are no options


@pytest.mark.parametrize(
    ("storage", "verdict", "prediction"),
    [
        ([1500, 1510, 1490], ": slower", "predicts 75%, which is inside the measured"),
        ([1950, 2010, 2040], ": not significant", "predicts 75%, which is outside the measured"),
        ([1000, 1005, 995], ": slower", "predicts 75%, which is outside the measured"),
        ([1500], ": one round only, so there is no interval", "one round measured 75%"),
    ],
)
def test_a_storage_is_told_as_far_as_its_rounds_show(storage, verdict, prediction, capsys):
    rounds = len(storage)
    found = {"files 1": [1000, 1005, 995][:rounds], "storage 1": [1001, 1000, 999][:rounds]}
    found |= {"files 2": [2000, 2010, 1990][:rounds], "storage 2": storage}
    functions = lab_cells.functions(
        "08",
        *("tell_storage", "from_storage", "tell_prediction", "predicted_share"),
        **{"math": math, "np": np, "statistics": statistics, "BATCH": 64, "reading": 64 / 1500},
    )
    functions["tell_storage"](found, [1, 2])
    lines = capsys.readouterr().out.splitlines()
    assert "predicts 100%" in lines[1]
    assert lines[2].startswith("2 trained 2,000 images/s from files, ")
    assert verdict in lines[2]
    assert prediction in lines[3]


NO_NETWORK = "the kernel allows no network namespaces. As root: `sysctl -w user.max_net_namespaces=10000`."


def test_without_wires_the_rates_are_predicted_and_nothing_is_measured(capsys):
    def cell(text):
        return next(one.source for one in sources.read(sources.find("08")).cells if text in one.source)

    notebook = rates() | {"no_wires": NO_NETWORK, "QUICK": False, "BATCH": 64, "RATE": 1e9, "STORAGE_TRAINERS": 2}
    notebook |= {"first_round": {("weak", 1): [1000.0]}, "index": SimpleNamespace(length=np.array([2800, 2900]))}
    notebook |= cells("tell_prediction", "fp16_share") | {"efficiency": cells("efficiency")["efficiency"]}
    notebook |= {"math": math, "np": np, "statistics": statistics, "nodes": 2, "gradient": 300_000, "latency": 1e-5}
    shown = []
    notebook |= {
        "plt": plt,
        "results": None,
        "PAYLOAD": 1448 / 1514,
        "MIN_RATE": 1e6,
        "beside": 64 / 1000,
        "STORAGE_ROUNDS": 5,
    }
    notebook["plots"] = SimpleNamespace(BLACK="k", VERMILION="r", show=lambda *_, **options: shown.append(options))
    for text in (
        "def measure_steps",
        "OPTIONS = ",
        "a quick run has the first rate alone",
        "def half_rate_of",
        "np.geomspace(half_rate",
        "def from_storage",
        "storage_rate = ",
        "Training from one shared storage",
    ):
        exec(cell(text), notebook)
    out = capsys.readouterr().out
    assert out.count(f"Not measured: {NO_NETWORK}") == 4
    assert "the half-efficiency rate is predicted at 39 Mbit/s" in out
    assert "so it carries 1,0" in out
    assert "4 batches a step: 1.6" in out
    assert "Measured: nothing" in shown[0]["alt"]
    assert "Measured: nothing" in shown[1]["alt"]


# The storage

SERVED = """
import json, os, signal, sys, time
from mpi4py import MPI
import served
ranks, address, folder, end = MPI.COMM_WORLD, *sys.argv[1:]
servers = served.serve(address) if ranks.rank == 0 else None
ranks.Barrier()
got = []
if ranks.rank:
    for batch in served.read_from(address, served.read(folder, 3, epochs=1 if end == "whole" else None), "epoch"):
        got += [record.hex() for record in batch.numpy()]
elif end == "killed":
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
request = ranks.Ibarrier()
while not request.Test():
    time.sleep(0.01)
print("GOT", json.dumps(got))
"""


@pytest.fixture
def storage(tmp_path):
    """Run the lab's storage with two trainers on wires until `end`; return what the trainers got."""
    if why := obstacle():
        pytest.skip(why)
    served = next(c.source for c in sources.read(sources.find("08")).cells if "writefile work/served.py" in c.source)
    (tmp_path / "served.py").write_text(served.partition("\n")[2])
    (tmp_path / "script.py").write_text(SERVED)
    synthetic.write(tmp_path / "images", train=50, validation=4, size=32)

    def run(end):
        with Testbed(3, "100 Mbit/s") as wires:
            address = wires.nodes[0].address
            done = run_ranks(
                3, "script.py", address, "images", end, cwd=tmp_path, network=wires, show=False, timeout=120
            )
        return [json.loads(line[4:]) for lines in done.lines for line in lines if line.startswith("GOT")]

    return run


@pytest.mark.slow
def test_the_storage_serves_each_record_once_an_epoch_and_whole(storage, tmp_path):
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
    own = psutil.Process()
    assert not processes.find(lambda one: "script.py" in " ".join(one.cmdline()) and own in one.parents())
