"""The steps to measure: classifying a batch, or training on it."""

from collections.abc import Callable

import tensorflow as tf

from labkit.models.losses import cross_entropy, l2_loss
from labkit.models.networks import Network

Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def make_forward_step(network: Network) -> Step:
    """Return the step that classifies images and returns their loss, whose cost is negligible."""

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return cross_entropy(network(images, training=False), labels)

    return step


def make_train_step(network: Network, rate: float, decay: float) -> Step:
    """Return the step that trains on a batch and returns the total loss: cross-entropy plus L2 penalty.

    `rate` is the learning rate of gradient descent and `decay` the weight decay.
    """

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = cross_entropy(logits, labels) + l2_loss(network.weights, decay)
        for weight, gradient in zip(network.weights, tape.gradient(loss, network.weights), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=weight.handle, alpha=rate, delta=gradient)
        return loss

    return step
