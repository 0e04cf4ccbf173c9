"""Run Slurm commands like a user in a terminal, and recognize the tests' jobs."""

import contextlib
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil

from labkit.slurm.cluster import Cluster
from labkit.slurm.supervisor import PID_FILE
from labkit.system import processes


def script(folder: Path, name: str, text: str) -> Path:
    """Write a script that can be run."""
    path = folder / name
    path.write_text(textwrap.dedent(text))
    path.chmod(0o755)
    return path


def shell_of(cluster: Cluster, folder: Path) -> Callable[[str], str]:
    """Return a function that runs a line as in a terminal in which SLURM_CONF was exported, and gives its output."""

    def run(line: str) -> str:
        environ = os.environ | cluster.slurm().variables
        done = subprocess.run(line, shell=True, cwd=folder, env=environ, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def supervisor_of(cluster: Cluster) -> psutil.Process:
    return psutil.Process(int((cluster.link / PID_FILE).read_text()))


def is_sleep(process: psutil.Process) -> bool:
    """Return whether a process is a running `sleep`, as the tests' jobs are; it may end while it is being asked."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return processes.is_alive(process) and process.name() == "sleep"
    return False
