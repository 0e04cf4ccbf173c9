"""Configurations of the benchmark, and their comparison: they run alternately, each in its own processes."""

import json
import os
import platform
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Column, Table

from labkit.mpi import torch_ranks
from labkit.system import huge_pages, load, paths, preload, processes, scratch
from labkit.system.errors import LabError
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine
from labkit.system.statistics import Ratio, caption, doubt, ratios
from labkit.system.tables import plain_table

TIME_LIMIT_S = 1800.0  # the limit of one process
TAIL_LINES = 4  # the last lines of a failed process that are shown
# Variables of threads and OpenMP belong to a configuration: those of the caller's environment would change it.
_CLEARED = (
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "KMP_SETTINGS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "GLIBC_TUNABLES",
)
PYTORCH, COMPILED = "--framework=pytorch", "--torch_compile"
STOCK, OPENMP = Path(sys.executable), paths.OPENMP_PYTHON
# Each suffix of a configuration's name, in the order in which they are written, and what it stands for.
SUFFIXES = {
    "compile": "compiled by torch.compile",
    "threads": "a thread for each core, one operation at a time",
    "bf16": "bfloat16",
    "fused": "shortcuts fused by XLA",
    "xla": "the whole step compiled by XLA",
    "huge": "pages of 2 MB",
    "interleave": "memory spread over the NUMA nodes",
}
# From default to fast: what --config all compares.
LADDER = (
    *("eigen", "onednn", "onednn-threads", "onednn-threads-bf16", "onednn-threads-bf16-fused-huge"),
    *("torch", "torch-threads-bf16", "torch-compile-threads-bf16-huge"),
)


@dataclass(frozen=True)
class Configuration:
    """One way to run the benchmark.

    Attributes
    ----------
    description : str
        One line.
    python : Path
        The Python of its environment.
    env : mapping of str to object
        Variables; their values are written as text.
    flags : tuple of str
        Flags of `python -m labkit.bench`.
    prefix : tuple of str
        The words before the command.
    """

    description: str
    python: Path = STOCK
    env: Mapping[str, object] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    def command(self, *flags: object) -> str:
        """Return the command that runs it, typed at the checkout's root."""
        variables = [f"{name}={_shown(value)}" for name, value in self.env.items()]
        return " ".join(
            [*variables, *self.prefix, _shown(self.python), "-m labkit.bench", *self.flags, *map(str, flags)]
        )

    @property
    def missing(self) -> str:
        """A reason why it cannot run here, and what to do; empty when it can."""
        if not self.python.exists():
            if self.python == OPENMP:
                return "the TensorFlow of 2023 is not here. With Python 3.11, `./lab setup --openmp` brings it: 1.2 GB"
            return f"{_shown(self.python)} is not there"
        if PYTORCH in self.flags and (why := torch_ranks.obstacle()):
            return why
        if "LD_PRELOAD" in self.env and platform.machine() != "x86_64":
            return "Intel's OpenMP has no package for Arm"
        if " " in str(self.env.get("LD_PRELOAD", "")):
            return "a library can't be preloaded from a path with a blank: move this folder"
        if COMPILED in self.flags and not shutil.which(compiler := os.environ.get("CXX") or preload.COMPILER):
            return f"torch.compile needs a C++ compiler: sudo apt-get install {compiler}"
        if huge_pages.VARIABLES.items() <= self.env.items() and (why := huge_pages.problem()):
            return why
        if self.prefix and shutil.which(self.prefix[0]) is None:
            return f"{self.prefix[0]} is not installed: sudo apt-get install {self.prefix[0]}"
        return ""


def _shown(value: object) -> str:
    return str(value).replace(f"{paths.ROOT}/", "")


