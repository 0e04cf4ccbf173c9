"""Output, timed steps and result of one measurement, with either framework."""

import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from labkit.bench.config import BenchConfig
from labkit.system import files, load
from labkit.system.cores import usable_machine

SHOW_EVERY = 10  # steps
# Prefixes of variables that affect speed, and so are recorded in the JSON.
VARIABLE_PREFIXES = (
    *("TF_", "OMP_", "KMP_", "GOMP_", "ONEDNN_", "DNNL_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "XLA_"),
    "TORCHINDUCTOR_",
)


def time_steps(config: BenchConfig, framework: str, version: str, step: Callable[[], float]) -> None:
    """Print the configuration, warm up, time steps, and write the result if requested; `step` returns its loss."""
    print(f"{_header(config, framework, version)}\nWarming up", flush=True)
    for _ in range(config.num_warmup_batches):
        step()

    seconds: list[float] = []
    losses: list[float] = []
    with load.observe() as others:
        began = before = time.perf_counter()
        for number in range(1, config.num_batches + 1):
            losses.append(step())
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
            if number % SHOW_EVERY == 0:
                speed = config.batch_size * number / (now - began)
                print(f"step {number}: {speed:.1f} images/s, loss {losses[-1]:.3f}", flush=True)
    total = config.batch_size * config.num_batches / (before - began)
    print(f"total images/sec: {total:.2f}", flush=True)
    if others.busy:
        print(others, flush=True)
    if config.json:
        result = {"images_per_second": total, "seconds": seconds, "losses": losses, "others": others.as_dict()}
        conditions = _conditions(config, {framework.lower(): version})
        files.write(config.json, json.dumps(result | conditions, indent=1))


def openmp_library() -> str:
    """Return the file name of the OpenMP library that this process's threads use, such as "libgomp.so.1".

    If several are loaded, threads use the one that the dynamic linker finds first, such as a preloaded one. The name is
    empty if there is none, or only those that packages such as scikit-learn load for themselves.
    """
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)  # compiled code calls it; Intel's OpenMP has it too
    if function is None:
        return ""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return Path(line.split(maxsplit=5)[-1]).name
    return ""


def _header(config: BenchConfig, framework: str, version: str) -> str:
    emulated = "" if {"BF16", "AMX"} & set(usable_machine().isa) else " (emulated: this CPU has no bfloat16)"
    rows = {
        framework: version,
        **({"OpenMP": openmp} if (openmp := openmp_library()) else {}),
        "Model": config.model,
        "Batch size": config.batch_size,
        "Data format": config.data_format,
        "Precision": f"bfloat16, the 16-bit type of CPUs{emulated}" if config.use_fp16 else "float32",
    }
    return "\n".join(f"{name + ':':13}{value}" for name, value in rows.items())


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
