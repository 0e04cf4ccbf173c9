"""`--fast`: only the tests that import no TensorFlow and start no ranks, Slurm, JupyterLab or notebook.

No list says which these are. A test that reaches for one of them is left out at that moment, and so is a module that
imports one. `@pytest.mark.slow` leaves out what can't be seen from here: a test whose child processes do it, or that
takes seconds.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import hypothesis
import pytest

from labkit.mpi import planning

EXAMPLES = 25  # that Hypothesis tries of what names no number, in place of 100
LEFT_OUT = "left out by --fast"
MODULES = {"tensorflow", "keras", "horovod", "openvino", "nncf"}
PROGRAMS = {
    "mpirun",
    planning.HYDRA,
    "labkit.slurm.supervisor",
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "ipykernel_launcher",
}


class _Imports:
    """Leaves out the test, or the module of tests, that imports what takes long."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in MODULES:
            _leave_out(f"imports {name.partition('.')[0]}")
        return None


def _audit(event: str, arguments: tuple) -> None:
    if event == "subprocess.Popen":
        command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
        words = {Path(os.fsdecode(word)).name for word in command}
        if found := PROGRAMS & words:
            _leave_out(f"starts {found.pop()}")


def _leave_out(reason: str) -> None:
    pytest.skip(f"{LEFT_OUT}: {reason}", allow_module_level=True)


def begin() -> None:
    """Leave out, from here to the end of this process, what takes long."""
    hypothesis.settings.register_profile("fast", max_examples=EXAMPLES, deadline=None)
    hypothesis.settings.load_profile("fast")
    sys.meta_path.insert(0, _Imports())
    sys.addaudithook(_audit)


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests marked `slow`."""
    slow = {item for item in items if item.get_closest_marker("slow")}
    config.hook.pytest_deselected(items=list(slow))
    items[:] = [item for item in items if item not in slow]