def known(machine: Machine | None = None) -> dict[str, Configuration]:
    """Return the kit's configurations by name, with the number of threads that fits this machine.

    A name is a base, `eigen`, `onednn`, `torch` or `openmp`, and any of the suffixes that it can have, in the order of
    `SUFFIXES`, such as `onednn-threads-bf16-huge`.

    For PyTorch, `-threads` sets the variables that `python -m torch.backends.xeon.run_cpu --ninstances 1` sets:
    OMP_NUM_THREADS, KMP_AFFINITY and KMP_BLOCKTIME with the same values, and LD_PRELOAD for Intel's OpenMP. That
    launcher also preloads tcmalloc or jemalloc if it finds one, and restricts the process to its cores with numactl or
    taskset.
    """
    cores = (machine or usable_machine()).usable_cores
    onednn = {"TF_ENABLE_ONEDNN_OPTS": 1}
    # fine: one hardware thread each; compact,1,0: neighbours on neighbouring cores, SMT siblings last.
    kmp = {"OMP_NUM_THREADS": cores, "KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": 1}
    intel = Configuration("", env=kmp | {"LD_PRELOAD": torch_ranks.packages() / "lib/libiomp5.so"})
    # A network's layers wait for each other: one operation at a time, with all cores.
    one_at_a_time = Configuration("", flags=(f"--num_intra_threads={cores}", "--num_inter_threads=1"))
    every = {
        "bf16": Configuration("", flags=("--use_fp16",)),
        "huge": Configuration("", env=huge_pages.VARIABLES),
        "interleave": Configuration("", prefix=("numactl", "--interleave=all")),
    }
    tensorflow = every | {
        "threads": one_at_a_time,
        "fused": Configuration("", flags=("--fused_shortcuts",)),
        "xla": Configuration("", flags=("--xla_compile",)),
    }
    pytorch = every | {"threads": intel, "compile": Configuration("", flags=(COMPILED,))}
    bases = {
        "eigen": (Configuration("TensorFlow's own kernels", env={"TF_ENABLE_ONEDNN_OPTS": 0}), tensorflow),
        "onednn": (Configuration("oneDNN on TensorFlow's threads", env=onednn), tensorflow),
        "torch": (Configuration("PyTorch", flags=(PYTORCH,)), pytorch),
        "openmp": (
            Configuration("oneDNN on OpenMP's threads, TensorFlow 2.14 of 2023", OPENMP, onednn),
            tensorflow | {"threads": replace(one_at_a_time, env=kmp)},
        ),
    }
    configurations = {name: base for name, (base, _) in bases.items()}
    for suffix, description in SUFFIXES.items():
        configurations |= {
            f"{name}-{suffix}": replace(
                simpler,
                description=f"{simpler.description}, {description}",
                flags=(*simpler.flags, *added.flags),
                env={**simpler.env, **added.env},
                prefix=(*added.prefix, *simpler.prefix),
            )
            for name, simpler in configurations.items()
            if (added := bases[name.partition("-")[0]][1].get(suffix))
        }
    return configurations


class Comparison(NamedTuple):
    """The results of a comparison of configurations.

    Attributes
    ----------
    results : dict of str to list of dict
        The results of each configuration that ran, as `--json` has them, round by round.
    failed : dict of str to str
        The reasons why the others did not run.
    others : load.Others
        Other work that had the cores meanwhile.
    """

    results: dict[str, list[dict[str, Any]]]
    failed: dict[str, str]
    others: load.Others = load.Others()

    def as_dict(self) -> dict[str, Any]:
        """Return it as `json.dumps` takes it."""
        return self._asdict() | {"others": self.others.as_dict()}

    def rates(self, name: str) -> list[float]:
        """Return images per second, round by round."""
        return [result["images_per_second"] for result in self.results[name]]

    def rate(self, name: str) -> float:
        """Return images per second: the geometric mean of the rounds, so that two rates have the ratio of `ratio`."""
        return statistics.geometric_mean(self.rates(name))

    def gflops(self, name: str) -> float:
        """Return GFLOP/s in convolutions and matrix products: the geometric mean of the rounds."""
        return statistics.geometric_mean(result["gflops"] for result in self.results[name])

    def ratio(self, name: str, reference: str) -> Ratio:
        """Return the ratio of its speed to that of `reference`; the interval has the noise of these two."""
        return ratios({each: self.rates(each) for each in (name, reference)}, reference)[name]


