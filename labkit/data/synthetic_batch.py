"""One synthetic batch, again and again: what a network is measured on when reading images is not to be measured."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from labkit.models.registry import Model

SEED = 1234


def synthetic_batches(
    model: Model, batch_size: int, data_format: str = "NHWC", rank: int = 0
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Yield one batch without end, made once: random images float32 and labels (n,) int32.

    Parameters
    ----------
    model : Model
        The network they are for: the images' shape, and how many classes there are.
    batch_size : int
        Images.
    data_format : {"NHWC", "NCHW"}
        The layout of the images.
    rank : int
        Each has a batch of its own.
    """
    rng = np.random.default_rng((SEED, rank))
    images = tf.constant(rng.normal(size=(batch_size, *model.shape)).astype("float32"))
    labels = tf.constant(rng.integers(model.classes, size=batch_size).astype("int32"))
    batch = images if data_format == "NHWC" else tf.transpose(images, (0, 3, 1, 2)), labels
    while True:
        yield batch
