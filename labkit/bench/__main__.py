"""Run the benchmark in this process: `python -m labkit.bench --help`."""

import sys
from types import ModuleType

from labkit.bench.config import BenchConfig
from labkit.system import cores, flags
from labkit.system.errors import LabError
from labkit.system.imports import gc_rare


def measure(config: BenchConfig) -> None:
    """Run the benchmark; environment variables are set before the framework, which reads them, is imported."""
    config.set_variables()
    with cores.reserve(), gc_rare():  # before TensorFlow creates a thread per core
        if config.framework == "pytorch":
            _torch_run().measure(config)
            return
        from labkit.bench import run

        run.measure(config)


def _torch_run() -> ModuleType:
    """Return the module that measures with PyTorch, which is installed in a separate folder."""
    from labkit.mpi import torch_ranks

    if reason := torch_ranks.obstacle():
        raise LabError(reason)
    sys.path.insert(0, str(torch_ranks.packages()))
    from labkit.bench import torch_run

    return torch_run


if __name__ == "__main__":
    flags.run(measure, BenchConfig, "labkit.bench")
