"""One synthetic batch, to measure a network without reading images."""

import numpy as np

from labkit.models.registry import Model

SEED = 1234


def synthetic_batch(model: Model, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random images (n, height, width, channels) float32 for a network, and labels (n,) int32."""
    rng = np.random.default_rng(SEED)
    images = rng.normal(size=(batch_size, *model.shape)).astype("float32")
    return images, rng.integers(model.classes, size=batch_size).astype("int32")
