"""This machine's limits, in computing and in memory, and what share of them a workload reaches.

The limits are measured once, in a process of their own, and kept for each kind of machine in `roofline/`
among the state (`labkit.system.paths`).
The model is the roofline of Williams, Waterman and Patterson (2009), https://doi.org/10.1145/1498765.1498785.
"""

import dataclasses
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Column

from labkit.display.consistency import ABOVE
from labkit.display.measured import Measured
from labkit.roofline import peaks
from labkit.system import files, huge_pages, lease, load, processes
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.system.machine import TENSORFLOW, Machine
from labkit.system.paths import STATE
from labkit.system.progress import progress
from labkit.system.statistics import interval
from labkit.system.tables import plain_table

Kind = Literal["float32", "bfloat16", "int8"]
# What the CPU needs to compute in that kind, instead of converting: any of these (names of `machine.Machine.isa`).
INSTRUCTIONS: dict[Kind, set[str]] = {
    "float32": {"AVX", "NEON"},
    "bfloat16": {"BF16", "AMX"},
    "int8": {"VNNI", "AMX", "DotProd"},
}
# What there is not under a cap, a value of `ONEDNN_MAX_CPU_ISA`, which oneDNN heeds in TensorFlow and in OpenVINO.
BEYOND: dict[str, set[str]] = {
    "AVX512_CORE": {"VNNI", "BF16", "AMX"},
    "AVX512_CORE_VNNI": {"BF16", "AMX"},
    "AVX512_CORE_BF16": {"AMX"},
}

