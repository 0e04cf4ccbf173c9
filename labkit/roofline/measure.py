"""This machine's compute and memory limits, and the share of them that a workload reaches.

The limits are measured once, in a separate process, and cached for each kind of machine in `roofline/`
in the state folder (`labkit.system.paths`).
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

from rich.console import Console
from rich.table import Column

from labkit.measure.comparison import MAX_SHARE
from labkit.measure.figures import Measured, Source, decimals, summarize
from labkit.roofline import peaks
from labkit.system import cores, files, load, processes, terminal
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import HUGE_PAGES, TENSORFLOW, Machine
from labkit.system.paths import STATE
from labkit.system.terminal import plain_table, progress

DType = Literal["float32", "bfloat16", "int8"]
# Instruction sets with native arithmetic in each dtype; any of them will do (names of `machine.Machine.isa`).
INSTRUCTIONS: dict[DType, set[str]] = {
    "float32": {"AVX", "NEON"},
    "bfloat16": {"BF16", "AMX"},
    "int8": {"VNNI", "AMX", "DotProd"},
}

CACHE = STATE / "roofline"
SOFTWARE = (TENSORFLOW, "openvino", "numpy")
_FILES = ("peaks.py", "instructions.py", "instructions.c", "readers.py", "readers.c", "together.py")
METHOD = tuple(Path(__file__).with_name(name) for name in _FILES)
TIME_LIMIT_S = 300.0  # 20 s on an idle machine
# Prefixes of variables that set threads, instructions or precision of the measured libraries; all are unset.
VARIABLE_PREFIXES = ("DNNL_", "GLIBC_TUNABLES", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OV_", "TF_", "XLA_")


@dataclass(frozen=True)
class Matmul:
    """A library's fastest matmul.

    Attributes
    ----------
    library : str
        The library's name.
    n : int
        Its matrices are n×n, or the first is (2n, n).
    speed : float
        GFLOP/s; GOP/s for int8 (a multiply-add is 2 operations).
    """

    library: str
    n: int
    speed: float


@dataclass(frozen=True)
class Limits:
    """This machine's limits, on all cores that this process may use.

    Attributes
    ----------
    products : mapping of str to list of Matmul
        The libraries' matmuls by dtype, fastest first.
    instructions : mapping of str to dict
        By dtype, the fastest `instruction` and its peak `speed` on registers, in GFLOP/s or GOP/s. Empty without a
        compiler.
    streams : mapping of str to float
        GB/s of copying, adding and reading arrays much larger than the caches, counted as in STREAM: the bytes that the
        program reads and writes. All but "copy" and "add" are readers (`labkit.roofline.readers`).
    others : load.Contention
        Other work on the cores meanwhile.
    when : str
        The date of the measurement.
    isa : tuple of str
        As in `Machine`.
    runs : mapping of str to sequence of float
        Repetitions: by dtype those of the fastest matmul, and for "memory" those of the fastest stream, in GB/s.
    """

    products: Mapping[str, list[Matmul]]
    instructions: Mapping[str, Mapping[str, Any]]
    streams: Mapping[str, float]
    others: load.Contention
    when: str
    isa: tuple[str, ...]
    runs: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """The highest of `streams`, in GB/s."""
        return max(self.streams.values())

    def peak(self, dtype: DType) -> float:
        """Return the speed of the fastest matmul in a dtype, in GFLOP/s or GOP/s."""
        return self.products[dtype][0].speed

    def measured(self, what: DType | Literal["memory"]) -> Measured:
        """Return the peak in a dtype, or the bandwidth of "memory", with its interval.

        Nothing makes a repetition faster than the limit, so the fastest one is the limit. The interval begins where
        that of the repetitions' median does.
        """
        value = self.bandwidth if what == "memory" else self.peak(what)
        unit = {"memory": "GB/s", "int8": "GOP/s"}.get(what, "GFLOP/s")
        source = Source("lab roofline", self.when)
        figure = summarize(self.runs.get(what) or [value], unit, source, (self.others,))
        high = math.nan if math.isnan(figure.low) else value
        return dataclasses.replace(figure, value=value, high=high, digits=decimals(value), rounds=())

    def emulated(self, dtype: DType) -> bool:
        """Whether matmuls in a dtype are emulated, because this CPU has no instructions for it."""
        return INSTRUCTIONS[dtype].isdisjoint(self.isa)

    def ridge(self, dtype: DType = "float32") -> float:
        """Return the ridge point in FLOP/byte: work below it is memory-bound, work above it compute-bound."""
        return self.peak(dtype) / self.bandwidth

    def as_dict(self) -> dict[str, Any]:
        """Return everything in a form for `json.dumps`."""
        derived = {
            "peaks": {dtype: self.peak(dtype) for dtype in INSTRUCTIONS},
            "bandwidth": self.bandwidth,
            "emulated": [dtype for dtype in INSTRUCTIONS if self.emulated(dtype)],
        }
        return dataclasses.asdict(self) | {"others": self.others.as_dict()} | derived


def limits(again: bool = False, quick: bool = False) -> Limits:
    """Return this machine's limits, from a cache or, if it has none, measured now in about 20 s.

    If they can't be cached, they are returned with a warning.

    Parameters
    ----------
    again : bool
        Whether to measure even if limits are cached.
    quick : bool
        Whether small matmuls will do if none are cached: the limits are too low, and cached separately.

    Raises
    ------
    LabError
        When they can't be measured.
    """
    machine = usable_machine()
    isa, about = tuple(machine.isa), conditions(machine)
    if quick and not path_for(about).exists():
        about["quick"] = True
    file = path_for(about)
    figures = None if again else _read(file, about)
    if figures is None:
        figures = {**_measure(isa, quick), "when": time.strftime("%Y-%m-%d %H:%M")}
        try:
            with files.writing(CACHE):
                CACHE.mkdir(parents=True, exist_ok=True)
            files.write(file, json.dumps({"about": about, "figures": figures}, indent=1))
        except files.NotWritten as error:
            terminal.warn(f"{error} Until then the limits are measured each time.")
    return _limits(figures, isa)


def _limits(figures: Mapping[str, Any], isa: tuple[str, ...]) -> Limits:
    others = load.Contention("the machine's limits", "run ./lab roofline --again", **figures["others"])
    products = {
        dtype: sorted((Matmul(**each) for each in figures["products"][dtype]), key=lambda each: -each.speed)
        for dtype in INSTRUCTIONS
    }
    return Limits(**{**figures, "others": others, "products": products}, isa=isa)


def conditions(machine: Machine) -> dict[str, Any]:
    """Return the conditions of the figures: machine, software and method."""
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


def path_for(about: Mapping[str, Any]) -> Path:
    """Return the file for such a machine; different machines that share the folder have different files."""
    return CACHE / f"{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]}.json"


def _read(file: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the cached figures; None if there are none, or the file is damaged."""
    try:
        cached = files.read_json(file)
        _limits(cached["figures"], isa=())
        return cached["figures"] if cached["about"] == about else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _measure(isa: tuple[str, ...], quick: bool) -> dict[str, Any]:
    """Run `labkit.roofline.peaks` in a separate process, without variables that affect figures."""
    settings: dict[str, Any] = {name: None for name in os.environ if name.startswith(VARIABLE_PREFIXES)}
    with cores.reserve(), progress("Measuring …") as report:
        ended = processes.run(
            [sys.executable, "-m", peaks.__name__, *isa, *["--quick"] * quick],
            # Use oneDNN even on CPUs where TensorFlow doesn't by default, hide TensorFlow's notices, and use huge
            # pages, since a limit is a best case.
            env=settings | {"TF_ENABLE_ONEDNN_OPTS": 1, "TF_CPP_MIN_LOG_LEVEL": 2} | HUGE_PAGES,
            timeout=TIME_LIMIT_S,
            on_line=lambda line: report(line) if line.startswith("Measuring") else None,
        )
    results = [line for line in ended.lines if line.startswith("{")]
    if ended.failure or not results:
        last = f": {ended.lines[-1]}" if ended.lines else ""
        failure = ended.failure or "it printed no figures"
        raise LabError(f"cannot measure the machine's limits ({failure}{last}). To find out why: ./lab doctor")
    figures: dict[str, Any] = json.loads(results[-1])
    return figures


