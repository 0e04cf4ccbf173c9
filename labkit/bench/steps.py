"""What is one step: classifying a batch, or training on it?"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from labkit.models.networks import Network

Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def classifying(network: Network) -> Step:
    """Return the step that classifies images and returns the loss by their labels, which costs next to nothing."""

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return _cross_entropy(network(images, training=False), labels)

    return step


def training(network: Network, optimizer: str, rate: float, decay: float, hvd: Any = None) -> Step:
    """Return the step that trains on a batch and returns the total loss: cross entropy and weight decay.

    Parameters
    ----------
    network : Network
        What is trained.
    optimizer : {"sgd", "momentum", "rmsprop", "adam"}
        How the weights follow the gradients.
    rate, decay : float
        Learning rate, and the factor of the weights' squares (of those that multiply; not biases and batch norms).
    hvd : module, optional
        Horovod, set up: gradients are averaged over its ranks.
    """
    update = _OPTIMIZERS[optimizer](network.weights, rate)
    decayed = [w for w in network.weights if len(w.shape) > 1]

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = _cross_entropy(network(images, training=True), labels)
            loss += decay * tf.add_n([tf.nn.l2_loss(w) for w in decayed])
        gradients = tape.gradient(loss, network.weights)
        if hvd is not None:
            gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
        update(gradients)
        return loss

    return step


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


# Optimizers: TensorFlow's own operations, which each take one pass over a variable.


def _slots(weights: list[tf.Variable], fill: float = 0.0) -> list[tf.Variable]:
    return [tf.Variable(tf.fill(w.shape, fill), trainable=False) for w in weights]


def _sgd(weights, rate):
    def update(gradients):
        for w, g in zip(weights, gradients, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=rate, delta=g)

    return update


def _momentum(weights, rate):
    velocities = _slots(weights)

    def update(gradients):
        for w, v, g in zip(weights, velocities, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(var=w.handle, accum=v.handle, lr=rate, grad=g, momentum=0.9)

    return update


def _rmsprop(weights, rate):
    squares, velocities = _slots(weights, 1.0), _slots(weights)

    def update(gradients):
        for w, s, v, g in zip(weights, squares, velocities, gradients, strict=True):
            tf.raw_ops.ResourceApplyRMSProp(
                var=w.handle, ms=s.handle, mom=v.handle, lr=rate, rho=0.9, momentum=0.9, epsilon=1.0, grad=g
            )

    return update


def _adam(weights, rate):
    means, squares = _slots(weights), _slots(weights)
    powers = [tf.Variable(beta) for beta in (0.9, 0.999)]

    def update(gradients):
        for w, m, s, g in zip(weights, means, squares, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=w.handle,
                m=m.handle,
                v=s.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=0.1 * rate,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                grad=g,
            )
        for power, beta in zip(powers, (0.9, 0.999), strict=True):
            power.assign(beta * power)

    return update


_OPTIMIZERS = {"sgd": _sgd, "momentum": _momentum, "rmsprop": _rmsprop, "adam": _adam}
