import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from labkit.system.errors import LabError
from labkit.train import checkpoints

SETTINGS = {"model": "resnet8", "seed": 0}


def state(value, n=1000):
    return tf.train.Checkpoint(weights=[tf.Variable(tf.fill((n,), float(value))), tf.Variable(float(value))])


def values(state):
    return {float(x) for w in state.weights for x in np.unique(w.numpy())}


def restore(folder, state, settings=SETTINGS):
    seen = []
    step, skipped = checkpoints.restore(folder, state, seen.append)
    assert seen[-1:] == [settings] * (step > 0)
    return step, skipped


def save_three(folder):
    for step in (10, 20, 30):
        checkpoints.save(folder, state(step), step, SETTINGS)


def test_the_newest_checkpoint_is_restored_with_its_settings(tmp_path):
    save_three(tmp_path)
    restored = state(0)
    assert restore(tmp_path, restored) == (30, ())
    assert values(restored) == {30.0}


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_save_leaves_nothing_behind(tmp_path, monkeypatch, stop):
    checkpoints.save(tmp_path, state(10), 10, SETTINGS)

    def fsync(descriptor):
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises((KeyboardInterrupt, LabError)):
            checkpoints.save(tmp_path, state(20), 20, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


@pytest.mark.parametrize("name", ["run[1]", "a?b*", "back\\slash", "{x} #1%20", "it's"])
def test_a_folder_may_have_any_name(tmp_path, name):
    checkpoints.save(tmp_path / name, state(10), 10, SETTINGS)
    restored = state(0)
    assert restore(tmp_path / name, restored)[0] == 10
    assert values(restored) == {10.0}


def test_an_empty_or_missing_folder_has_no_checkpoint(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert restore(folder, state(0)) == (0, ())


def test_only_the_last_two_checkpoints_remain(tmp_path):
    save_three(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020", "step-00000030"]


@pytest.mark.parametrize("file", ["state.index", "state.data-00000-of-00001", "contents.json"])
@pytest.mark.parametrize("damage", ["truncated", "removed", "altered", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path, file, damage):
    save_three(tmp_path)
    path = tmp_path / "step-00000030" / file
    data = path.read_bytes()
    middle = len(data) // 2
    if damage == "removed":
        path.unlink()
    else:
        altered = data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]
        path.write_bytes({"truncated": data[:middle], "altered": altered, "empty": b""}[damage])
    restored = state(0)
    step, skipped = restore(tmp_path, restored)
    assert step == 20
    assert values(restored) == {20.0}
    assert skipped[0].startswith("step-00000030 (")
    assert "\n" not in skipped[0]


@pytest.mark.parametrize("contents", ["[]", "null", '{"settings": 1}', '{"setting": {}}', "[" * 200_000])
def test_malformed_contents_fall_back_to_the_previous_checkpoint(tmp_path, contents):
    save_three(tmp_path)
    (tmp_path / "step-00000030" / "contents.json").write_text(contents)
    (tmp_path / "step-of-somebody").mkdir()
    assert restore(tmp_path, state(0))[0] == 20


def test_a_damaged_checkpoint_is_overwritten(tmp_path):
    save_three(tmp_path)
    (tmp_path / "step-00000030" / "state.index").unlink()
    checkpoints.save(tmp_path, state(31), 30, SETTINGS)
    restored = state(0)
    assert restore(tmp_path, restored)[0] == 30
    assert values(restored) == {31.0}


def test_if_all_checkpoints_are_damaged_the_run_does_not_start_over(tmp_path):
    save_three(tmp_path)
    for path in tmp_path.glob("*/state.index"):
        path.write_bytes(b"")
    with pytest.raises(LabError, match=r"all checkpoints in .* are damaged.* move that folder away") as error:
        restore(tmp_path, state(0))
    assert "\n" not in str(error.value)


def test_leftovers_of_a_killed_save_are_ignored_and_removed_by_the_next(tmp_path):
    save_three(tmp_path)
    leftover = tmp_path / ".step-00000040.part"
    leftover.mkdir()
    (leftover / "state.index").write_bytes(b"half")
    assert restore(tmp_path, state(0))[0] == 30
    checkpoints.save(tmp_path, state(50), 50, SETTINGS)
    assert not leftover.exists()


def _save_forever(folder, began):
    for step in range(1, 10_000):
        checkpoints.save(folder, state(step, n=300_000), step, SETTINGS)
        began.set()


def test_killed_at_any_moment_the_folder_has_an_intact_checkpoint(tmp_path):
    context = multiprocessing.get_context("spawn")
    restored = state(0, n=300_000)
    for delay in (0.0, 0.0019, 0.0043):
        began = context.Event()
        process = context.Process(target=_save_forever, args=(tmp_path, began))
        process.start()
        assert began.wait(120)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        step, skipped = restore(tmp_path, restored)
        assert step > 0
        assert skipped == ()
        assert values(restored) == {float(step)}
