"""Run commands at a testbed's switch, from which `mpirun` starts ranks on its nodes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from functools import partial

from labkit.system import cores, load, processes
from labkit.system.errors import LabError
from labkit.system.lifetime import end_with
from labkit.system.machine import this_machine
from labkit.testbed import fidelity
from labkit.testbed.testbed import Testbed


def run(testbed: Testbed, argv: Sequence[str]) -> int:
    """Run a command on this process's terminal; return its exit status as a shell would.

    Raises
    ------
    LabError
        If there is no such command.
    """
    path = os.pathsep.join([sysconfig.get_path("scripts"), processes.search_path()])
    if not shutil.which(argv[0], path=path):
        raise LabError(f"cannot start {argv[0]}. Is it spelt right, and on the PATH?")
    environ = {**os.environ, **testbed.variables, "PATH": path}
    others = load.Contention()
    with _reserved_cores(testbed), fidelity.watch(testbed, others), _ignoring_interrupts():
        command = [*testbed.enter(), *argv]
        status = subprocess.run(command, env=environ, preexec_fn=partial(end_with, os.getpid())).returncode
    if others.doubt:
        print(others, flush=True)
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _reserved_cores(testbed: Testbed) -> Iterator[None]:
    """Reserve the cores of a testbed's nodes, and print a warning if other runs have some of them."""
    machine = this_machine()
    node_cores = [core for core in machine.cores if any(set(core) & set(node.cpus) for node in testbed.nodes)]
    with contextlib.closing(cores.reserve_free(machine.cores, len(machine.cores))) as reservation:
        if not set(node_cores) <= set(reservation.free):
            print("Warning: other runs have some of the nodes' cores, and figures will be noisy.", flush=True)
        reservation.keep_only(cpu for core in node_cores for cpu in core)
        yield


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore interrupts from the terminal: the command receives them too, and handles them."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
