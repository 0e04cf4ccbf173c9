"""Record lab 05's grid: every point of a space of knobs, each launched several times on an idle machine.

A launch is a process of its own that trains the MNIST CNN. All points are launched once in random order, then all again
in another order, so that a point's launches are hours or many minutes apart and see the machine in different states.
A launch that other work disturbed is refused, and its point stays missing. The file grows by a line per launch, and the
same command resumes, so a recording can be interrupted after each launch.
"""

import csv
import importlib.metadata
import itertools
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit.system import files, load, paths
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import TENSORFLOW, Machine
from labkit.tune import space
from labkit.tune.trial import Command

TRAIN_MNIST = ("-m", "labkit.bench", "--model=mnist", "--batch_size=64", "--num_batches=40")
LAUNCHES = 6  # per point
TIMEOUT_S = 120.0

Point = tuple[str, ...]  # the knobs' values as text


def record(file: Path, most: int | None, on_line: Callable[[str], None] = print) -> int:
    """Launch the points that a file lacks, and add a line for each; return the number of launches that are missing.

    Parameters
    ----------
    file : Path
        CSV, created if it doesn't exist.
    most : int, optional
        Stop after this number of launches, refused ones included.
    on_line : callable
        Receives a line of progress for each launch.

    Raises
    ------
    LabError
        If the file was recorded with other knobs, or on another machine; or if a launch fails.
    """
    machine = usable_machine()
    knobs = space.read(space.MNIST_KNOBS, machine)
    command = Command([sys.executable, *TRAIN_MNIST], knobs, env={"TF_ENABLE_ONEDNN_OPTS": 1}, timeout=TIMEOUT_S)
    head = header(machine, knobs)
    if not file.exists():
        files.write(file, head)
    todo, settings = missing(file, head, knobs), points(knobs)
    for _ in range(len(todo) if most is None else min(most, len(todo))):
        number, point = todo.pop(0)
        with load.observe() as others:
            metric = command(settings[point])
        done = f"{metric:,.0f} images/s: {' '.join(point)}"
        if others.busy or others.share is None:
            on_line(f"refused: {done}. {others}")
            todo.append((number, point))
            continue
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        row = [number, *point, f"{metric:.1f}", f"{others.share:.4f}", when]
        files.write(file, file.read_text(encoding="utf-8") + ",".join(map(str, row)) + "\n")
        on_line(f"{done}; {len(todo)} are left")
    return len(todo)


def points(knobs: Mapping[str, space.Knob]) -> dict[Point, dict[str, Any]]:
    """Return the settings of each point, by the knobs' values as text."""
    combinations = itertools.product(*(knob.values for knob in knobs.values()))
    settings = [dict(zip(knobs, values, strict=True)) for values in combinations]
    return {tuple(str(knobs[name].label(value)) for name, value in point.items()): point for point in settings}


def header(machine: Machine, knobs: Mapping[str, space.Knob]) -> str:
    """Return the first lines of the file: machine, versions, command, columns."""
    versions = f"TensorFlow {importlib.metadata.version(TENSORFLOW)} from PyPI, Python {platform.python_version()}"
    return (
        f"# {machine.model}, {machine.usable_cores} cores, {', '.join(machine.isa)}\n# {versions}\n"
        f"# training the MNIST CNN: python {' '.join(TRAIN_MNIST)}\n"
        f"{','.join(['launch', *knobs, 'images_s', 'others', 'when'])}\n"
    )


def missing(file: Path, head: str, knobs: Mapping[str, space.Knob]) -> list[tuple[int, Point]]:
    """Return the launches that a file lacks, in the order in which they will run.

    Raises
    ------
    LabError
        If its header differs.
    """
    text = file.read_text(encoding="utf-8")
    if not text.startswith(head):
        raise LabError(f"{paths.shown(file)} was recorded on another machine, or with other versions or knobs.")
    rows = csv.reader(text.removeprefix(head).splitlines())
    recorded = {(int(number), tuple(values[: len(knobs)])) for number, *values in rows}
    return [launch for launch in _in_order(knobs) if launch not in recorded]


def _in_order(knobs: Mapping[str, space.Knob]) -> Iterator[tuple[int, Point]]:
    """Yield each launch's number, from 1, and point: all points once, then all again in another order."""
    everywhere = [*points(knobs)]
    for number in range(1, LAUNCHES + 1):
        yield from ((number, point) for point in random.Random(number).sample(everywhere, len(everywhere)))
