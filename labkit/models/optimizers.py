"""An optimizer built from TensorFlow's own operations, each of which makes one pass over a variable."""

from collections.abc import Sequence

import tensorflow as tf

from labkit.models.losses import is_kernel


class Momentum:
    """Stochastic gradient descent with momentum: v ← m·v + g + d·w, then w ← w − rate·v.

    Only kernels are decayed (weight decay d): see `losses.is_kernel`.

    Parameters
    ----------
    weights : sequence of tf.Variable
        The trained variables.
    momentum, weight_decay : float
        m and d.

    Attributes
    ----------
    velocities : list of tf.Variable
        v of each weight; a checkpoint must contain them.
    """

    def __init__(self, weights: Sequence[tf.Variable], momentum: float = 0.9, weight_decay: float = 0.0):
        self.weights, self.momentum, self.weight_decay = weights, momentum, weight_decay
        self.velocities = [tf.Variable(tf.zeros(w.shape), trainable=False, name=f"velocity/{w.name}") for w in weights]

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor | float) -> None:
        """Update the weights and their velocities by one step at this learning rate."""
        for w, v, g in zip(self.weights, self.velocities, gradients, strict=True):
            if is_kernel(w) and self.weight_decay:
                g = g + self.weight_decay * w
            tf.raw_ops.ResourceApplyMomentum(var=w.handle, accum=v.handle, lr=rate, grad=g, momentum=self.momentum)
