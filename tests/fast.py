"""`--fast`: only the tests that import no TensorFlow and start no ranks, Slurm, JupyterLab or notebook.

There is no list of these. A test that uses one of them is skipped at that moment, and so is a module that imports one.
`@pytest.mark.slow` excludes tests that can't be detected here: their child processes do so, or they take seconds.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import hypothesis
import pytest

from labkit.mpi import planning

MAX_EXAMPLES = 25  # for Hypothesis tests without a number of their own; its default is 100
SKIPPED = "skipped by --fast"
MODULES = {"tensorflow", "keras", "horovod", "openvino", "nncf"}
PROGRAMS = {
    "mpirun",
    planning.HYDRA,
    "labkit.bench",
    "labkit.slurm.supervisor",
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "ipykernel_launcher",
}


class _Imports:
    """Skips a test, or a module of tests, that imports a slow library."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in MODULES:
            _skip(f"imports {name.partition('.')[0]}")
        return None


def _audit(event: str, arguments: tuple) -> None:
    if event == "subprocess.Popen":
        command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
        words = {Path(os.fsdecode(word)).name for word in command}
        if programs := PROGRAMS & words:
            _skip(f"starts {programs.pop()}")


def _skip(reason: str) -> None:
    pytest.skip(f"{SKIPPED}: {reason}", allow_module_level=True)


def begin() -> None:
    """Skip slow tests from now on in this process."""
    hypothesis.settings.register_profile("fast", max_examples=MAX_EXAMPLES, deadline=None)
    hypothesis.settings.load_profile("fast")
    sys.meta_path.insert(0, _Imports())
    sys.addaudithook(_audit)


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests marked `slow`."""
    slow = {item for item in items if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=list(slow))
    items[:] = [item for item in items if item not in slow]
