"""Run one measurement with TensorFlow, in this process."""

from collections.abc import Callable

import tensorflow as tf

from labkit.bench import timing
from labkit.bench.config import LEARNING_RATE, WEIGHT_DECAY, BenchConfig
from labkit.data.synthetic_batch import synthetic_batch
from labkit.models.losses import cross_entropy, l2_loss
from labkit.models.networks import Network
from labkit.system.errors import LabError


def measure(config: BenchConfig) -> None:
    """Build the network, warm up and time the steps; print the result, and write requested files.

    Parameters
    ----------
    config : BenchConfig
        The configuration. Its `set_variables` must run before TensorFlow is imported.

    Raises
    ------
    LabError
        When TensorFlow fails, with its reason.
    """
    tf.config.threading.set_intra_op_parallelism_threads(config.num_intra_threads)
    tf.config.threading.set_inter_op_parallelism_threads(config.num_inter_threads)
    try:
        _measure(config)
    except tf.errors.OpError as error:
        message = error.message.strip().split("\n\n")[-1].partition("\n")[0]  # the last part is the cause
        is_too_large = "OOM" in message or "allocat" in message
        remedy = "Reduce --batch_size." if is_too_large else "Try --model=mnist: is it the network or the environment?"
        raise LabError(f"TensorFlow cannot run this: {message} {remedy}") from error


def _measure(config: BenchConfig) -> None:
    network = Network(config.model, tf.bfloat16 if config.use_fp16 else tf.float32)
    images, labels = map(tf.constant, synthetic_batch(network.model, config.batch_size))
    step = tf.function(make_step(network, LEARNING_RATE, WEIGHT_DECAY), jit_compile=config.xla_compile or None)
    timing.time_steps(config, "TensorFlow", tf.__version__, lambda: float(step(images, labels)))


def make_step(network: Network, rate: float, decay: float) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
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
