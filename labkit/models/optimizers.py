"""Optimizers built from TensorFlow's own operations, each of which makes one pass over a variable."""

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from labkit.models.losses import is_kernel


class Optimizer(Protocol):
    """The rule that updates weights with their gradients."""

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor | float) -> None:
        """Update the weights by one step at this learning rate."""


class GradientDescent:
    """Stochastic gradient descent: w ← w − rate·g."""

    def __init__(self, weights: Sequence[tf.Variable]):
        self.weights = weights

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor | float) -> None:
        """Update the weights by one step."""
        for w, g in zip(self.weights, gradients, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=rate, delta=g)


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
        self.velocities = _slots(weights, "velocity")

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor | float) -> None:
        """Update the weights and their velocities by one step."""
        for w, v, g in zip(self.weights, self.velocities, gradients, strict=True):
            if is_kernel(w) and self.weight_decay:
                g = g + self.weight_decay * w
            tf.raw_ops.ResourceApplyMomentum(var=w.handle, accum=v.handle, lr=rate, grad=g, momentum=self.momentum)


class RMSProp:
    """RMSProp with momentum 0.9, as in tf_cnn_benchmarks: gradients divided by the root of their mean square."""

    def __init__(self, weights: Sequence[tf.Variable]):
        self.weights = weights
        self.squares, self.velocities = _slots(weights, "square", 1.0), _slots(weights, "velocity")

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor | float) -> None:
        """Update the weights, their mean squares and velocities by one step."""
        for w, s, v, g in zip(self.weights, self.squares, self.velocities, gradients, strict=True):
            tf.raw_ops.ResourceApplyRMSProp(
                var=w.handle, ms=s.handle, mom=v.handle, lr=rate, rho=0.9, momentum=0.9, epsilon=1.0, grad=g
            )


def _slots(weights: Sequence[tf.Variable], name: str, fill: float = 0.0) -> list[tf.Variable]:
    """Return an additional variable for each weight."""
    return [tf.Variable(tf.fill(w.shape, fill), trainable=False, name=f"{name}/{w.name}") for w in weights]
