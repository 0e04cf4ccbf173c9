"""Benchmark configurations, and their comparison: they run alternately, each in its own processes."""

import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from rich.table import Column, Table

from labkit.measure import Measured, alternate
from labkit.measure import compare as compare_figures
from labkit.mpi import torch_ranks
from labkit.system import compiler, files, processes
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import Machine
from labkit.system.terminal import plain_table

TIME_LIMIT_S = 1800.0  # per process
TAIL_LINES = 4  # the lines shown of a failed process
# Thread and OpenMP variables are part of a configuration, so the caller's are cleared.
_CLEARED = (
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_SETTINGS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "GLIBC_TUNABLES",
)
PYTORCH, COMPILED = "--framework=pytorch", "--torch_compile"
# The suffixes of configuration names, in the order in which they are written.
SUFFIXES = "compile", "threads", "intel", "sleep", "bf16"


@dataclass(frozen=True)
class Configuration:
    """A configuration of the benchmark.

    Attributes
    ----------
    env : mapping of str to object
        Environment variables; values are converted to text.
    flags : tuple of str
        Flags of `python -m labkit.bench`.
    """

    env: Mapping[str, object] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def __add__(self, other: "Configuration") -> "Configuration":
        """Return a configuration with the settings of both."""
        return Configuration({**self.env, **other.env}, self.flags + other.flags)

    @property
    def missing(self) -> str:
        """The reason why it cannot run on this machine, and the remedy; empty if it can."""
        if PYTORCH in self.flags and (why := torch_ranks.obstacle()):
            return why
        if "LD_PRELOAD" in self.env and platform.machine() != "x86_64":
            return "there is no package of Intel's OpenMP for Arm"
        if " " in str(self.env.get("LD_PRELOAD", "")):
            return "libraries can't be preloaded from a path with a space: move this folder"
        if COMPILED in self.flags and (why := compiler.obstacle()):
            return f"for torch.compile, {why}"
        return ""


def known(machine: Machine | None = None) -> dict[str, Configuration]:
    """Return the kit's configurations by name, with thread counts for this machine.

    A name is a base, `eigen`, `onednn` or `torch`, followed by any suffixes that it supports, in the order of
    `SUFFIXES`, such as `onednn-threads-bf16`.

    PyTorch's threads are OpenMP's: `-threads` sets their number. PyTorch ships GNU's OpenMP; `-intel` preloads Intel's,
    as PyTorch's launcher, `python -m torch.backends.xeon.run_cpu`, does if it is installed. `-sleep` sets
    OMP_WAIT_POLICY, which both read. Without it, a waiting thread of GNU's OpenMP spins for a few milliseconds, and one
    of Intel's for 200 ms.
    """
    cores = (machine or usable_machine()).usable_cores
    common = {"bf16": Configuration(flags=("--use_fp16",))}
    tensorflow = common | {
        # A network's layers wait for each other: one operation at a time, with all cores.
        "threads": Configuration(flags=(f"--num_intra_threads={cores}", "--num_inter_threads=1")),
    }
    pytorch = common | {
        "compile": Configuration(flags=(COMPILED,)),
        "threads": Configuration({"OMP_NUM_THREADS": cores}),
        "intel": Configuration({"LD_PRELOAD": torch_ranks.packages() / "lib/libiomp5.so"}),
        "sleep": Configuration({"OMP_WAIT_POLICY": "passive"}),
    }
    added = {"eigen": tensorflow, "onednn": tensorflow, "torch": pytorch}
    configurations = {
        "eigen": Configuration({"TF_ENABLE_ONEDNN_OPTS": 0}),
        "onednn": Configuration({"TF_ENABLE_ONEDNN_OPTS": 1}),
        "torch": Configuration(flags=(PYTORCH,)),
    }
    for suffix in SUFFIXES:
        configurations |= {
            f"{name}-{suffix}": base + more
            for name, base in configurations.items()
            if (more := added[name.partition("-")[0]].get(suffix))
        }
    return configurations


