import numpy as np
import pytest
import tensorflow as tf

from labkit.bench import images
from labkit.bench.networks import MODELS
from labkit.errors import LabError

MODEL = MODELS["mnist"]


def write(folder, kind="train", shards=4, in_each=5):
    """Images of one grey each, label = 10 × shard + number; the grey tells the label."""
    for shard in range(shards):
        with tf.io.TFRecordWriter(str(folder / f"{kind}-{shard:05}-of-{shards:05}")) as writer:
            for number in range(in_each):
                label = 10 * shard + number
                jpeg = tf.io.encode_jpeg(tf.fill((40, 50, 3), np.uint8(5 * label)), quality=100).numpy()
                feature = {
                    "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                }
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def take(n, folder, **options):
    batches = images.tfrecords(
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


def test_ranks_share_the_files(tmp_path):
    write(tmp_path)
    seen = [{int(n) for _, labels in take(2, tmp_path, rank=rank, ranks=2) for n in labels} for rank in (0, 1)]
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == 20


def test_classifying_reads_the_validation_set_and_nchw_is_transposed(tmp_path):
    write(tmp_path, "validation", shards=1)
    ((x, _),) = take(1, tmp_path, training=False, data_format="NCHW")
    assert x.shape == (5, 1, 28, 28)


def test_too_few_files_are_told(tmp_path):
    write(tmp_path, shards=1)
    with pytest.raises(LabError, match="1 files named train-00000-of-…, and each of 2 ranks"):
        take(1, tmp_path, ranks=2)
    with pytest.raises(LabError, match="0 files named validation"):
        take(1, tmp_path, training=False)
