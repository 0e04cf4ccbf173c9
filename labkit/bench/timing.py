"""Output, timed steps and result of one measurement, with either framework.

The output format is that of tf_cnn_benchmarks, which users' scripts parse.
"""

import ctypes
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.bench.config import BenchConfig
from labkit.system import files, load
from labkit.system.cores import usable_machine

# Prefixes of variables that affect speed, and so are recorded in the JSON.
VARIABLE_PREFIXES = (
    *("TF_", "OMP_", "KMP_", "GOMP_", "ONEDNN_", "DNNL_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "HOROVOD_"),
    *("XLA_", "TORCHINDUCTOR_"),
)


class Speed(NamedTuple):
    """Images per second over some steps, with the statistics of tf_cnn_benchmarks."""

    mean: float  # total images divided by total time
    uncertainty: float  # the standard error of the steps' speeds
    jitter: float  # their median absolute deviation, times 1.4826: a normal distribution's standard deviation

    def __str__(self) -> str:
        """Return the speed as `images/sec: 17.3 +/- 0.1 (jitter = 0.4)`."""
        return f"images/sec: {self.mean:.1f} +/- {self.uncertainty:.1f} (jitter = {self.jitter:.1f})"


def speed(count: int, seconds: list[float]) -> Speed:
    """Return the speed of steps with `count` images each."""
    speeds = count / np.asarray(seconds)
    jitter = 1.4826 * float(np.median(np.abs(speeds - np.median(speeds))))
    return Speed(count / statistics.fmean(seconds), float(speeds.std() / len(speeds) ** 0.5), jitter)


class Run:
    """A measurement, which starts by printing its header; only rank 0 prints and writes."""

    def __init__(self, config: BenchConfig, framework: str, version: str, rank: int = 0, ranks: int = 1):
        self.config, self.rank, self.ranks = config, rank, ranks
        self.versions = {framework.lower(): version}
        self.report(_header(config, framework, version, ranks))
        self.report(f"Generating {'evaluation' if config.forward_only else 'training'} model")

    def report(self, text: str) -> None:
        """Print a line."""
        if self.rank == 0:
            print(text, flush=True)

    def time(self, step: Callable[[], float], flops: int) -> None:
        """Warm up, time steps, and write the result if requested.

        `step` runs a step and returns its loss; `flops` are its operations per image.
        """
        config = self.config
        self.report("Running warm up")
        for _ in range(config.num_warmup_batches):
            step()
        self.report("Done warm up\nStep\tImg/sec\ttotal_loss")

        seconds: list[float] = []
        losses: list[float] = []
        count = config.batch_size * self.ranks
        with load.observe(unknown="the other ranks use the cores too" if self.ranks > 1 else "") as others:
            began = before = time.perf_counter()
            for number in range(1, config.num_batches + 1):
                losses.append(step())
                now = time.perf_counter()
                seconds.append(now - before)
                before = now
                if number == 1 or number % config.display_every == 0:
                    self.report(f"{number}\t{speed(count, seconds)}\t{losses[-1]:.3f}")
        total = count * config.num_batches / (before - began)
        self.report(f"{'-' * 64}\ntotal images/sec: {total:.2f}\n{'-' * 64}")
        if others.busy:
            self.report(str(others))
        if config.json and self.rank == 0:
            _, uncertainty, jitter = speed(count, seconds)
            result = {
                "images_per_second": total,
                "uncertainty": uncertainty,
                "jitter": jitter,
                "gflop_per_image": flops / 1e9,
                "gflops": flops * total / 1e9,
                "seconds": seconds,
                "losses": losses,
                "ranks": self.ranks,
                "others": others.as_dict(),
            }
            files.write(config.json, json.dumps(result | _conditions(config, self.versions), indent=1))


def openmp_library(maps: Path = Path("/proc/self/maps")) -> str:
    """Return the file name of the OpenMP library that this process's threads use, such as "libgomp.so.1".

    Several may be loaded: the one that the dynamic linker finds first counts, so a preloaded library. The name is empty
    if there is none, or only those that packages such as scikit-learn load for themselves.
    """
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)  # compiled code calls it; Intel's OpenMP has it too
    if function is None:
        return ""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    for line in maps.read_text(encoding="utf-8").splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return Path(line.split(maxsplit=5)[-1]).name
    return ""


def _header(config: BenchConfig, framework: str, version: str, ranks: int) -> str:
    emulated = "" if {"BF16", "AMX"} & set(usable_machine().isa) else " (emulated: this CPU has no bfloat16)"
    rows = {
        framework: version,
        **({"OpenMP": openmp} if (openmp := openmp_library()) else {}),
        "Model": config.model,
        "Dataset": f"{config.dataset} (synthetic)",
        "Mode": "forward-only" if config.forward_only else "training",
        "Batch size": f"{config.batch_size * ranks} global\n{'':13}{config.batch_size} per device",
        "Num batches": config.num_batches,
        "Devices": "['/cpu:0']" if ranks == 1 else f"{ranks} ranks, ['/cpu:0'] each",
        "Data format": config.data_format,
        "Precision": f"bfloat16, the 16-bit type of CPUs{emulated}" if config.use_fp16 else "float32",
        "Optimizer": config.optimizer,
        "Variables": config.variable_update,
    }
    return "\n".join([*(f"{name + ':':13}{value}" for name, value in rows.items()), "=========="])


def _conditions(config: BenchConfig, versions: dict[str, str]) -> dict[str, Any]:
    """Return the conditions of a measurement: settings, software, machine, environment variables."""
    machine = usable_machine()
    return {
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in asdict(config).items()},
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLE_PREFIXES)
        },
        "versions": {"python": platform.python_version(), "numpy": np.__version__} | versions,
        "openmp": openmp_library(),
        "machine": asdict(machine) | {"usable_cores": machine.usable_cores, "kernel": platform.release()},
        "python": sys.executable,
    }
