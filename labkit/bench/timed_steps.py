"""Time a script's steps on batches, with losses and operations: called at the end of a lab's `work/….py`."""

import argparse
import ctypes
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from labkit.bench.op_profile import read_profile
from labkit.system import files

WARM_UP = 3  # steps that are not timed, for tracing, kernel creation and first use of memory
# glibc's malloc (man mallopt): M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX.
KEEP_FREED_MEMORY = {-1: 2**30, -2: 2**27, -4: 0}

Step = Callable[..., tf.Tensor]
Batch = Sequence[tf.Tensor]


def main(steps: Mapping[str, Step], batches: Sequence[Batch], argv: Sequence[str] | None = None) -> None:
    """Measure a script's steps with its command-line options, and write the results to a JSON file.

    The results are, for each step: `images/s` from its median time, the `seconds` of each run and, if the step returns
    a single number, its `losses`. `profile` is the result of `profile` for the last step.

    Parameters
    ----------
    steps : mapping of str to callable
        Steps by name; each takes a batch and returns a tensor.
    batches : sequence of (images, labels)
        The batches, used cyclically; each step starts with the first.
    argv : sequence of str, optional
        The arguments; by default, those of the process.
    """
    parser = argparse.ArgumentParser(description="Time the steps of this script, each as a whole.")
    parser.add_argument("--steps", type=int, default=300, help="timed steps")
    parser.add_argument("--only", choices=list(steps), help="measure only this step")
    parser.add_argument("--profiled", type=int, default=0, help="further steps, under TensorFlow's profiler")
    parser.add_argument("--out", type=Path, default=Path("work/cnn.json"), help="the result file")
    args = parser.parse_args(argv)

    measured = {name: step for name, step in steps.items() if args.only in (None, name)}
    result: dict[str, Any] = {name: measure(name, step, batches, args.steps) for name, step in measured.items()}
    if args.profiled:
        result["profile"] = profile([*measured.values()][-1], batches, args.profiled)
    files.write(args.out, json.dumps(result))


def measure(name: str, step: Step, batches: Sequence[Batch], count: int) -> dict[str, Any]:
    """Return the images/s of a step, the seconds of each run and, if it returns one, the losses."""
    for _ in range(WARM_UP):
        step(*batches[0]).numpy()
    print(f"{name}, warm", flush=True)  # in oneDNN's log, this line separates the timed steps from the warm-up
    seconds, values = _time(step, batches, count)
    losses = [float(value) for value in values if value.ndim == 0]
    rate = len(batches[0][0]) / statistics.median(seconds)
    print(f"{name}: {rate:,.0f} images/s")
    return {"images/s": rate, "seconds": seconds} | ({"losses": losses} if losses else {})


def profile(step: Step, batches: Sequence[Batch], count: int) -> dict[str, Any]:
    """Return the `operations` of a step, in milliseconds by type, and the `seconds` of each step under the profiler.

    `plain_seconds` are the times of `count` steps without the profiler, between its two sessions. The first session is
    a warm-up. In it, the profiler's buffers displace those of TensorFlow, and malloc gets them from the kernel again in
    each step: page faults slow down Eigen's operations most. So this process's malloc keeps freed memory from here on.
    """
    _keep_freed_memory()
    _profile(step, batches, count)
    plain_seconds = _time(step, batches, count)[0]
    operations, seconds = _profile(step, batches, count)
    return {"operations": operations, "seconds": seconds, "plain_seconds": plain_seconds}


def _profile(step: Step, batches: Sequence[Batch], count: int) -> tuple[dict[str, float], list[float]]:
    """Return the milliseconds of each operation type, and the seconds of each step, in a profiler session."""
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            seconds = _time(step, batches, count)[0]
        return read_profile(folder, count), seconds


def _time(step: Step, batches: Sequence[Batch], count: int) -> tuple[list[float], list[Any]]:
    """Return the seconds and the value of each of `count` steps."""
    seconds, values = [], []
    for number in range(count):
        start = time.perf_counter()
        values.append(step(*batches[number % len(batches)]).numpy())
        seconds.append(time.perf_counter() - start)
    return seconds, values


def _keep_freed_memory() -> None:
    """Make malloc keep freed memory: otherwise chance decides whether it returns large tensors to the kernel."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        for option, value in KEEP_FREED_MEMORY.items():
            mallopt(option, value)
