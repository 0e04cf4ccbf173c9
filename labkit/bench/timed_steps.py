"""Time a script's steps on batches, with their losses and operations: the end of a lab's `work/….py`."""

import argparse
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

WARM_UP = 3  # steps that are not timed: tracing, creating kernels, first use of memory

Step = Callable[..., tf.Tensor]
Batch = Sequence[tf.Tensor]


def main(steps: Mapping[str, Step], batches: Sequence[Batch], argv: Sequence[str] | None = None) -> None:
    """Measure a script's steps as its command line says, and write the results to a JSON file.

    For each step, that is `images/s` from its median time, `seconds` of each and, where a step returns a single
    number, its `losses`. `operations` are the milliseconds of each type of operation in a step of the last kind.

    Parameters
    ----------
    steps : mapping of str to callable
        By name; each takes a batch and returns a tensor.
    batches : sequence of (images, labels)
        The batches; each step cycles through them from the first.
    argv : sequence of str, optional
        The arguments, by default those of the process.
    """
    parser = argparse.ArgumentParser(description="Time the steps of this script, each as a whole.")
    parser.add_argument("--steps", type=int, default=300, help="timed steps")
    parser.add_argument("--only", choices=list(steps), help="measure only this one")
    parser.add_argument("--profiled", type=int, default=0, help="further steps, under TensorFlow's profiler")
    parser.add_argument("--out", type=Path, default=Path("work/cnn.json"), help="file for the result")
    args = parser.parse_args(argv)

    measured = {name: step for name, step in steps.items() if args.only in (None, name)}
    result: dict[str, Any] = {name: measure(name, step, batches, args.steps) for name, step in measured.items()}
    if args.profiled:
        result["operations"] = profile([*measured.values()][-1], batches, args.profiled)
    files.write(args.out, json.dumps(result))


def measure(name: str, step: Step, batches: Sequence[Batch], count: int) -> dict[str, Any]:
    """Return the images/s of a step, the seconds of each, and the losses where it returns one."""
    for _ in range(WARM_UP):
        step(*batches[0]).numpy()
    print(f"{name}, warm", flush=True)  # separates the timed steps from the warm-up in oneDNN's log
    seconds, losses = [], []
    for number in range(count):
        start = time.perf_counter()
        value = step(*batches[number % len(batches)]).numpy()
        seconds.append(time.perf_counter() - start)
        if value.ndim == 0:
            losses.append(float(value))
    rate = len(batches[0][0]) / statistics.median(seconds)
    print(f"{name}: {rate:,.0f} images/s")
    return {"images/s": rate, "seconds": seconds} | ({"losses": losses} if losses else {})


def profile(step: Step, batches: Sequence[Batch], count: int) -> dict[str, float]:
    """Return the milliseconds of each type of operation in a step, as means over `count` steps."""
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            for number in range(count):
                step(*batches[number % len(batches)]).numpy()
        return {kind: ms / count for kind, ms in read_profile(folder).items()}
