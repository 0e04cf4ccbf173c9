"""What does the benchmark's network look at: made-up images, or those of TFRecords in ImageNet's standard layout?"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from labkit.data.tfrecords import FAILURES, fault, parsed
from labkit.models.networks import SEED
from labkit.models.registry import Model
from labkit.system.errors import LabError, reason

_IN_TURNS = 16  # files that are read at a time


def synthetic(model: Model, batch_size: int, data_format: str, rank: int = 0) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yield one batch again and again, made once: random images (n, …) float32 and labels (n,) int32."""
    rng = np.random.default_rng((SEED, rank))
    images = tf.constant(rng.normal(size=(batch_size, *model.shape)).astype("float32"))
    labels = tf.constant(rng.integers(model.classes, size=batch_size).astype("int32"))
    batch = images if data_format == "NHWC" else tf.transpose(images, (0, 3, 1, 2)), labels
    while True:
        yield batch


def tfrecords(
    folder: Path, model: Model, batch_size: int, data_format: str, training: bool, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yield batches of a folder's images without end, in another order each time; each rank has shards of its own.

    The layout is that of ImageNet's TFRecords: files `train-00000-of-01024` or `validation-…`, see
    `labkit.data.tfrecords`. TensorFlow verifies the checksums of what it reads.

    Raises
    ------
    LabError
        When there are no such files, or fewer than ranks; on the way, when a record can't be used, which it names.
    """
    kind = "train" if training else "validation"
    shards = sorted(map(str, folder.glob(f"{kind}-*-of-*")))
    if len(shards) < ranks:
        raise LabError(
            f"{folder} has {len(shards)} files named {kind}-00000-of-…, and each of {ranks} ranks needs one or more: "
            "name the folder of the TFRecords with --data_dir."
        )
    height, width, channels = model.shape

    def pixels(jpeg: tf.Tensor) -> tf.Tensor:
        return tf.io.decode_jpeg(jpeg, channels)

    def decode(name: tf.Tensor, number: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        jpegs, labels = parsed(record[tf.newaxis], model.classes)
        image = tf.image.resize(pixels(jpegs[0]), (height, width))
        image = (tf.image.random_flip_left_right(image) if training else image) / 127.5 - 1
        return image if data_format == "NHWC" else tf.transpose(image, (2, 0, 1)), labels[0]

    mine = shards[rank::ranks]
    random.Random(SEED).shuffle(mine)
    data = _records(mine).shuffle(1000, seed=SEED).repeat().map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    data = data.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def batches() -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        try:
            yield from data
        except FAILURES as error:
            _name_the_bad_one(mine, pixels, model.classes)
            raise LabError(f"cannot go on reading {folder}: {reason(error)}") from error
        raise LabError(f"no {kind} file in {folder} has a record: copy them anew.")

    return batches()


def _records(shards: list[str]) -> tf.data.Dataset:
    """Return file, number in there and data of each record, of some files in turns."""

    def numbered(shard: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(shard).enumerate().map(lambda number, record: (shard, number, record))

    files = tf.data.Dataset.from_tensor_slices(shards)
    return files.interleave(numbered, _IN_TURNS, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _name_the_bad_one(shards: list[str], pixels: Callable[[tf.Tensor], tf.Tensor], classes: int) -> None:
    """Raise LabError for the first record that can't be used, as TensorFlow's error doesn't tell which it was.

    The records come as they came before, so this goes no further than the batches did.
    """
    to_come = dict.fromkeys(shards, 0)
    try:
        for name, number, record in _records(shards).as_numpy_iterator():
            to_come[name.decode()] = number + 1
            if wrong := fault(record, pixels, classes):
                raise LabError(f"{name.decode()}, record {number} {wrong}")
    except tf.errors.OpError:
        for name, number in to_come.items():
            try:
                list(tf.data.TFRecordDataset(name).skip(number).take(1))
            except tf.errors.OpError as error:
                raise LabError(
                    f"{name}, record {number} cannot be read ({reason(error)}): copy the file anew."
                ) from error
