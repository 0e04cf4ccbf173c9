"""Run a script in n MPI ranks, each with its share of the cores; if one fails, all end.

A launch has these processes, each started by the one above it:

    run_ranks                            plans the command (`planning`), starts and reads it (`mpirun`)
      nsenter                            on a testbed only: enters the network of its switch
        mpiexec.hydra                    MPICH's mpirun, with `loopback.c` preloaded unless on a testbed
          hydra_pmi_proxy                one per node
            labkit.mpi.rank_runner       one per rank: reports how it ended before mpirun ends the others
              the script
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.mpi import loopback
from labkit.mpi.failure import first_failure, timeout_error
from labkit.mpi.mpirun import BIN, MpiRun
from labkit.mpi.planning import HYDRA, Plan, plan
from labkit.system import cores, files, load, paths
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit.system.terminal import is_new
from labkit.system.words import plural
from labkit.testbed import Testbed, fidelity


@dataclass(frozen=True)
class Run:
    """A run in which all ranks succeeded.

    Attributes
    ----------
    lines : tuple of tuple of str
        The lines on stdout and stderr of each rank.
    others : load.Contention
        Other work on the ranks' cores meanwhile.
    cpus : tuple of int
        All CPUs that ranks were bound to; empty if they were not bound.
    """

    lines: tuple[tuple[str, ...], ...]
    others: load.Contention = field(default_factory=load.Contention)
    cpus: tuple[int, ...] = ()


def run_ranks(
    n: int,
    script: str | Path,
    *args: object,
    threads: int | None = None,
    env: Mapping[str, object] | None = None,
    timeout: float = 600.0,
    show: bool = True,
    network: Testbed | None = None,
) -> Run:
    """Run a Python script in n MPI ranks; print their complete lines as they arrive, each after `[rank]`.

    Each rank has its own cores, not shared with any other run on this machine, whichever user started it
    (`labkit.system.cores`); if there are too few, ranks share cores and a warning is printed. On a server with
    measuring slots, the run waits for one and uses its cores (`labkit.system.cores`). Lines of MPI libraries come
    after `[rank] MPI:`. Unless the run spans machines, mpirun listens on loopback only. With a network, ranks run on
    nodes connected by wires (`labkit.testbed`), and messages between nodes use them.

    The command is printed first, complete and ready for a shell; later runs with the same options print a short line.

    Parameters
    ----------
    n : int
        Number of ranks.
    script : path
        The script.
    args
        The script's arguments.
    threads : int, optional
        Threads per rank; by default an equal share of the cores that this process may use and that are free.
    env : mapping, optional
        Additional environment variables for the ranks.
    timeout : float
        Seconds after which all ranks are killed.
    show : bool
        Whether to print the command and the lines.
    network : Testbed, optional
        The testbed whose nodes the ranks run on.

    Raises
    ------
    LabError
        If something is missing, or an argument is invalid on this machine.
    RankError
        Within seconds after a rank fails, and after a timeout; no process of the run is left then.
    """
    path = Path(script).resolve()
    if not path.is_file():
        raise LabError(f"{script} {'is a folder' if path.is_dir() else 'does not exist'}: pass the path of a script.")
    if not (BIN / HYDRA).exists():
        raise LabError("mpirun is missing from this environment: ./lab setup installs it.")

    with contextlib.ExitStack() as until_over:
        until_over.enter_context(cores.reserve())
        planned = _plan(n, os.path.relpath(path), args, threads, env, network, until_over)
        pipes = until_over.enter_context(files.temporary_folder())
        library = loopback.library(pipes) if planned.local and not network else None
        is_open = planned.local and not network and not library and is_new(loopback.OPEN_PORT_WARNING)
        warning = "\n".join(filter(None, [planned.warning, loopback.OPEN_PORT_WARNING * is_open]))
        if show:
            command = planned.command if is_new(planned.options) else planned.short_command
            network_line = str(network or "")  # the first call measures the wires
            print("\n".join(filter(None, [command, network_line, warning])), flush=True)
        mpirun = MpiRun(n, pipes, show)
        in_time, others = _launch(planned, network, mpirun, library, timeout)
    remarks = mpirun.remarks()
    if not in_time:
        raise timeout_error(timeout, mpirun.ranks, mpirun.elapsed(), remarks)
    if error := first_failure(mpirun.ranks, mpirun.abort_status(), remarks):
        raise error
    if show and remarks:
        print(*(f"[mpirun] {remark}" for remark in remarks), sep="\n", flush=True)
    lines = tuple(tuple(rank.lines) for rank in mpirun.ranks)
    return Run(lines, others, planned.cpus)


def placement(runs: Iterable[Run]) -> str:
    """Return a sentence on the cores and memory of runs to be compared."""
    cpu_sets = {run.cpus for run in runs}
    if () in cpu_sets:
        return "Not all ranks were bound to cores, so the runs may have used different cores and memory."
    if len(cpu_sets) > 1:
        return "The runs used different cores, as other runs had some of them."
    machine, cpus = this_machine(), set(cpu_sets.pop())
    n_cores, nodes = (sum(not cpus.isdisjoint(group) for group in groups) for groups in (machine.cores, machine.numa))
    memory = "" if nodes == 1 else ", and a process on several of them reads some memory from another node"
    return f"All runs used the same {plural(n_cores, 'core')} of {plural(nodes, 'NUMA node')}{memory}."


def _plan(
    n: int,
    script: str,
    args: tuple[object, ...],
    threads: int | None,
    env: Mapping[str, object] | None,
    testbed: Testbed | None,
    until_over: contextlib.ExitStack,
) -> Plan:
    """Return a plan on free cores; those that its ranks are bound to are reserved until the run ends."""
    machine = usable_machine()
    lab = f"{os.path.relpath(paths.ROOT)}/lab"  # always with a slash, as it is not on the PATH

    def on(free: tuple[cores.Core, ...]) -> Plan:
        return plan(n, script, *args, machine=machine, threads=threads, env=env, testbed=testbed, lab=lab, free=free)

    planned = on(machine.cores)
    if planned.cpus:
        needed = len(machine.cores) if testbed else n * (threads or 1)
        reservation = until_over.enter_context(contextlib.closing(cores.reserve_free(machine.cores, needed)))
        planned = on(reservation.free)
        reservation.keep_only(planned.cpus)
    return planned


def _launch(
    planned: Plan, testbed: Testbed | None, mpirun: MpiRun, library: Path | None, timeout: float
) -> tuple[bool, load.Contention]:
    """Run mpirun until it ends or times out; return whether it ended in time, and other work meanwhile."""
    argv = [*(testbed.enter() if testbed else ()), *planned.hydra_argv]
    # Ranks in a Slurm job may be on any node.
    unknown = "the ranks run in a Slurm job" if planned.variables else ""
    with load.observe(cpus=planned.cpus or None, unknown=unknown) as others, fidelity.watch(testbed, others):
        try:
            mpirun.start(argv, {**planned.variables, **planned.env}, library)
            in_time = mpirun.wait(timeout)
        finally:
            mpirun.end()
    return in_time, others
