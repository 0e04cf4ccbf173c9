"""Network layers built from TensorFlow's own operations, so that each operation is exactly the intended one.

Keras 3 computes batch norm in eight operations, for which oneDNN has no kernels; here it is `FusedBatchNormV3`.
"""

import functools
import math
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from labkit.models.networks import Network

# For batch norms: torchvision and Keras agree on these two for ResNet.
EPSILON, MOMENTUM = 1e-5, 0.9
SEED = 1234  # for the weights


class Pass:
    """One pass through a network: the layers that an architecture calls, in its order.

    Parameters
    ----------
    network : Network
        The network that owns the weights (`labkit.models.networks`).
    training : bool
        Whether batch norms use the batch's mean and variance, and update their moving averages.
    dtype : tf.DType
        The activations' precision.
    """

    def __init__(self, network: "Network", training: bool, dtype: tf.DType):
        self.network, self.training, self.dtype = network, training, dtype
        self._layer = 0

    def conv(self, x: tf.Tensor, filters: int, kernel: int, stride: int = 1, bias: bool = False) -> tf.Tensor:
        """Return a convolution with a square kernel."""
        y = tf.nn.conv2d(x, self._kernel((kernel, kernel, x.shape[-1], filters)), stride, "SAME")
        return self._add_bias(y) if bias else y

    def dense(self, x: tf.Tensor, units: int) -> tf.Tensor:
        """Return a dense layer with bias, without activation."""
        return self._add_bias(tf.matmul(x, self._kernel((x.shape[1], units))))

    def batch_norm(self, x: tf.Tensor) -> tf.Tensor:
        """Return batch norm; in training, update its moving averages."""
        network, shape = self.network, (x.shape[-1],)
        scale, offset = (
            network.variable(f"{self._layer}/{name}", functools.partial(make, shape))
            for name, make in (("scale", tf.ones), ("offset", tf.zeros))
        )
        mean, variance = (
            network.variable(f"{self._layer}/{name}", functools.partial(make, shape), trained=False)
            for name, make in (("mean", tf.zeros), ("variance", tf.ones))
        )
        y, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            epsilon=EPSILON,
            exponential_avg_factor=1 - MOMENTUM if self.training else 1.0,
            is_training=self.training,
        )
        if self.training:  # the operation returns the updated moving averages
            mean.assign(new_mean)
            variance.assign(new_variance)
        return y

    def conv_norm(self, x: tf.Tensor, filters: int, kernel: int, stride: int = 1, relu: bool = True) -> tf.Tensor:
        """Return a convolution, its batch norm, and a ReLU unless `relu` is false."""
        y = self.batch_norm(self.conv(x, filters, kernel, stride))
        return self.relu(y) if relu else y

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        """Return max(x, 0)."""
        return tf.nn.relu(x)

    def max_pool(self, x: tf.Tensor, size: int, stride: int) -> tf.Tensor:
        """Return the maximum over windows of size × size."""
        return tf.nn.max_pool2d(x, size, stride, "SAME")

    def average(self, x: tf.Tensor) -> tf.Tensor:
        """Return the mean over all positions: (n, channels)."""
        return tf.reduce_mean(x, [1, 2])

    def flatten(self, x: tf.Tensor) -> tf.Tensor:
        """Return each image's values as a vector: (n, values)."""
        return tf.reshape(x, (-1, math.prod(x.shape[1:])))

    def _kernel(self, shape: tuple[int, ...]) -> tf.Tensor:
        """Return weights, initialised for ReLU (He et al. 2015, arXiv 1502.01852)."""
        self._layer += 1
        spread = math.sqrt(2 / math.prod(shape[:-1]))
        w = self.network.variable(
            f"{self._layer}/weights", lambda: spread * tf.random.stateless_truncated_normal(shape, (SEED, self._layer))
        )
        return tf.cast(w, self.dtype)

    def _add_bias(self, y: tf.Tensor) -> tf.Tensor:
        bias = self.network.variable(f"{self._layer}/bias", lambda: tf.zeros(y.shape[-1]))
        return tf.nn.bias_add(y, tf.cast(bias, self.dtype))