CACHE = STATE / "roofline"
SOFTWARE = (TENSORFLOW, "openvino", "numpy")
_FILES = ("peaks.py", "instructions.py", "instructions.c", "readers.py", "readers.c", "together.py")
METHOD = tuple(Path(__file__).with_name(name) for name in _FILES)
TIME_LIMIT_S = 300.0  # 20 where the machine does nothing else
# Beginnings of the variables that set threads, instructions or precision of the libraries that are measured; all are
# unset.
VARIABLE_PREFIXES = ("DNNL_", "GLIBC_TUNABLES", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OV_", "TF_", "XLA_")


@dataclass(frozen=True)
class Product:
    """A library's fastest matrix product.

    Attributes
    ----------
    library : str
        Whose it is.
    n : int
        Its matrices are n×n, or the first is (2n, n).
    speed : float
        GFLOP/s; GOP/s for int8 (2 operations for each multiplication that is added up).
    """

    library: str
    n: int
    speed: float


@dataclass(frozen=True)
class Limits:
    """What this machine does at most, on all cores that this process may use.

    Attributes
    ----------
    products : mapping of str to list of Product
        The libraries' matrix products by kind of number, the fastest first.
    instructions : mapping of str to dict
        By kind, the `instruction` that computes most and its `speed` from registers alone, in GFLOP/s or GOP/s: the
        peak. Empty where there is no compiler.
    streams : mapping of str to float
        GB/s of copying, adding and reading arrays that are much larger than the caches, as STREAM counts: the bytes
        that the program asks to read and write. All but "copy" and "add" are readers (`labkit.roofline.readers`).
    others : load.Others
        What else had the cores meanwhile.
    when : str
        The date of the measurement.
    isa : tuple of str
        As in `Machine`; under a cap, those that it leaves.
    runs : mapping of str to sequence of float
        The repetitions, by kind those of the fastest product; of "memory", those of the fastest stream, and of
        "reading", those of the fastest reader, in GB/s.
    """

    products: Mapping[str, list[Product]]
    instructions: Mapping[str, Mapping[str, Any]]
    streams: Mapping[str, float]
    others: load.Others
    when: str
    isa: tuple[str, ...]
    runs: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """The highest of `streams`, in GB/s."""
        return max(self.streams.values())

    @property
    def reader(self) -> str:
        """The name of the fastest reader, whose GB/s are the limit of whatever only reads memory."""
        return max(self.streams.keys() - peaks.STREAMS.keys(), key=self.streams.__getitem__)

    def peak(self, kind: Kind) -> float:
        """Return the speed of the fastest matrix product of a kind of number, in GFLOP/s or GOP/s."""
        if kind not in INSTRUCTIONS:
            raise LabError(f"there is no peak of {kind!r} here: choose from {', '.join(INSTRUCTIONS)}.")
        return self.products[kind][0].speed

    def measured(self, what: Kind | Literal["memory", "reading"]) -> Measured:
        """Return the peak of a kind of number, the bandwidth of "memory", or that of "reading" it, with its interval.

        It is the 95% interval of the mean over the faster half of the repetitions, since other work only slows them
        down, extended to the fastest, which is the limit.
        """
        if what in INSTRUCTIONS:
            value = self.peak(what)
        else:
            value = self.bandwidth if what == "memory" else self.streams[self.reader]
        low = high = math.nan
        if len(runs := self.runs.get(what, ())) > 2:
            mean, half = interval(np.log(sorted(runs)[len(runs) // 2 :]))
            low, high = min(value, math.exp(mean - half)), max(value, math.exp(mean + half))
        unit = {"memory": "GB/s", "reading": "GB/s", "int8": "GOP/s"}.get(what, "GFLOP/s")
        return Measured(value, low, high, unit, digits=1 if unit == "GB/s" else 0)

    def emulated(self, kind: Kind) -> bool:
        """Whether this CPU has no instructions for products in that kind, so that software makes up for them."""
        return INSTRUCTIONS[kind].isdisjoint(self.isa)

    def ridge(self, kind: Kind = "float32") -> float:
        """Return the intensity in FLOP/byte below which memory is the limit, and above which it is the cores."""
        return self.peak(kind) / self.bandwidth

    def attainable(self, intensity: float, kind: Kind = "float32") -> float:
        """Return the GFLOP/s (or GOP/s) that a workload of this intensity can reach: the roofline.

        Parameters
        ----------
        intensity : float
            Operations for each byte that is moved between memory and CPU; `math.inf` for what stays in the caches.
        """
        if not intensity > 0:
            raise LabError(f"intensity is in FLOP/byte, more than 0, not {intensity!r}.")
        return min(self.peak(kind), intensity * self.bandwidth)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as `json.dumps` takes it."""
        derived = {
            "peaks": {kind: self.peak(kind) for kind in INSTRUCTIONS},
            "bandwidth": self.bandwidth,
            "reading": self.streams[self.reader],
            "emulated": [kind for kind in INSTRUCTIONS if self.emulated(kind)],
        }
        return dataclasses.asdict(self) | {"others": self.others.as_dict()} | derived


def limits(again: bool = False, folder: Path = CACHE, cap: str | None = None, quick: bool = False) -> Limits:
    """Return this machine's limits: those kept, or else measured now, in about 20 s.

    Limits that can't be kept are returned with a warning.

    Parameters
    ----------
    again : bool
        Whether to measure in any case.
    folder : Path
        Where they are kept.
    cap : str, optional
        One of `BEYOND`: what the machine could do without newer instruction sets. Kept apart from the machine's own.
    quick : bool
        Whether, where none are kept, small products will do: too low a limit, which is not kept.

    Raises
    ------
    LabError
        When they can't be measured.
    """
    if cap is not None and cap not in BEYOND:
        raise LabError(f"there is no cap {cap!r}: choose from {', '.join(BEYOND)}.")
    machine = usable_machine()
    isa = tuple(name for name in machine.isa if cap is None or name not in BEYOND[cap])
    about = conditions(machine) | ({"cap": cap} if cap else {})
    file = path_for(about, folder)
    figures = None if again else _read(file, about)
    if figures is None:
        figures = {**_measure(isa, cap, quick), "when": time.strftime("%Y-%m-%d %H:%M")}
        if quick:
            return _limits(figures, isa)
        try:
            with files.writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            files.write(file, json.dumps({"about": about, "figures": figures}, indent=1))
        except files.NotWritten as error:
            files.warn(f"{error} Until then the limits are measured each time.")
    return _limits(figures, isa)


def _limits(figures: Mapping[str, Any], isa: tuple[str, ...]) -> Limits:
    others = load.Others("the machine's limits", "run ./lab roofline --again", **figures["others"])
    products = {
        kind: sorted((Product(**each) for each in figures["products"][kind]), key=lambda each: -each.speed)
        for kind in INSTRUCTIONS
    }
    return Limits(**{**figures, "others": others, "products": products}, isa=isa)


def conditions(machine: Machine) -> dict[str, Any]:
    """Return what the figures depend on: the machine, the software, and how it is measured."""
    return {
        "cpu": machine.model,
        "instruction sets": list(machine.isa),
        "cores": len(machine.cores),
        "usable cores": machine.usable_cores,
        "quota": machine.quota,
        "cpus of NUMA nodes": [len(node) for node in machine.numa],
        "software": {name: metadata.version(name) for name in SOFTWARE},
        "method": hashlib.sha256(b"".join(map(Path.read_bytes, METHOD))).hexdigest(),
    }


def path_for(about: Mapping[str, Any], folder: Path = CACHE) -> Path:
    """Return the file for such a machine; another kind of machine that shares the folder has another."""
    return folder / f"{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]}.json"


def _read(file: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the figures that are kept; None when there are none, or the file is damaged."""
    try:
        kept = files.read_json(file)
        _limits(kept["figures"], isa=())
        return kept["figures"] if kept["about"] == about else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _measure(isa: tuple[str, ...], cap: str | None, quick: bool) -> dict[str, Any]:
    """Run `labkit.roofline.peaks` in a process of its own; only the cap is set of what changes the figures."""
    settings: dict[str, Any] = {name: None for name in os.environ if name.startswith(VARIABLE_PREFIXES)}
    if cap:
        settings["ONEDNN_MAX_CPU_ISA"] = cap
    with lease.take(), progress("Measuring …") as report:
        ended = processes.run(
            [sys.executable, "-m", peaks.__name__, *isa, *["--quick"] * quick],
            # oneDNN, also on a CPU where TensorFlow does not use it by itself, and no news from TensorFlow. Large
            # pages, since a limit is the best there is.
            env=settings | {"TF_ENABLE_ONEDNN_OPTS": 1, "TF_CPP_MIN_LOG_LEVEL": 2} | huge_pages.VARIABLES,
            timeout=TIME_LIMIT_S,
            on_line=lambda line: report(line) if line.startswith("Measuring") else None,
        )
    results = [line for line in ended.lines if line.startswith("{")]
    if ended.failure or not results:
        last = f": {ended.lines[-1]}" if ended.lines else ""
        failure = ended.failure or "it printed no figures"
        raise LabError(f"the machine's limits could not be measured ({failure}{last}). To find out why: ./lab doctor")
    return json.loads(results[-1])


def render(limits: Limits, console: Console) -> None:
    """Show the limits in a small table, each with what it means."""
    table = plain_table(Column(), Column(justify="right", no_wrap=True), Column(overflow="fold"))
    for kind in INSTRUCTIONS:
        unit = "GOP/s" if kind == "int8" else "GFLOP/s"
        table.add_row(f"{kind} matrix products", str(limits.measured(kind)), _meaning(limits, kind))
        for other in limits.products[kind][1:]:
            table.add_row("", f"{other.speed:,.0f} {unit}", f"{other.library}, n = {other.n:,}")
        if paper := limits.instructions.get(kind):
            share = f"{paper['instruction']}, of which the product reaches {limits.peak(kind) / paper['speed']:.0%}"
            share += ": the machine was slower for the instruction" * (limits.peak(kind) > ABOVE * paper["speed"])
            table.add_row("", f"{paper['speed']:,.0f} {unit}", f"the instruction's peak, {share}")
    streams = ", ".join(f"{name} {speed:,.1f}" for name, speed in limits.streams.items())
    table.add_row("memory bandwidth", str(limits.measured("memory")), f"{streams}: arrays beyond the caches")
    table.add_row("reading alone", str(limits.measured("reading")), f"the fastest reader: {limits.reader}")
    console.print(table)
    ridges = ", ".join(f"{limits.ridge(kind):.0f} in {kind}" for kind in INSTRUCTIONS)
    lines = (
        "",
        "The instruction's peak is measured too: the instruction alone, on numbers that are in registers."
        if limits.instructions
        else "The instruction's peak was not measured: there is no C compiler, or no AVX2.",
        f"Memory limits what does fewer operations for each byte than {ridges}; the cores limit the rest.",
        "A byte counts when the program asks to read or write it.",
        f"Measured {limits.when}.",
        *([str(limits.others)] if limits.others.busy else []),
    )
    console.print("\n".join(lines), highlight=False, markup=False)


def _meaning(limits: Limits, kind: Kind) -> str:
    best = limits.products[kind][0]
    ratio = "" if kind == "float32" else f"{best.speed / limits.peak('float32'):.1f} × float32; "
    by = f"{best.library}, n = {best.n:,}"
    return f"{ratio}{by}{'; emulated, as this CPU has no instructions for it' * limits.emulated(kind)}"