def compare(
    configurations: Sequence[str] | Mapping[str, Configuration],
    *flags: object,
    rounds: int = 3,
    where: str = "",
) -> Comparison:
    """Run configurations alternately, so that lasting noise affects all alike, and print each result.

    Parameters
    ----------
    configurations : sequence of str, or mapping of str to Configuration
        Names of `known()`, or other configurations.
    flags
        Of `python -m labkit.bench`, for all of them.
    rounds : int
        Runs of each configuration, each in a process of its own.
    where : str
        The name of this comparison, such as "section 7": the part to run again when other work had the cores.

    Raises
    ------
    LabError
        When a name is not known, or no configuration could run.
    """
    if not isinstance(configurations, Mapping):
        configurations = choose(configurations)
    failed = {name: one.missing for name, one in configurations.items() if one.missing}
    for name, reason in failed.items():
        print(f"{name} is left out: {reason}")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in configurations if name not in failed}
    width = max(map(len, configurations))
    if any(COMPILED in configurations[name].flags for name in results):
        print("torch.compile takes over a minute the first time here; later runs find its result on disk.", flush=True)
    with load.watch(where) as others:
        for number in range(1, rounds + 1):
            for name in [name for name in results if name not in failed]:
                print(f"round {number} of {rounds}  {name:{width}}", end="  ", flush=True)
                try:
                    results[name].append(run_once(configurations[name], *flags))
                except LabError as error:
                    failed[name] = str(error)
                    print(f"failed: {error}", flush=True)
                else:
                    print(f"{results[name][-1]['images_per_second']:10,.2f} images/s", flush=True)
    results = {name: each for name, each in results.items() if name not in failed}
    if not results:
        raise LabError(
            "no configuration could run. " + " ".join(f"{name}: {reason}." for name, reason in failed.items())
        )
    comparison = Comparison(results, failed, others)
    if unsteady := doubt(comparison.rates(next(iter(results)))):
        print(unsteady, flush=True)
    return comparison


def choose(names: Sequence[str]) -> dict[str, Configuration]:
    """Return the configurations of these names; `all` is `LADDER`, from default to fast.

    Raises
    ------
    LabError
        When a name is not known.
    """
    configurations = known()
    if list(names) == ["all"]:
        names = LADDER
    if unknown := [name for name in names if name not in configurations]:
        bases = ", ".join(name for name in configurations if "-" not in name)
        raise LabError(
            f"there is no configuration {unknown[0]!r}: there are {bases}, each with suffixes in this order: "
            f"{', '.join(f'-{suffix}' for suffix in SUFFIXES)} (-compile only for torch, -fused and -xla not for it)."
        )
    return {name: configurations[name] for name in names}


def run_once(configuration: Configuration, *flags: object) -> dict[str, Any]:
    """Run the benchmark once in a configuration, and return its result as `--json` has it.

    Raises
    ------
    LabError
        When it fails, with its last lines, or is not over in time.
    """
    with scratch.folder() as folder:
        out = folder / "result.json"
        run(configuration, *flags, f"--json={out}")
        return json.loads(out.read_text(encoding="utf-8"))


def run(configuration: Configuration, *flags: object) -> tuple[str, ...]:
    """Run the benchmark once in a configuration, and return the lines that it prints, errors included.

    Raises
    ------
    LabError
        When it fails, with its last lines, or is not over in time.
    """
    command = [*configuration.prefix, str(configuration.python), "-m", "labkit.bench"]
    # labkit is not installed in the other environment
    path = {"PYTHONPATH": paths.ROOT} if configuration.python != STOCK else {}
    done = processes.run(
        [*command, *configuration.flags, *map(str, flags)],
        env=dict.fromkeys(_CLEARED) | path | dict(configuration.env),
        timeout=TIME_LIMIT_S,
    )
    if done.failure:
        raise LabError("\n  ".join([f"{done.failure}. Its last lines:", *done.lines[-TAIL_LINES:]]))
    return done.lines


def table(comparison: Comparison) -> Table:
    """Return the table of a comparison; ratios are to its first configuration."""
    first = next(iter(comparison.results))
    heads = ("images/s", f"times {first}", "GFLOP/s")
    rows = plain_table(Column("configuration"), *(Column(head, justify="right") for head in heads), header=True)
    rows.caption_justify = "left"
    notes = [str(comparison.others)] if comparison.others.busy else []
    for name in comparison.results:
        ratio = comparison.ratio(name, first)
        notes += [f"{name}: {ratio.by_rank}"] if ratio.by_rank else []
        times = "1" if name == first else str(ratio)
        rows.add_row(name, f"{comparison.rate(name):,.2f}", times, f"{comparison.gflops(name):,.0f}")
    for name, reason in comparison.failed.items():
        rows.add_row(name, "–", reason.splitlines()[0])
    rows.caption = "\n".join([caption(len(comparison.results[first])), *notes])
    return rows
