"""Try what the labs need: run small scripts and commands, and look for other software on this machine."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from labkit.mpi.launch import run_ranks
from labkit.roofline import together
from labkit.slurm import cluster
from labkit.system import load, processes
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.testbed import obstacle

SCRIPTS = Path(__file__).with_name("scripts")
PROBE_TIMEOUT_S = 120.0  # the first import of TensorFlow from a network disk can take a minute
PAIR_SIZE, PAIR_CALLS = 256, 40  # matmuls of 256×256 stay in a core's caches; 40 take about 10 ms
ERROR_LINES = 3  # number of a failed probe's last lines to show


class ProbeResult(NamedTuple):
    """The result of a probe: its output, and if it failed the last lines of its error."""

    output: str = ""
    error: str = ""


def try_python(*args: str | Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run this environment's Python with some arguments; a name such as `kernel.py` is one of `SCRIPTS`."""
    first = SCRIPTS / args[0] if str(args[0]).endswith(".py") else args[0]
    return try_command(sys.executable, first, *args[1:], timeout=timeout)


def try_command(*argv: str | Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run a command and capture its standard output."""
    try:
        completed = processes.run(argv, timeout=timeout, separate_errors=True)
    except LabError as error:
        return ProbeResult(error=str(error))
    if completed.status is None:
        return ProbeResult(error=f"Timed out after {timeout:g} s")
    failure = "failed" if completed.status > 0 else completed.failure
    output = "\n".join(completed.lines).strip()
    return ProbeResult(output, _last_lines("\n".join([failure, *completed.errors])) if failure else "")


def try_ranks(script: str | Path, timeout: float = PROBE_TIMEOUT_S) -> ProbeResult:
    """Run one of `SCRIPTS`, an allreduce, on 2 ranks with 1 thread each; the output is rank 0's line about the sum."""
    try:
        run = run_ranks(2, SCRIPTS / script, threads=1, timeout=timeout, show=False)
    except LabError as error:
        return ProbeResult(error=_last_lines(str(error)))
    return ProbeResult(next(line for line in run.lines[0] if "sums correctly" in line))


def two_cores_vs_one() -> float | None:
    """Return the speed of two cores relative to one, from small matmuls; None if that can't be measured.

    A virtual machine may show two hardware threads of one core as two cores.
    """
    machine = usable_machine()
    if machine.quota is not None or machine.usable_cores < 2:
        return None
    import numpy as np
    from threadpoolctl import threadpool_limits

    def matmuls(place: int) -> together.Runs:
        a = np.ones((PAIR_SIZE, PAIR_SIZE), np.float32)
        return {"": lambda: [a @ a for _ in range(PAIR_CALLS)]}

    with threadpool_limits(1), load.observe() as others:
        teams = [together.Team(replace(machine, cores=machine.cores[:n]), matmuls) for n in (1, 2)]
        one, two = (min(team.seconds("") for _ in range(together.ROUNDS)) for team in teams)
    return None if others.busy else 2 * one / two


def try_network() -> ProbeResult:
    """Create a small testbed, which takes a fraction of a second."""
    rights = "" if os.geteuid() == 0 else ", without root"
    return ProbeResult(f"can create nodes with wires between them{rights}", obstacle())


def try_slurm() -> ProbeResult:
    """Look for a Slurm cluster, or for the programs to start a small one on this machine."""
    try:
        slurm = cluster.find_slurm()
    except LabError as error:
        return ProbeResult(error=str(error))
    if slurm:
        kind = "a cluster" if slurm.kind == "real" else "a small cluster on this machine"
        return ProbeResult(f"{kind}; nodes: {slurm.nodes}, CPUs per node: {slurm.cpus_per_node}")
    return ProbeResult("no cluster; `./lab cluster up` starts one on this machine", cluster.obstacle())


def shadowing_mpi(library_path: str, library_folder: Path) -> str | None:
    """Return the folder in LD_LIBRARY_PATH whose libmpi.so.12 shadows the one in `library_folder`, if any.

    The loader searches LD_LIBRARY_PATH before Horovod's and daal4py's own paths (RUNPATH, see ld.so(8)), and MPICH,
    Intel MPI and MVAPICH all use this library name. Modules on clusters set the variable.
    """
    for folder in filter(None, library_path.split(os.pathsep)):
        library = Path(folder, "libmpi.so.12")
        if library.exists():
            return None if library.resolve() == (library_folder / library.name).resolve() else folder
    return None


def _last_lines(text: str) -> str:
    """Return the first line (how the probe ended) and the last ones (why)."""
    first, *rest = [line.rstrip()[:300] for line in text.splitlines() if line.strip(" ^~")]  # not tracebacks' marks
    return "\n".join([first, *rest[-ERROR_LINES:]])
