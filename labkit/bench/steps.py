"""The steps that are measured: classifying a batch, or training on it."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from labkit.bench.config import OptimizerName
from labkit.models.losses import cross_entropy, l2_loss
from labkit.models.networks import Network
from labkit.models.optimizers import Adam, GradientDescent, Momentum, Optimizer, RMSProp

Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

_OPTIMIZERS: dict[OptimizerName, Callable[[list[tf.Variable]], Optimizer]] = {
    "sgd": GradientDescent,
    "momentum": Momentum,
    "rmsprop": RMSProp,
    "adam": Adam,
}
_ADAM_RATE = 0.1  # the factor on the others' rate: Adam's steps are as large whatever the gradients are


def make_forward_step(network: Network) -> Step:
    """Return the step that classifies images and returns the loss by their labels, which costs next to nothing."""

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return cross_entropy(network(images, training=False), labels)

    return step


def make_train_step(network: Network, optimizer: OptimizerName, rate: float, decay: float, hvd: Any = None) -> Step:
    """Return the step that trains on a batch and returns the total loss: cross-entropy and L2.

    Parameters
    ----------
    network : Network
        The network that is trained.
    optimizer : {"sgd", "momentum", "rmsprop", "adam"}
        The rule by which the weights follow the gradients.
    rate, decay : float
        The learning rate, and the weight decay, which is in the loss, as in tf_cnn_benchmarks.
    hvd : module, optional
        Horovod, initialised: gradients are averaged over its ranks.
    """
    chosen = _OPTIMIZERS[optimizer](network.weights)
    rate = _ADAM_RATE * rate if optimizer == "adam" else rate

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cross_entropy(network(images, training=True), labels) + l2_loss(network.weights, decay)
        gradients = tape.gradient(loss, network.weights)
        if hvd is not None:
            gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
        chosen.apply(gradients, rate)
        return loss

    return step
