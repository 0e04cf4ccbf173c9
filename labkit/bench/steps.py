"""The steps to measure: classifying a batch, or training on it."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from labkit.bench.config import OptimizerName
from labkit.models.losses import cross_entropy, l2_loss
from labkit.models.networks import Network
from labkit.models.optimizers import GradientDescent, Optimizer, RMSProp

Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_OPTIMIZERS: dict[OptimizerName, Callable[[list[tf.Variable]], Optimizer]] = {
    "sgd": GradientDescent,
    "rmsprop": RMSProp,
}


def make_forward_step(network: Network) -> Step:
    """Return the step that classifies images and returns their loss, whose cost is negligible."""

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return cross_entropy(network(images, training=False), labels)

    return step


def make_train_step(network: Network, optimizer: OptimizerName, rate: float, decay: float, hvd: Any = None) -> Step:
    """Return the step that trains on a batch and returns the total loss: cross-entropy plus L2 penalty.

    `rate` is the learning rate and `decay` the weight decay. With Horovod as `hvd`, gradients are averaged over all
    ranks.
    """
    chosen = _OPTIMIZERS[optimizer](network.weights)

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = network(images, training=True)
            loss = cross_entropy(logits, labels) + l2_loss(network.weights, decay)
        gradients = tape.gradient(loss, network.weights)
        if hvd is not None:
            gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
        chosen.apply(gradients, rate)
        return loss

    return step
