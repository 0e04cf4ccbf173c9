import json
import math
import re
import sys

import pytest

from labkit.bench import timing
from labkit.mpi.launch import run_ranks
from labkit.system import processes

SMALL = ("--model=mnist", "--batch_size=4", "--num_batches=6", "--display_every=3")


def bench(*flags, env=None):
    return processes.run([sys.executable, "-m", "labkit.bench", *SMALL, *flags], env=env, timeout=120)


def test_the_statistics_are_those_of_tf_cnn_benchmarks():
    speed = timing.speed(8, [1.0, 2.0, 4.0, 8.0])  # 8, 4, 2, 1 images/s: median 3, deviations 5, 1, 1, 2
    assert speed.mean == pytest.approx(8 / 3.75)  # by the mean time, not the mean speed
    assert speed.uncertainty == pytest.approx(math.sqrt(((8 - 3.75) ** 2 + 0.25**2 + 1.75**2 + 2.75**2) / 4) / 2)
    assert speed.jitter == pytest.approx(1.4826 * 1.5)
    assert str(speed) == "images/sec: 2.1 +/- 1.3 (jitter = 2.2)"


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Run with all output files; return their folder and the completed process."""
    folder = tmp_path_factory.mktemp("bench")
    env = {"LABKIT_SYNTHETIC": 1, "TF_ENABLE_ONEDNN_OPTS": 1}
    done = bench(f"--json={folder}/out.json", "--data_format=NCHW", env=env)
    assert not done.failure, done.lines
    return folder, done


def test_the_output_has_the_format_that_scripts_parse(training):
    lines = training[1].lines
    start = lines.index("==========")
    header = dict(
        re.match(r"(\w[\w ]+): +(.*)", line).groups() for line in lines[:start] if re.match(r"\w[\w ]+: ", line)
    )
    assert header["Model"] == "mnist"
    assert header["Dataset"] == "mnist (synthetic)"
    assert header["Batch size"] == "4 global"
    assert list(lines[start + 1 : start + 4]) == ["Generating training model", "Initializing graph", "Running warm up"]
    done = lines.index("Done warm up")
    assert lines[done + 1] == "Step\tImg/sec\ttotal_loss"
    row = re.compile(r"(\d+)\timages/sec: [\d.]+ \+/- [\d.]+ \(jitter = [\d.]+\)\t\d+\.\d{3}$")
    steps = [row.match(line) for line in lines[done + 2 : done + 5]]
    assert [int(step[1]) for step in steps] == [1, 3, 6]
    assert lines[done + 5] == lines[done + 7] == "-" * 64
    assert re.match(r"total images/sec: \d+\.\d\d$", lines[done + 6])


def test_the_json_has_every_step_and_its_conditions(training):
    folder, done = training
    result = json.loads((folder / "out.json").read_text())
    assert len(result["seconds"]) == len(result["losses"]) == 6
    assert result["images_per_second"] == pytest.approx(4 * 6 / sum(result["seconds"]))
    assert f"total images/sec: {result['images_per_second']:.2f}" in done.lines
    assert result["losses"][-1] < result["losses"][0]
    assert result["gflops"] == pytest.approx(result["gflop_per_image"] * result["images_per_second"])
    assert result["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert "LABKIT_SYNTHETIC" not in result["environment"]
    assert result["settings"]["batch_size"] == 4
    assert result["machine"]["usable_cores"] >= 1
    assert result["versions"]["tensorflow"].startswith("2.")
    assert any(line.startswith("⚠ Meanwhile, ") for line in done.lines) == result["others"]["busy"]


def test_classifying_costs_a_third_of_the_operations_and_changes_no_weights(tmp_path):
    done = bench("--forward_only", "--use_fp16", f"--json={tmp_path}/out.json")
    assert not done.failure, done.lines
    assert any(line.startswith("Precision:   bfloat16, the 16-bit type of CPUs") for line in done.lines)
    result = json.loads((tmp_path / "out.json").read_text())
    assert len(set(result["losses"])) == 1
    assert result["gflop_per_image"] == pytest.approx(0.0085, rel=0.05)


def test_a_tensorflow_failure_is_one_line_and_exit_code_2():
    done = bench("--data_format=NCHW", env={"TF_ENABLE_ONEDNN_OPTS": 0})
    assert done.status == 2
    assert done.lines[-1].startswith("lab: TensorFlow cannot run this: ")
    assert "only supports NHWC" in done.lines[-1]
    assert done.lines[-1].endswith("NCHW needs oneDNN: use --data_format=NHWC, or --mkl.")


RANKS = """
import contextlib, runpy
with contextlib.suppress(SystemExit):
    runpy.run_module("labkit.bench", run_name="__main__")
import horovod.tensorflow as hvd, tensorflow as tf
from labkit.bench import steps
from labkit.data.synthetic_batch import synthetic_batches
from labkit.models.networks import Network
hvd.init()
network = Network("mnist")
step = tf.function(steps.make_train_step(network, "sgd", 0.01, 0, hvd))
batches = synthetic_batches(network.model, 4, rank=hvd.rank())
losses = [float(step(*next(batches))) for _ in range(3)]
print("VALUES", losses[0], *(float(tf.reduce_sum(w * w)) for w in network.weights))
"""


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    """Return the folder and the run of a script on two ranks that runs the benchmark first."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "ranks.py").write_text(RANKS)
    flags = [*SMALL, "--variable_update=horovod", "--num_intra_threads=1", "--json=out.json"]
    return folder, run_ranks(2, "ranks.py", *flags, cwd=folder, threads=1, show=False)


def test_horovod_ranks_see_different_images_and_keep_the_same_weights(on_ranks):
    _, run = on_ranks
    values = [next(line.split()[1:] for line in lines if line.startswith("VALUES")) for lines in run.lines]
    assert values[0][0] != values[1][0]
    assert values[0][1:] == values[1][1:]
    assert len(values[0]) == 9


def test_horovod_reports_once_for_all_ranks(on_ranks):
    folder, run = on_ranks
    lines = run.lines[0] + run.lines[1]
    assert "Batch size:  8 global" in lines
    assert sum(line.startswith("total images/sec") for line in lines) == 1
    result = json.loads((folder / "out.json").read_text())
    assert result["ranks"] == 2
    assert result["images_per_second"] == pytest.approx(8 * 6 / sum(result["seconds"]))
