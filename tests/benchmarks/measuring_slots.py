"""Figures taken by 8 contenders on 2 measuring slots, against those taken alone; and how soon a slot is free again.

    python tests/benchmarks/measuring_slots.py [--seconds 3] [--contenders 8]

Run it on an idle machine of two cores or more. Exit code 1 when two measurements overlapped in a slot, somebody was
overtaken, a median is more than 5% off, or a killed holder's slot was not free within 2 s.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from labkit.system import load, locks, slots, turns
from labkit.system.machine import this_machine
from labkit.system.slots import Division

SLOTS, KILLS = 2, 20
MAX_DIFFERENCE, MAX_FREE_S = 0.05, 2.0
SIZE = 512  # of the matrices, which stay in a core's caches


class Result(NamedTuple):
    """What a contender measured, on which CPUs, and when it queued up, began and ended."""

    number: int
    cpus: list[int]
    queued: float
    began: float
    ended: float
    gflops: float


def contend(number: int, seconds: float) -> None:
    """Measure products of matrices in a slot when told to, and print what came as JSON."""
    import numpy as np

    a = np.random.default_rng(number).random((SIZE, SIZE))
    print("ready", flush=True)
    sys.stdin.readline()
    queued = time.monotonic()
    with turns.take():
        cpus = sorted(os.sched_getaffinity(0))
        began, products = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            a @ a
            products += 1
        ended = time.monotonic()
    gflops = 2 * SIZE**3 * products / (ended - began) / 1e9
    print(json.dumps(Result(number, cpus, queued, began, ended, gflops)), flush=True)


def start(number: int, seconds: float) -> subprocess.Popen[str]:
    """Start a contender, and return when it is ready to queue up."""
    command = [sys.executable, __file__, "--number", str(number), "--seconds", str(seconds)]
    pipe, variables = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    contender = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables)
    contender.stdout.readline()
    return contender


def go(contender: subprocess.Popen[str]) -> None:
    """Have a contender queue up."""
    contender.stdin.write("go\n")
    contender.stdin.flush()


def queue_up(contenders: list[subprocess.Popen[str]]) -> list[Result]:
    """Have contenders queue up, one after the other, and return what they measured."""
    for contender in contenders:
        go(contender)
        time.sleep(0.05)
    return [Result(*json.loads(contender.communicate()[0])) for contender in contenders]


def free_after(place: Path) -> float:
    """Kill a holder, and return the seconds until its slot is free."""
    holder = start(0, 1000)
    go(holder)
    while not locks.is_locked(place / slots.slot_file(0)):
        time.sleep(0.01)
    began = time.monotonic()
    holder.send_signal(signal.SIGKILL)
    while locks.is_locked(place / slots.slot_file(0)):
        time.sleep(0.001)
    seconds = time.monotonic() - began
    holder.communicate()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--contenders", type=int, default=8)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.number is not None:
        contend(args.number, args.seconds)
        return 0
    machine = this_machine()
    chosen = machine.cores[-SLOTS:]
    editing = tuple(cpu for core in machine.cores[:-SLOTS] for cpu in core) or machine.cpus
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "slots"
        os.environ[slots.FOLDER_VARIABLE] = str(place)
        slots.write(Division(editing, chosen, 1, args.contenders), place)
        with load.watch(show=False, in_turn=False) as others:
            alone = [queue_up([start(number, args.seconds)])[0] for number in range(args.contenders)]
            together = queue_up([start(number, args.seconds) for number in range(args.contenders)])
        freed = [free_after(place) for _ in range(KILLS)]
    return report(alone, together, freed, str(others))


def report(alone: list[Result], together: list[Result], freed: list[float], others: str) -> int:
    """Print what came of it, and return the exit code."""
    rates = [[one.gflops for one in ones] for ones in (alone, together)]
    medians = [statistics.median(each) for each in rates]
    difference = medians[1] / medians[0] - 1
    entered = sorted(together, key=lambda one: one.began)
    overtaken = sum(abs(one.number - at) >= SLOTS for at, one in enumerate(entered))
    overlaps = sum(
        earlier.ended > later.began
        for cpus in ([*one] for one in {tuple(one.cpus) for one in together})
        for earlier, later in pairwise([one for one in entered if one.cpus == cpus])
    )
    for name, each, median in zip(("alone", "in the queue"), rates, medians, strict=True):
        print(f"{name:12} {median:7.2f} GFLOP/s in the median, {min(each):.2f} to {max(each):.2f}")
    print(f"difference of the medians: {difference:+.1%}")
    print(f"overlaps {overlaps}, overtaken {overtaken}; the last waited {entered[-1].began - entered[-1].queued:.1f} s")
    print(f"a killed holder's slot is free after {statistics.median(freed):.3f} s, {max(freed):.3f} s at most")
    print(others)
    failed = overlaps or overtaken or abs(difference) > MAX_DIFFERENCE or max(freed) > MAX_FREE_S
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
