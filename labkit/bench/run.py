"""One measurement, in this process. Its output is that of tf_cnn_benchmarks, which people's scripts read."""

import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from labkit.bench import steps, trace
from labkit.bench.config import BenchConfig
from labkit.data.synthetic_batch import synthetic_batches
from labkit.models.networks import Network
from labkit.models.registry import MODELS
from labkit.system import files, load
from labkit.system.errors import LabError, reason
from labkit.system.lease import usable_machine

WEIGHT_DECAY = 4e-5  # the factor of tf_cnn_benchmarks; total_loss contains the decay
LEARNING_RATE = 0.01
# Prefixes of the variables that change its speed, and are therefore in the JSON.
VARIABLE_PREFIXES = (
    "TF_",
    "OMP_",
    "KMP_",
    "ONEDNN_",
    "DNNL_",
    "MALLOC_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "HOROVOD_",
    "XLA_",
)


class Speed(NamedTuple):
    """Images a second of some steps, with the statistics of tf_cnn_benchmarks.

    Attributes
    ----------
    mean : float
        All the steps' images divided by all their time.
    uncertainty : float
        The standard error of the steps' speeds.
    jitter : float
        Their median absolute deviation, times 1.4826: the standard deviation, were they spread normally.
    """

    mean: float
    uncertainty: float
    jitter: float

    def __str__(self) -> str:
        """Return it as `images/sec: 17.3 +/- 0.1 (jitter = 0.4)`."""
        return f"images/sec: {self.mean:.1f} +/- {self.uncertainty:.1f} (jitter = {self.jitter:.1f})"


def speed(count: int, seconds: list[float]) -> Speed:
    """Return the speed of steps of `count` images each."""
    speeds = count / np.asarray(seconds)
    jitter = 1.4826 * float(np.median(np.abs(speeds - np.median(speeds))))
    return Speed(count / statistics.fmean(seconds), float(speeds.std() / len(speeds) ** 0.5), jitter)


def measure(config: BenchConfig) -> None:
    """Build the network, warm up, time the steps; print, and write the files that are asked for.

    Parameters
    ----------
    config : BenchConfig
        The configuration; `flags.set_variables` has set its variables before TensorFlow was imported.

    Raises
    ------
    LabError
        When TensorFlow cannot run it, with its reason.
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

    def report(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    report(_header(config, ranks))
    report(f"Generating {'evaluation' if config.forward_only else 'training'} model")
    network = _network(config)
    batches = synthetic_batches(network.model, config.batch_size, config.data_format, rank)
    report("Initializing graph")
    step = tf.function(_step(config, network, hvd), jit_compile=config.xla_compile or None)

    report("Running warm up")
    for _ in range(config.num_warmup_batches):
        step(*next(batches)).numpy()
    if rank == 0 and config.trace_file:
        files.write(config.trace_file, trace.timeline_of(graph_for(config)))
    report("Done warm up\nStep\tImg/sec\ttotal_loss")

    seconds: list[float] = []
    losses: list[float] = []
    count = config.batch_size * ranks
    with load.observe(unknown="the other ranks are at work beside this one" if hvd else "") as others:
        began = before = time.perf_counter()
        for number in range(1, config.num_batches + 1):
            losses.append(float(step(*next(batches))))
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
            if number == 1 or number % config.display_every == 0:
                report(f"{number}\t{speed(count, seconds)}\t{losses[-1]:.3f}")
    total = count * config.num_batches / (before - began)
    report(f"{'-' * 64}\ntotal images/sec: {total:.2f}\n{'-' * 64}")
    if others.busy:
        report(str(others))
    if config.json and rank == 0:
        flops = network.flops if config.forward_only else network.flops_training
        _, uncertainty, jitter = speed(count, seconds)
        result = {
            "images_per_second": total,
            "uncertainty": uncertainty,
            "jitter": jitter,
            "gflop_per_image": flops / 1e9,
            "gflops": flops * total / 1e9,
            "seconds": seconds,
            "losses": losses,
            "ranks": ranks,
            "others": others.as_dict(),
        }
        files.write(config.json, json.dumps(result | _conditions(config), indent=1))


def _horovod() -> Any:
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise LabError(
            "there is no Horovod in the OpenMP environment: --variable_update=horovod runs in the kit's own."
        ) from error
    hvd.init()
    return hvd


def graph_for(config: BenchConfig) -> trace.StepGraph:
    """Return the step that is measured as a graph of TensorFlow 1, without other ranks."""
    return trace.step_graph(lambda: _network(config), lambda network: _step(config, network), config.batch_size)


def _network(config: BenchConfig) -> Network:
    dtype = tf.bfloat16 if config.use_fp16 else tf.float32
    return Network(config.model, config.data_format, dtype, config.fused_batch_norm, config.fused_shortcuts)


def _step(config: BenchConfig, network: Network, hvd: Any = None) -> steps.Step:
    if config.forward_only:
        return steps.make_forward_step(network)
    return steps.make_train_step(network, config.optimizer, LEARNING_RATE, WEIGHT_DECAY, hvd)


def _header(config: BenchConfig, ranks: int) -> str:
    emulated = "" if {"BF16", "AMX"} & set(usable_machine().isa) else ", emulated: this CPU has no bfloat16"
    model = MODELS[config.model]
    one = {"An image is": f"here {model.example}"} if model.dataset == "sequences" else {}
    rows = {
        "TensorFlow": tf.__version__,
        "Model": config.model,
        "Dataset": f"{config.data_name} (synthetic)",
        **one,
        "Mode": "forward-only" if config.forward_only else "training",
        "Batch size": f"{config.batch_size * ranks} global\n{'':13}{config.batch_size} per device",
        "Num batches": config.num_batches,
        "Devices": "['/cpu:0']" if ranks == 1 else f"{ranks} ranks, ['/cpu:0'] each",
        "Data format": config.data_format,
        "Precision": f"bfloat16, which is a CPU's 16 bits{emulated}" if config.use_fp16 else "float32",
        "Optimizer": config.optimizer,
        "Variables": config.variable_update,
    }
    return "\n".join([*(f"{name + ':':13}{value}" for name, value in rows.items()), "=========="])


def _remedy(config: BenchConfig, message: str) -> str:
    if "OOM" in message or "allocat" in message:
        return "Use a smaller --batch_size."
    if config.data_format == "NCHW":
        return "On a CPU, NCHW needs oneDNN: use --data_format=NHWC, or --mkl."
    return "Run it with --model=mnist to see whether it is the network or the environment."


def _conditions(config: BenchConfig) -> dict[str, Any]:
    """Return the conditions of a measurement: programs, machine, variables."""
    machine = usable_machine()
    return {
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()},
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLE_PREFIXES)
        },
        "versions": {"python": platform.python_version(), "tensorflow": tf.__version__, "numpy": np.__version__},
        "machine": asdict(machine) | {"usable_cores": machine.usable_cores, "kernel": platform.release()},
        "python": sys.executable,
    }
