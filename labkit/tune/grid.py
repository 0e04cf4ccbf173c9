"""Measure the training speed of the MNIST CNN at every point of a space of knobs: the grid of lab 05.

    .venv/bin/python -m labkit.tune.grid my-grid.csv --minutes 10

Each point is measured in three rounds. Each measurement is a separate process, and each round has a different order. On
two cores that takes about half an hour. Launches disturbed by other work are repeated. After the time limit or an
interrupt, the same command resumes. Run it on an idle machine. It produced `data/tuning-grid-stock.csv`.
"""

import argparse
import csv
import importlib.metadata
import io
import itertools
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.system import files, load
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import TENSORFLOW, Machine
from labkit.tune import space
from labkit.tune.trial import Command

TRAIN_MNIST = ("-m", "labkit.bench", "--model=mnist", "--batch_size=64", "--num_batches=40")
ROUNDS = 3
ATTEMPTS = 3  # maximum launches per point and round while other work disturbs them

Point = tuple[str, ...]  # the knobs' values as strings
Round = dict[Point, float]  # metrics of the measured points; NaN for a failure


def points(knobs: Mapping[str, space.Knob]) -> dict[Point, dict[str, Any]]:
    """Return the settings of each point, keyed by their values as strings."""
    combinations = itertools.product(*(knob.values for knob in knobs.values()))
    all_settings = [dict(zip(knobs, values, strict=True)) for values in combinations]
    return {
        tuple(str(knobs[name].label(value)) for name, value in settings.items()): settings for settings in all_settings
    }


def measure(
    knobs: Mapping[str, space.Knob], rounds: Sequence[Round], objective: Callable[[dict[str, Any]], float]
) -> Iterator[int]:
    """Measure the points that the rounds lack, one by one; yield the round's number after each."""
    settings = points(knobs)
    for number, metrics in enumerate(rounds, 1):
        # A different order each round, so that lasting noise hits different points.
        for point in random.Random(number).sample([*settings], len(settings)):
            if point not in metrics:
                try:
                    metrics[point] = objective(settings[point])
                except LabError as error:
                    print(f"{point}: {error}", file=sys.stderr)
                    metrics[point] = math.nan
                yield number


def undisturbed(objective: Callable[[dict[str, Any]], float]) -> Callable[[dict[str, Any]], float]:
    """Wrap the objective so that it runs again, up to `ATTEMPTS` times, while other work uses the cores."""

    def launch(settings: dict[str, Any]) -> float:
        for _ in range(ATTEMPTS):
            with load.observe() as others:
                metric = objective(settings)
            if not others.busy:
                break
        return metric

    return launch


def read(file: Path, knobs: Mapping[str, space.Knob], rounds: int = ROUNDS) -> list[Round]:
    """Return the rounds measured so far in a file.

    Raises
    ------
    LabError
        If the file has other knobs.
    """
    measured: list[Round] = [{} for _ in range(rounds)]
    if not file.exists():
        return measured
    rows = csv.DictReader(line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    for row in rows:
        point = tuple(row.get(name, "") for name in knobs)
        if point not in points(knobs):
            raise LabError(f"{file} is a grid with other knobs: name another file.")
        for number, metrics in enumerate(measured, 1):
            if speed := row.get(f"round{number}"):
                metrics[point] = float(speed)
    return measured


def write(
    file: Path, knobs: Mapping[str, space.Knob], rounds: Sequence[Round], machine: Machine, tensorflow: str
) -> None:
    """Write a line per point: its values, each round's images/s (empty if not measured), and their median."""
    out = io.StringIO(newline="")
    print(f"# {machine.model}, {machine.usable_cores} cores, {', '.join(machine.isa)}", file=out)
    print(f"# TensorFlow {tensorflow} from PyPI, Python {platform.python_version()}", file=out)
    print(f"# {time.strftime('%Y-%m-%d')}: training the MNIST CNN, images/s: python {' '.join(TRAIN_MNIST)}", file=out)
    table = csv.writer(out, lineterminator="\n")
    table.writerow([*knobs, *(f"round{number}" for number in range(1, len(rounds) + 1)), "images_s"])
    for point in points(knobs):
        speeds = [metrics[point] for metrics in rounds if point in metrics]
        texts = [f"{metrics[point]:.0f}" if point in metrics else "" for metrics in rounds]
        table.writerow([*point, *texts, f"{statistics.median(speeds):.0f}" if speeds else ""])
    files.write(file, out.getvalue())


def main() -> None:
    """Measure the rounds, writing the file after each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="CSV file to write or resume")
    parser.add_argument("--knobs", type=Path, default=space.MNIST_KNOBS, help="knobs file (default: knobs-mnist.toml)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"measurements per point (default: {ROUNDS})")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit")
    args = parser.parse_args()
    machine, until = usable_machine(), time.monotonic() + 60 * args.minutes
    knobs = space.read(args.knobs, machine)
    rounds = read(args.file, knobs, args.rounds)
    command = Command([sys.executable, *TRAIN_MNIST], knobs, env={"TF_ENABLE_ONEDNN_OPTS": 1})
    for number in measure(knobs, rounds, undisturbed(command)):
        write(args.file, knobs, rounds, machine, importlib.metadata.version(TENSORFLOW))
        progress = f"\rround {number}: {len(rounds[number - 1]):3} of {len(points(knobs))} points"
        print(progress, end="", file=sys.stderr, flush=True)
        if time.monotonic() > until:
            break
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
