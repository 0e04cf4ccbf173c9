"""One synthetic batch, repeated, to measure a network without reading images."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from labkit.models.registry import Model

if TYPE_CHECKING:
    import tensorflow as tf

SEED = 1234


def synthetic_arrays(model: Model, batch_size: int, rank: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random images (n, height, width, channels) float32, and labels (n,) int32; parameters as below."""
    rng = np.random.default_rng((SEED, rank))
    images = rng.normal(size=(batch_size, *model.shape)).astype("float32")
    return images, rng.integers(model.classes, size=batch_size).astype("int32")


def synthetic_batches(
    model: Model, batch_size: int, data_format: str = "NHWC", rank: int = 0
) -> Iterator[tuple["tf.Tensor", "tf.Tensor"]]:
    """Yield the same batch forever: random images float32 and labels (n,) int32.

    Parameters
    ----------
    model : Model
        The network that they are for: the images' shape, and the number of classes.
    batch_size : int
        The images in the batch.
    data_format : {"NHWC", "NCHW"}
        The layout of the images.
    rank : int
        The rank; each has its own batch.
    """
    import tensorflow as tf  # here, as PyTorch's process needs only the arrays

    images, labels = map(tf.constant, synthetic_arrays(model, batch_size, rank))
    batch = images if data_format == "NHWC" else tf.transpose(images, (0, 3, 1, 2)), labels
    while True:
        yield batch
