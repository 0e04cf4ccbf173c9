"""Run one measurement with TensorFlow, in this process."""

import tensorflow as tf

from labkit.bench import steps, timing
from labkit.bench.config import LEARNING_RATE, WEIGHT_DECAY, BenchConfig
from labkit.data.synthetic_batch import synthetic_batch
from labkit.models.networks import Network
from labkit.system.errors import LabError, reason


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
        message = reason(error)
        is_too_large = "OOM" in message or "allocat" in message
        remedy = "Reduce --batch_size." if is_too_large else "Try --model=mnist: is it the network or the environment?"
        raise LabError(f"TensorFlow cannot run this: {message} {remedy}") from error


def _measure(config: BenchConfig) -> None:
    network = Network(config.model, tf.bfloat16 if config.use_fp16 else tf.float32)
    images, labels = map(tf.constant, synthetic_batch(network.model, config.batch_size))
    if config.forward_only:
        function = steps.make_forward_step(network)
    else:
        function = steps.make_train_step(network, LEARNING_RATE, WEIGHT_DECAY)
    step = tf.function(function, jit_compile=config.xla_compile or None)
    timing.time_steps(config, "TensorFlow", tf.__version__, lambda: float(step(images, labels)))