def render(limits: Limits, console: Console) -> None:
    """Show the limits in a small table, each with an explanation."""
    table = plain_table(Column(), Column(justify="right", no_wrap=True), Column(overflow="fold"))
    for dtype in INSTRUCTIONS:
        unit = "GOP/s" if dtype == "int8" else "GFLOP/s"
        table.add_row(f"{dtype} matmul", str(limits.measured(dtype)), _meaning(limits, dtype))
        for other in limits.products[dtype][1:]:
            table.add_row("", f"{other.speed:,.0f} {unit}", f"{other.library}, n = {other.n:,}")
        if fastest := limits.instructions.get(dtype):
            share = f"{fastest['instruction']}; the matmul reaches {limits.peak(dtype) / fastest['speed']:.0%}"
            slower = 100 * limits.peak(dtype) > MAX_SHARE * fastest["speed"]
            share += " (the machine was slower for the instruction)" * slower
            table.add_row("", f"{fastest['speed']:,.0f} {unit}", f"instruction peak, {share}")
    streams = ", ".join(f"{name} {speed:,.1f}" for name, speed in limits.streams.items())
    table.add_row("memory bandwidth", str(limits.measured("memory")), f"{streams}, beyond the caches")
    console.print(table)
    ridges = ", ".join(f"{limits.ridge(dtype):.0f} in {dtype}" for dtype in INSTRUCTIONS)
    lines = (
        "",
        "The instruction peak is measured on values in registers."
        if limits.instructions
        else "The instruction peak was not measured: no C compiler, or no AVX2.",
        f"Work with fewer operations per byte than {ridges} is memory-bound; the rest is compute-bound.",
        "Bytes are those that the program reads and writes.",
        f"Measured {limits.when}.",
        *([str(limits.others)] if limits.others.busy else []),
    )
    console.print("\n".join(lines), highlight=False, markup=False)


def _meaning(limits: Limits, dtype: DType) -> str:
    best = limits.products[dtype][0]
    ratio = "" if dtype == "float32" else f"{best.speed / limits.peak('float32'):.1f} × float32; "
    by = f"{best.library}, n = {best.n:,}"
    return f"{ratio}{by}{'; emulated (this CPU has no instructions for it)' * limits.emulated(dtype)}"
