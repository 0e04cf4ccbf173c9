"""Run one measurement with TensorFlow, in this process."""

from typing import Any

import tensorflow as tf

from labkit.bench import steps, timing
from labkit.bench.config import LEARNING_RATE, WEIGHT_DECAY, BenchConfig
from labkit.data.synthetic_batch import synthetic_batches
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
        _measure(config, _horovod() if config.variable_update == "horovod" else None)
    except tf.errors.OpError as error:
        message = reason(error)
        raise LabError(f"TensorFlow cannot run this: {message} {_remedy(config, message)}") from error


def _measure(config: BenchConfig, hvd: Any) -> None:
    rank, ranks = (hvd.rank(), hvd.size()) if hvd else (0, 1)
    measurement = timing.Run(config, "TensorFlow", tf.__version__, rank, ranks)
    network = Network(config.model, config.data_format, tf.bfloat16 if config.use_fp16 else tf.float32)
    batches = synthetic_batches(network.model, config.batch_size, config.data_format, rank)
    measurement.report("Initializing graph")
    if config.forward_only:
        function = steps.make_forward_step(network)
    else:
        function = steps.make_train_step(network, config.optimizer, LEARNING_RATE, WEIGHT_DECAY, hvd)
    step = tf.function(function, jit_compile=config.xla_compile or None)
    flops = network.flops if config.forward_only else network.flops_training
    measurement.time(lambda: float(step(*next(batches))), flops)


def _horovod() -> Any:
    import horovod.tensorflow as hvd

    hvd.init()
    return hvd


def _remedy(config: BenchConfig, message: str) -> str:
    if "OOM" in message or "allocat" in message:
        return "Reduce --batch_size."
    if config.data_format == "NCHW":
        return "On a CPU, NCHW needs oneDNN: use --data_format=NHWC, or --mkl."
    return "Try --model=mnist to see whether the cause is the network or the environment."
