import json
import re
import sys

import pytest

from labkit.system import processes

SMALL = ("--model=mnist", "--batch_size=4", "--num_batches=10")


def bench(*flags, env=None):
    return processes.run([sys.executable, "-m", "labkit.bench", *SMALL, *flags], env=env, timeout=120)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Run with all output files; return their folder and the completed process."""
    folder = tmp_path_factory.mktemp("bench")
    env = {"LABKIT_SYNTHETIC": 1, "TF_ENABLE_ONEDNN_OPTS": 1}
    done = bench(f"--json={folder}/out.json", env=env)
    assert not done.failure, done.lines
    return folder, done


def test_a_run_prints_its_configuration_and_its_speed(training):
    lines = training[1].lines
    assert "Model:       mnist" in lines
    start = lines.index("Warming up")
    assert re.match(r"step 10: [\d.]+ images/s, loss \d+\.\d{3}$", lines[start + 1])
    assert re.match(r"total images/sec: \d+\.\d\d$", lines[start + 2])


def test_the_json_has_every_step_and_its_conditions(training):
    folder, done = training
    result = json.loads((folder / "out.json").read_text())
    assert len(result["seconds"]) == len(result["losses"]) == 10
    assert result["images_per_second"] == pytest.approx(4 * 10 / sum(result["seconds"]))
    assert f"total images/sec: {result['images_per_second']:.2f}" in done.lines
    assert result["losses"][-1] < result["losses"][0]
    assert result["environment"]["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert "LABKIT_SYNTHETIC" not in result["environment"]
    assert result["settings"]["batch_size"] == 4
    assert result["machine"]["usable_cores"] >= 1
    assert result["versions"]["tensorflow"].startswith("2.")
    assert any(line.startswith("⚠ Meanwhile, ") for line in done.lines) == result["others"]["busy"]


def test_16_bits_are_named_and_reduce_the_loss(tmp_path):
    done = bench("--use_fp16", f"--json={tmp_path}/out.json")
    assert not done.failure, done.lines
    assert any(line.startswith("Precision:   bfloat16, the 16-bit type of CPUs") for line in done.lines)
    losses = json.loads((tmp_path / "out.json").read_text())["losses"]
    assert losses[-1] < losses[0]


FAILING = """
import tensorflow as tf
from labkit.bench import __main__, run
from labkit.system import flags

def fail(config):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating a tensor")

run._measure = fail
flags.run(__main__.measure, __main__.BenchConfig, "labkit.bench")
"""


def test_a_tensorflow_failure_is_one_line_and_exit_code_2():
    done = processes.run([sys.executable, "-c", FAILING, *SMALL], timeout=120)
    assert done.status == 2
    assert done.lines[-1].startswith("lab: TensorFlow cannot run this: OOM when allocating a tensor")
    assert done.lines[-1].endswith("Reduce --batch_size.")
