"""What does the benchmark's network look at: made-up images, or those of TFRecords in ImageNet's standard layout?"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from labkit.bench.networks import SEED, Model
from labkit.errors import LabError


def synthetic(model: Model, batch_size: int, data_format: str, rank: int = 0) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Give one batch again and again, made once: random images (n, …) float32 and labels (n,) int32."""
    rng = np.random.default_rng((SEED, rank))
    images = tf.constant(rng.normal(size=(batch_size, *model.shape)).astype("float32"))
    labels = tf.constant(rng.integers(model.classes, size=batch_size).astype("int32"))
    batch = images if data_format == "NHWC" else tf.transpose(images, (0, 3, 1, 2)), labels
    while True:
        yield batch


def tfrecords(
    folder: Path, model: Model, batch_size: int, data_format: str, training: bool, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Give batches of a folder's images without end, in another order each time; each rank has shards of its own.

    The layout is that of ImageNet's TFRecords: files `train-00000-of-01024` or `validation-…`, in each example
    `image/encoded` (a JPEG) and `image/class/label`.

    Raises
    ------
    LabError
        When there are no such files, or fewer than ranks.
    """
    kind = "train" if training else "validation"
    shards = sorted(map(str, folder.glob(f"{kind}-*-of-*")))
    if len(shards) < ranks:
        raise LabError(
            f"{folder} has {len(shards)} files named {kind}-00000-of-…, and each of {ranks} ranks needs one or more: "
            "name the folder of the TFRecords with --data_dir."
        )
    height, width, channels = model.shape

    def decode(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_single_example(
            record,
            {
                "image/encoded": tf.io.FixedLenFeature([], tf.string),
                "image/class/label": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        image = tf.image.resize(tf.io.decode_jpeg(features["image/encoded"], channels), (height, width))
        image = (tf.image.random_flip_left_right(image) if training else image) / 127.5 - 1
        image = image if data_format == "NHWC" else tf.transpose(image, (2, 0, 1))
        return image, tf.cast(features["image/class/label"], tf.int32)

    data = tf.data.Dataset.from_tensor_slices(shards[rank::ranks]).shuffle(len(shards), seed=SEED)
    data = data.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE).shuffle(1000, seed=SEED)
    data = data.repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return iter(data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE))
