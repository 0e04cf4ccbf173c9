import json
import resource

import numpy as np
import pytest
import tensorflow as tf

from labkit.bench import timed_steps


@tf.function
def sums(images, labels):
    return tf.reduce_sum(images @ tf.transpose(images)) + labels[0]


@tf.function
def outputs(images, labels):
    return images @ tf.transpose(images)


BATCHES = [(tf.fill((4, 3), float(value)), tf.constant([0.0])) for value in (1, 2)]


def run(tmp_path, *flags):
    out = tmp_path / "out.json"
    timed_steps.main({"inference": outputs, "training": sums}, BATCHES, [*flags, f"--out={out}"])
    return json.loads(out.read_text())


def test_each_step_cycles_through_the_batches_and_is_timed(tmp_path, capsys):
    result = run(tmp_path, "--steps=3")
    assert result["training"]["losses"] == [48, 192, 48]
    assert set(result["inference"]) == {"images/s", "seconds"}
    for name in ("inference", "training"):
        seconds = sorted(result[name]["seconds"])
        assert len(seconds) == 3
        assert result[name]["images/s"] == pytest.approx(4 / seconds[1])
    assert "training, warm" in capsys.readouterr().out.splitlines()


def test_a_single_step_can_be_measured_and_profiled(tmp_path):
    result = run(tmp_path, "--steps=1", "--only=training", "--profiled=2")
    assert set(result) == {"training", "profile"}
    operations, seconds = result["profile"]["operations"], result["profile"]["seconds"]
    assert any("MatMul" in op_type for op_type in operations)
    assert all(ms > 0 for ms in operations.values())
    assert len(seconds) == len(result["profile"]["plain_seconds"]) == 2
    assert sum(operations.values()) < 2 * 1000 * max(seconds)  # the warm-up session is not counted


def test_profiled_steps_reuse_freed_memory_without_new_pages(tmp_path):
    run(tmp_path, "--steps=1", "--only=training", "--profiled=2")
    np.ones(2**22)  # 32 MB, which malloc now keeps after they are freed
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        np.ones(2**22)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 1000  # of 3 × 8,192 pages