class Comparison(NamedTuple):
    """The results of a comparison of configurations.

    Attributes
    ----------
    speeds : dict of str to Measured
        The images/s of each configuration that ran.
    skipped : dict of str to str
        The reasons why the others can't run on this machine.
    """

    speeds: dict[str, Measured]
    skipped: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison in a form for `json.dumps`."""
        speeds = {name: {"rounds": speed.rounds, **(speed.numbers() or {})} for name, speed in self.speeds.items()}
        return {"speeds": speeds, "skipped": self.skipped}


def compare(names: Sequence[str], *flags: object, rounds: int = 3) -> Comparison:
    """Run configurations alternately, each time in a new process.

    Parameters
    ----------
    names : sequence of str
        Names of `known()`.
    flags
        Flags of `python -m labkit.bench` for all configurations.
    rounds : int
        Runs of each configuration.

    Raises
    ------
    LabError
        When a name is unknown, a run fails, or no configuration can run on this machine.
    """
    chosen = choose(names)
    skipped = {name: reason for name, configuration in chosen.items() if (reason := configuration.missing)}
    for name, reason in skipped.items():
        print(f"{name} is skipped: {reason}")
    variants = {name: partial(_speed, name, chosen[name], flags) for name in chosen if name not in skipped}
    if not variants:
        raise LabError("no configuration can run here: see the reasons above.")
    if any(COMPILED in chosen[name].flags for name in variants):
        print("torch.compile takes over a minute the first time; later runs reuse its result.", flush=True)
    return Comparison(alternate(variants, rounds, "images/s", f"lab bench --config {','.join(variants)}"), skipped)


def _speed(name: str, configuration: Configuration, flags: Sequence[object]) -> float:
    """Return the images/s of one run."""
    try:
        return float(run_once(configuration, *flags)["images_per_second"])
    except LabError as error:
        raise LabError(f"{name}: {error}") from error


def choose(names: Sequence[str]) -> dict[str, Configuration]:
    """Return the configurations of these names.

    Raises
    ------
    LabError
        When a name is unknown.
    """
    configurations = known()
    if unknown := [name for name in names if name not in configurations]:
        bases = ", ".join(name for name in configurations if "-" not in name)
        raise LabError(
            f"there is no configuration {unknown[0]!r}: choose from {bases}, each with any suffixes in this order: "
            f"{', '.join(f'-{suffix}' for suffix in SUFFIXES)} (-compile, -intel and -sleep only for torch)."
        )
    return {name: configurations[name] for name in names}


def run_once(configuration: Configuration, *flags: object) -> dict[str, Any]:
    """Run the benchmark once in a configuration, and return its result, as in `--json`.

    Raises
    ------
    LabError
        When it fails, with its last lines, or times out.
    """
    with files.temporary_folder() as folder:
        out = folder / "result.json"
        done = processes.run(
            [sys.executable, "-m", "labkit.bench", *configuration.flags, *map(str, flags), f"--json={out}"],
            env=dict.fromkeys(_CLEARED) | dict(configuration.env),
            timeout=TIME_LIMIT_S,
        )
        if done.failure:
            raise LabError("\n  ".join([f"{done.failure}. Its last lines:", *done.lines[-TAIL_LINES:]]))
        result: dict[str, Any] = files.read_json(out)
        return result


def table(comparison: Comparison) -> Table:
    """Return the table of a comparison, with ratios to its first configuration."""
    speeds = comparison.speeds
    first = next(iter(speeds))
    heads = Column("images/s", justify="right"), Column(f"vs {first}", justify="right")
    rows = plain_table(Column("configuration"), *heads, header=True)
    rows.caption_justify = "left"
    for name, speed in speeds.items():
        times = "1" if name == first else str(compare_figures(speed, speeds[first]))
        rows.add_row(name, f"{speed.value:,.2f}", times)
    for name, reason in comparison.skipped.items():
        rows.add_row(name, "–", reason.splitlines()[0])
    rounds = len(speeds[first].rounds)
    brackets = (
        "the rounds, too few for a verdict" if math.isnan(speeds[first].low) else f"95% interval, {rounds} rounds"
    )
    rows.caption = f"in brackets: {brackets}"
    return rows
