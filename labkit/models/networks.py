"""Networks built from the registry, with their weights."""

from collections.abc import Callable

import tensorflow as tf

from labkit.models.layers import Pass
from labkit.models.registry import MODELS


class Network:
    """A network; its weights are created immediately, with the same values in every process.

    Parameters
    ----------
    model : str
        A name of `registry.MODELS`.
    dtype : tf.DType
        The activations' precision; weights are float32.

    Attributes
    ----------
    weights, averages : list of tf.Variable
        The trained variables; the moving averages of batch norms.
    """

    def __init__(self, model: str, dtype: tf.DType = tf.float32):
        self.model, self.dtype = MODELS[model], dtype
        self.weights: list[tf.Variable] = []
        self.averages: list[tf.Variable] = []
        self._variables: dict[str, tf.Variable] = {}
        first_pass = Pass(self, training=False, dtype=tf.float32)  # creates the weights
        self.model.layers(first_pass, tf.zeros((1, *self.model.shape)))

    def __call__(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        """Return the logits, (n, classes) float32, of images (n, height, width, channels)."""
        one_pass = Pass(self, training, self.dtype)
        return tf.cast(self.model.layers(one_pass, tf.cast(images, self.dtype)), tf.float32)

    def variable(self, name: str, make: Callable[[], tf.Tensor], trained: bool = True) -> tf.Variable:
        """Return the variable of this name; the first pass creates it."""
        if name not in self._variables:
            self._variables[name] = tf.Variable(make(), trainable=trained, name=name)
            (self.weights if trained else self.averages).append(self._variables[name])
        return self._variables[name]
