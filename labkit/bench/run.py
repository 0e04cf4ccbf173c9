"""How fast is one network in this process? Its output is that of tf_cnn_benchmarks, which people's scripts read."""

import json
import os
import platform
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from labkit.bench import images, steps, trace
from labkit.data.synthetic_batch import synthetic_batches
from labkit.models.networks import Network
from labkit.system import files, load
from labkit.system.errors import LabError, reason
from labkit.system.machine import this_machine

DECAY = 4e-5  # of weights, as in tf_cnn_benchmarks; total_loss has it in it
RATE = 0.01
# What changes how fast it runs, and is therefore told in the JSON.
VARIABLES = ("TF_", "OMP_", "KMP_", "ONEDNN_", "DNNL_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "HOROVOD_", "XLA_")


class Speed(NamedTuple):
    """Images a second of some steps, with the statistics of tf_cnn_benchmarks.

    Attributes
    ----------
    mean : float
        Of all the steps' images by all their time.
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


def measure(flags: Namespace) -> None:
    """Build the network, warm up, time the steps; print, and write what the flags ask for.

    Parameters
    ----------
    flags : Namespace
        As `flags.parse` gives them, their variables set before TensorFlow was imported.

    Raises
    ------
    LabError
        When TensorFlow cannot run it, with its reason.
    """
    tf.config.threading.set_intra_op_parallelism_threads(flags.num_intra_threads)
    tf.config.threading.set_inter_op_parallelism_threads(flags.num_inter_threads)
    try:
        _measure(flags, _horovod() if flags.variable_update == "horovod" else None)
    except tf.errors.OpError as error:
        why = reason(error)
        raise LabError(f"TensorFlow cannot run this: {why} {_remedy(flags, why)}") from error


def _measure(flags: Namespace, hvd: Any) -> None:
    rank, ranks = (hvd.rank(), hvd.size()) if hvd else (0, 1)

    def say(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    say(_header(flags, ranks))
    say(f"Generating {'evaluation' if flags.forward_only else 'training'} model")
    network = _network(flags)
    batches = _batches(flags, network, rank, ranks, hvd)
    say("Initializing graph")
    step = tf.function(_step(flags, network, hvd), jit_compile=flags.xla_compile or None)

    say("Running warm up")
    for _ in range(flags.num_warmup_batches):
        step(*next(batches)).numpy()
    if rank == 0 and (flags.trace_file or flags.partitioned_graph_file_prefix):
        seen = trace.trace(lambda: _network(flags), lambda network: _step(flags, network), flags.batch_size)
        seen.write(flags.trace_file, flags.partitioned_graph_file_prefix)
    say("Done warm up\nStep\tImg/sec\ttotal_loss")

    seconds, losses = [], []
    count = flags.batch_size * ranks
    with load.watch(unknown="the other ranks are at work beside this one" if hvd else "", show=False) as others:
        began = before = time.perf_counter()
        for number in range(1, flags.num_batches + 1):
            losses.append(float(step(*next(batches))))
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
            if number == 1 or number % flags.display_every == 0:
                say(f"{number}\t{speed(count, seconds)}\t{losses[-1]:.3f}")
    total = count * flags.num_batches / (before - began)
    say(f"{'-' * 64}\ntotal images/sec: {total:.2f}\n{'-' * 64}")
    if others.busy:
        say(str(others))
    if flags.json and rank == 0:
        flops = network.flops if flags.forward_only else network.flops_training
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
        files.write(flags.json, json.dumps(result | _conditions(flags), indent=1))


def _horovod() -> Any:
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise LabError(
            "this environment has no Horovod: --variable_update=horovod runs in the kit's own, not in an OpenMP set-up."
        ) from error
    hvd.init()
    return hvd


def _network(flags: Namespace) -> Network:
    dtype = tf.bfloat16 if flags.use_fp16 else tf.float32
    return Network(flags.model, flags.data_format, dtype, flags.fused_batch_norm)


def _step(flags: Namespace, network: Network, hvd: Any = None) -> steps.Step:
    if flags.forward_only:
        return steps.make_forward_step(network)
    return steps.make_train_step(network, flags.optimizer, RATE, DECAY, hvd)


def _batches(flags: Namespace, network: Network, rank: int, ranks: int, hvd: Any) -> Iterator:
    if flags.data_dir is None:
        return synthetic_batches(network.model, flags.batch_size, flags.data_format, rank)
    share = {"rank": rank, "ranks": ranks, "allgather": hvd.allgather_object} if hvd else {}
    training = not flags.forward_only
    return images.from_tfrecords(flags.data_dir, network.model, flags.batch_size, flags.data_format, training, **share)


def _header(flags: Namespace, ranks: int) -> str:
    emulated = "" if {"BF16", "AMX"} & set(this_machine().isa) else ", emulated: this CPU has no bfloat16"
    rows = {
        "TensorFlow": tf.__version__,
        "Model": flags.model,
        "Dataset": f"{flags.data_name} ({'synthetic' if flags.data_dir is None else flags.data_dir})",
        "Mode": "forward-only" if flags.forward_only else "training",
        "Batch size": f"{flags.batch_size * ranks} global\n{'':13}{flags.batch_size} per device",
        "Num batches": flags.num_batches,
        "Devices": "['/cpu:0']" if ranks == 1 else f"{ranks} ranks, ['/cpu:0'] each",
        "Data format": flags.data_format,
        "Precision": f"bfloat16, which is a CPU's 16 bits{emulated}" if flags.use_fp16 else "float32",
        "Optimizer": flags.optimizer,
        "Variables": flags.variable_update,
    }
    return "\n".join([*(f"{name + ':':13}{value}" for name, value in rows.items()), "=========="])


def _remedy(flags: Namespace, why: str) -> str:
    if "OOM" in why or "allocat" in why:
        return "Use a smaller --batch_size."
    if flags.data_format == "NCHW":
        return "On a CPU, NCHW needs oneDNN: use --data_format=NHWC, or --mkl."
    return "Run it with --model=mnist to see whether it is the network or the environment."


def _conditions(flags: Namespace) -> dict[str, Any]:
    """What it was measured with and on."""
    machine = this_machine()
    return {
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in vars(flags).items()},
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
        "versions": {"python": platform.python_version(), "tensorflow": tf.__version__, "numpy": np.__version__},
        "machine": asdict(machine) | {"usable_cores": machine.usable_cores, "kernel": platform.release()},
        "python": sys.executable,
    }
