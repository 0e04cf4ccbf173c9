"""Measure the training speed of the MNIST CNN at every point of a small grid of settings: the grid of lab 05.

    PYTHONPATH=. env/openmp/.venv/bin/python -m labkit.tune.grid my-grid.csv

There are 288 settings on two cores, in the kit's OpenMP build of TensorFlow; each is measured twice, which takes about
20 minutes in all. Run it on an idle machine. `data/tuning-grid.csv` was made by it.

To start TensorFlow takes far longer than to measure it. So TensorFlow is imported once, and each point is a fork of
that process. That works because an import starts neither TensorFlow's threads nor OpenMP, which read their settings
when they start.
"""

import argparse
import csv
import itertools
import os
import platform
import random
import select
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.system.lease import usable_machine
from labkit.system.machine import Machine

BATCH_SIZE = 64
WARM_UP_STEPS = 3
TIMED_S = 0.5  # of steps
POINT_TIMEOUT_S = 60.0
PINNED = "granularity=fine,compact,1,0"

Knobs = Mapping[str, list[Any]]  # each one's values
Settings = Mapping[str, Any]
Point = tuple[Any, ...]


def grid(cores: int) -> Knobs:
    """Return each knob's values: threads up to twice the cores, since too many are part of the landscape."""
    threads = sorted({max(1, cores // 2), cores, 3 * cores // 2, 2 * cores})
    return {
        "omp": threads,
        "intra": threads,
        "inter": [1, 2, 3],
        "blocktime": [0, 1, 200],
        "affinity": ["none", PINNED],
    }


def train_mnist(settings: Settings) -> float:
    """Return the images/s of the MNIST CNN with these settings, in a process that has not run TensorFlow before."""
    import tensorflow as tf

    from labkit.bench.steps import make_train_step
    from labkit.data.synthetic_batch import synthetic_batches
    from labkit.models.networks import Network

    os.environ |= {
        "OMP_NUM_THREADS": str(settings["omp"]),
        "KMP_BLOCKTIME": str(settings["blocktime"]),
        "KMP_AFFINITY": settings["affinity"],
    }
    tf.config.threading.set_intra_op_parallelism_threads(settings["intra"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["inter"])
    network = Network("mnist")
    batches = synthetic_batches(network.model, BATCH_SIZE)
    step = tf.function(make_train_step(network, "sgd", rate=0.01, decay=4e-5))
    for _ in range(WARM_UP_STEPS):
        float(step(*next(batches)))
    seconds: list[float] = []
    while sum(seconds) < TIMED_S:
        start = time.perf_counter()
        float(step(*next(batches)))
        seconds.append(time.perf_counter() - start)
    return BATCH_SIZE / statistics.median(seconds)


def measure_in_fork(
    settings: Settings, measure: Callable[[Settings], float] = train_mnist, timeout: float = POINT_TIMEOUT_S
) -> float:
    """Return the images/s of a point in a fork of this process; not a number when it fails or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(measure(settings)).encode())
        finally:
            os._exit(0)  # without the clean-up of what belongs to the parent
    os.close(writing)
    in_time, _, _ = select.select([reading], [], [], timeout)
    answer = os.read(reading, 100) if in_time else b""
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return float(answer or "nan")


def measure_round(
    knobs: Knobs, number: int, measure: Callable[[Settings], float] = measure_in_fork
) -> dict[Point, float]:
    """Return images/s of each point, measured in the order of that round."""
    points = list(itertools.product(*knobs.values()))
    measured: dict[Point, float] = {}
    # Another order each round: noise that lasts falls on other points.
    for point in random.Random(number).sample(points, len(points)):
        measured[point] = measure(dict(zip(knobs, point, strict=True)))
        print(f"\rround {number}: {len(measured):3} of {len(points)} points", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {point: measured[point] for point in points}


def write(
    file: Path,
    knobs: Knobs,
    rounds: Sequence[Mapping[Point, float]],
    machine: Machine,
    tensorflow: str,
) -> None:
    """Write a line for each point: its settings, each round's images/s, and their median."""
    with file.open("w", newline="") as out:
        print(f"# {machine.model}, {machine.usable_cores} cores, {', '.join(machine.isa)}", file=out)
        print(f"# TensorFlow {tensorflow} with OpenMP, Python {platform.python_version()}", file=out)
        print(f"# {time.strftime('%Y-%m-%d')}: training the MNIST CNN, batch {BATCH_SIZE}, images/s", file=out)
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow([*knobs, *(f"round{number}" for number in range(1, len(rounds) + 1)), "images_s"])
        for point in rounds[-1]:
            speeds = [speeds[point] for speeds in rounds]
            rows.writerow([*point, *(f"{speed:.0f}" for speed in [*speeds, statistics.median(speeds)])])


def main() -> None:
    """Measure the rounds, and write after each what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the CSV file to write")
    parser.add_argument("--rounds", type=int, default=2, help="times each point is measured (2)")
    args = parser.parse_args()
    os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    import tensorflow as tf  # once, and before the forks

    machine = usable_machine()
    knobs = grid(machine.usable_cores)
    rounds: list[dict[Point, float]] = []
    for number in range(1, args.rounds + 1):
        rounds.append(measure_round(knobs, number))
        write(args.file, knobs, rounds, machine, tf.__version__)


if __name__ == "__main__":
    main()
