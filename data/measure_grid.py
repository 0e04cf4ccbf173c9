"""How fast is each point of a small grid of settings, on this machine?

    PYTHONPATH=. env/openmp/.venv/bin/python data/measure_grid.py work/my-grid.csv

It measures the grid of lab 05, 288 settings of the MNIST CNN's training, in the kit's OpenMP build of TensorFlow; each
twice, about 20 minutes in all on a machine that has nothing else to do. On one that has, it waits for its moments, up
to an hour and a half. `tuning-grid.csv` was made by it.

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
from pathlib import Path
from typing import NamedTuple

os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

import tensorflow as tf

from labkit.bench.steps import make_train_step
from labkit.data.synthetic_batch import synthetic_batches
from labkit.models.networks import Network
from labkit.system import load
from labkit.system.machine import Machine, this_machine

BATCH = 64
WARM, TIMED = 3, 0.5  # steps before, and seconds of steps that are timed
TIME_LIMIT = 60.0  # seconds for one point
DISTURBED = load.BUSY  # others' share of the cores' time that spoils a figure
PATIENCE = 6.0  # seconds to wait for an undisturbed one; then the least disturbed counts
PINNED = "granularity=fine,compact,1,0"


def grid(cores: int) -> dict[str, list]:
    """Give each knob's values: threads up to twice the cores, since too many are part of the landscape."""
    threads = sorted({max(1, cores // 2), cores, 3 * cores // 2, 2 * cores})
    return {
        "omp": threads,
        "intra": threads,
        "inter": [1, 2, 3],
        "blocktime": [0, 1, 200],
        "affinity": ["none", PINNED],
    }


class Seen(NamedTuple):
    """What one look at a point gave: the share of the cores' time that other programs took meanwhile, and images/s."""

    others: float
    figure: float


def look(settings: dict) -> Seen:
    """Train the MNIST CNN with these settings, in this process, which must not have run TensorFlow before."""
    os.environ |= {
        "OMP_NUM_THREADS": str(settings["omp"]),
        "KMP_BLOCKTIME": str(settings["blocktime"]),
        "KMP_AFFINITY": settings["affinity"],
    }
    cpus = os.sched_getaffinity(0)  # before KMP_AFFINITY pins this thread
    tf.config.threading.set_intra_op_parallelism_threads(settings["intra"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["inter"])
    network = Network("mnist")
    batches = synthetic_batches(network.model, BATCH)
    step = tf.function(make_train_step(network, "sgd", rate=0.01, decay=4e-5))
    seen = []
    until = time.monotonic() + PATIENCE
    while not seen or (min(seen).others > DISTURBED and time.monotonic() < until):
        wait_for_quiet(cpus, until)
        for _ in range(WARM):
            float(step(*next(batches)))
        seconds = []
        with load.watch(cpus=cpus, show=False) as others:
            while sum(seconds) < TIMED:
                start = time.perf_counter()
                float(step(*next(batches)))
                seconds.append(time.perf_counter() - start)
        seen.append(Seen(others.share or 0.0, BATCH / statistics.median(seconds)))
    return min(seen)


def wait_for_quiet(cpus: set[int], until: float) -> None:
    """Return when the other programs are nearly idle, or at that time."""
    while time.monotonic() < until:
        with load.watch(cpus=cpus, show=False) as others:
            time.sleep(0.1)
        if not others.share or others.share < DISTURBED:  # or it can't be told
            break


def measured(settings: dict) -> Seen:
    """Fork, look in the child, and give what it saw; not a number when it fails or takes too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, "{} {}".format(*look(settings)).encode())
        finally:
            os._exit(0)  # without the clean-up of what belongs to the parent
    os.close(writing)
    in_time, _, _ = select.select([reading], [], [], TIME_LIMIT)
    told = os.read(reading, 100) if in_time else b""
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Seen(*map(float, told.split() or ("0", "nan")))


def one_round(knobs: dict[str, list], number: int) -> dict[tuple, float]:
    """Give images/s of each point."""
    points = list(itertools.product(*knobs.values()))
    seen = {}
    # Another order each round: noise that lasts falls on other points.
    for point in random.Random(number).sample(points, len(points)):
        seen[point] = measured(dict(zip(knobs, point, strict=True)))
        disturbed = sum(one.others > DISTURBED for one in seen.values())
        told = f"round {number}: {len(seen):3} of {len(points)} points, {disturbed} of them disturbed by other programs"
        print(f"\r{told}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {point: seen[point].figure for point in points}


def write(file: Path, knobs: dict[str, list], rounds: list[dict[tuple, float]], machine: Machine) -> None:
    """Write a line for each point: its settings, each round's images/s, and their median."""
    with file.open("w", newline="") as out:
        print(f"# {machine.model}, {machine.usable_cores} cores, {', '.join(machine.isa)}", file=out)
        print(f"# TensorFlow {tf.__version__} with OpenMP, Python {platform.python_version()}", file=out)
        print(f"# {time.strftime('%Y-%m-%d')}: training the MNIST CNN, batch {BATCH}, images/s", file=out)
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow([*knobs, *(f"round{number}" for number in range(1, len(rounds) + 1)), "images_s"])
        for point in rounds[-1]:
            figures = [figures[point] for figures in rounds]
            rows.writerow([*point, *(f"{figure:.0f}" for figure in [*figures, statistics.median(figures)])])


def main() -> None:
    """Measure the rounds, and write after each what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the CSV file to write")
    parser.add_argument("--rounds", type=int, default=2, help="times each point is measured (2)")
    args = parser.parse_args()
    machine = this_machine()
    knobs = grid(machine.usable_cores)
    rounds = []
    for number in range(1, args.rounds + 1):
        rounds.append(one_round(knobs, number))
        write(args.file, knobs, rounds, machine)


if __name__ == "__main__":
    main()
