"""The images of TFRecords as the benchmark's networks take them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from labkit.data import tfrecords
from labkit.models.registry import Model

SEED = 1234  # the seed of the images' order, and of which are mirrored


def from_tfrecords(
    folder: Path,
    model: Model,
    batch_size: int,
    data_format: str,
    training: bool,
    *,
    rank: int = 0,
    ranks: int = 1,
    allgather: Callable[[Any], list] = lambda mine: [mine],
) -> Iterator[tfrecords.Batch]:
    """Return a rank's batches of a folder's images without end, in another order each epoch.

    Parameters
    ----------
    folder : Path
        The folder of the files, in the layout of `labkit.data.tfrecords`.
    model : Model
        The network that they are for.
    batch_size : int
        Images in a batch of one rank.
    data_format : {"NHWC", "NCHW"}
        The layout of the images.
    training : bool
        Whether they are those of the training set, some of them mirrored, or those of the validation set.
    rank, ranks, allgather
        As in `tfrecords.index`.

    Raises
    ------
    LabError
        When there is no such set; on the way, when a record can't be used, which it names.
    """
    height, width, channels = model.shape

    def decode(jpeg: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        image = tf.image.resize(tf.io.decode_jpeg(jpeg, channels), (height, width))
        if training:
            image = tf.image.stateless_random_flip_left_right(image, seed=(SEED, position))
        image = image / 127.5 - 1
        return image if data_format == "NHWC" else tf.transpose(image, (2, 0, 1))

    records = tfrecords.index(folder, "train" if training else "validation", rank, ranks, allgather)
    return iter(
        tfrecords.shuffled_batches(
            records, decode, batch_size, rank=rank, ranks=ranks, seed=SEED, classes=model.classes
        )
    )
