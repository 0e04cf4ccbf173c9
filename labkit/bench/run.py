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
        raise LabError(f"TensorFlow cannot run this: {message} {_remedy(config, message)}") from error


def _measure(config: BenchConfig) -> None:
    measurement = timing.Run(config, "TensorFlow", tf.__version__)
    network = Network(config.model, config.data_format, tf.bfloat16 if config.use_fp16 else tf.float32)
    images, labels = map(tf.constant, synthetic_batch(network.model, config.batch_size))
    if config.data_format == "NCHW":
        images = tf.transpose(images, (0, 3, 1, 2))
    if config.forward_only:
        function = steps.make_forward_step(network)
    else:
        function = steps.make_train_step(network, LEARNING_RATE, WEIGHT_DECAY)
    step = tf.function(function, jit_compile=config.xla_compile or None)
    flops = network.flops if config.forward_only else network.flops_training
    measurement.time(lambda: float(step(images, labels)), flops)


def _remedy(config: BenchConfig, message: str) -> str:
    if "OOM" in message or "allocat" in message:
        return "Reduce --batch_size."
    if config.data_format == "NCHW":
        return "On a CPU, NCHW needs oneDNN: use --data_format=NHWC, or --config onednn."
    return "Try --model=mnist to see whether the cause is the network or the environment."
