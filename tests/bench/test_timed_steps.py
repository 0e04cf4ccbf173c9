import json

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


def test_each_step_takes_the_batches_in_turns_and_is_timed(tmp_path, capsys):
    result = run(tmp_path, "--steps=3")
    assert result["training"]["losses"] == [48, 192, 48]
    assert set(result["inference"]) == {"images/s", "seconds"}
    for name in ("inference", "training"):
        seconds = sorted(result[name]["seconds"])
        assert len(seconds) == 3
        assert result[name]["images/s"] == pytest.approx(4 / seconds[1])
    assert "training, warm" in capsys.readouterr().out.splitlines()


def test_one_of_them_can_be_measured_alone_and_profiled(tmp_path):
    result = run(tmp_path, "--steps=1", "--only=training", "--profiled=2")
    assert set(result) == {"training", "operations"}
    assert any("MatMul" in kind for kind in result["operations"])
    assert all(ms > 0 for ms in result["operations"].values())
