import numpy as np
import pytest
import tensorflow as tf
from tfrecord_sets import example, together

from labkit.bench import images
from labkit.models.registry import MODELS
from labkit.system.errors import LabError

MODEL = MODELS["mnist"]._replace(classes=40)


def write(folder, kind="train", shards=4, in_each=5, bad=None):
    """Images of one grey each, label = 10 × shard + number, which the grey tells; record 3 of shard 2 can be `bad`."""
    for shard in range(shards):
        with tf.io.TFRecordWriter(str(folder / f"{kind}-{shard:05}-of-{shards:05}")) as writer:
            for number in range(in_each):
                label = 10 * shard + number
                jpeg = tf.io.encode_jpeg(tf.fill((40, 50, 3), np.uint8(5 * label)), quality=100).numpy()
                writer.write(example(jpeg, label) if bad is None or (shard, number) != (2, 3) else bad)


def take(n, folder, **options):
    batches = images.from_tfrecords(
        folder, MODEL, 5, options.pop("data_format", "NHWC"), options.pop("training", True), **options
    )
    return [next(batches) for _ in range(n)]


def test_images_and_labels_stay_together_in_the_models_shape(tmp_path):
    write(tmp_path)
    for x, labels in take(4, tmp_path):
        assert x.shape == (5, 28, 28, 1)
        greys = (x.numpy().mean((1, 2, 3)) + 1) * 127.5
        np.testing.assert_allclose(greys, 5 * labels.numpy(), atol=2)


def test_each_image_comes_once_an_epoch(tmp_path):
    write(tmp_path)
    labels = np.concatenate([labels for _, labels in take(4, tmp_path)])
    assert sorted(labels) == sorted(10 * shard + number for shard in range(4) for number in range(5))


def test_ranks_share_the_images_whatever_the_number_of_files(tmp_path):
    write(tmp_path, shards=1, in_each=20)

    def labels_of(rank, allgather):
        return {int(n) for _, labels in take(2, tmp_path, rank=rank, ranks=2, allgather=allgather) for n in labels}

    first, second = together(2, labels_of)
    assert not first & second
    assert len(first | second) == 20


def test_classifying_reads_the_validation_set_and_nchw_is_transposed(tmp_path):
    write(tmp_path, "validation", shards=1)
    ((x, _),) = take(1, tmp_path, training=False, data_format="NCHW")
    assert x.shape == (5, 1, 28, 28)


def test_a_folder_without_the_set_is_reported(tmp_path):
    write(tmp_path, shards=1)
    with pytest.raises(LabError, match="no file named like validation-00000-of-"):
        take(1, tmp_path, training=False)


GREY = tf.io.encode_jpeg(np.full((40, 50, 3), 90, np.uint8)).numpy()
BAD = {
    "no example": (b"\xff\xfe is none" * 9, "has no image/encoded or no image/class/label"),
    "half a JPEG": (example(GREY[: len(GREY) // 2], 1), "has no JPEG, or a part of one"),
    "a label below": (example(GREY, -5), "has label -5, and the network tells 0 to 39 apart"),
    "a label above": (example(GREY, 40), "has label 40, and the network tells 0 to 39 apart"),
    "a label that wraps": (example(GREY, 2**40 + 3), f"has label {2**40 + 3}, and the network"),
}


@pytest.mark.parametrize(("bad", "told"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("training", [True, False])
def test_a_bad_record_is_named(tmp_path, bad, told, training):
    write(tmp_path, "train" if training else "validation", bad=bad)
    with pytest.raises(LabError, match=f"00002-of-00004, record 3 {told}") as raised:
        take(5, tmp_path, training=training)
    assert "\n" not in str(raised.value)
    assert "{{" not in str(raised.value)


@pytest.mark.parametrize("damage", ["a byte altered", "cut"])
def test_a_damaged_file_is_named_with_its_record(tmp_path, damage):
    write(tmp_path)
    path = tmp_path / "train-00002-of-00004"
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[:-3])
    else:
        data[-10] ^= 1
        path.write_bytes(data)
    told = {"a byte altered": "record 4 does not match its checksum", "cut": "not whole: record 4 would end after it"}
    with pytest.raises(LabError, match=f"train-00002-of-00004.*{told[damage]}") as raised:
        take(5, tmp_path)
    assert "{{" not in str(raised.value)


def test_files_without_a_record_are_reported(tmp_path):
    write(tmp_path, in_each=0)
    with pytest.raises(LabError, match=r"no train file in .* has a record"):
        take(1, tmp_path)
