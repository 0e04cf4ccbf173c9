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
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from labkit.mpi import loopback
from labkit.mpi.failure import first_failure, quote_mpi, quote_mpirun, timeout_error
from labkit.mpi.mpirun import BIN, MpiRun
from labkit.mpi.planning import HYDRA, Plan, check_ranks, plan
from labkit.system import cores, files, load, paths
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import Machine, this_machine
from labkit.system.terminal import is_new
from labkit.system.words import plural
from labkit.testbed import Testbed, Traffic, fidelity


@dataclass(frozen=True)
class Run:
    """A run in which all ranks succeeded.

    Attributes
    ----------
    command : str
        The command, as typed in the folder where it ran.
    lines : tuple of tuple of str
        The lines on stdout and stderr of each rank.
    seconds : float
        The duration of mpirun.
    threads : int
        Threads per rank.
    bound : bool
        Whether each rank had cores to itself, also not shared with other runs on this machine.
    warning : str
        The reason why this run's figures may be worse than the machine allows, such as too few free cores, or empty.
    remarks : tuple of str
        The lines of MPI libraries and of mpirun itself, such as `[0] MPI: …`.
    others : load.Contention
        Other work on the ranks' cores meanwhile.
    network : str
        The testbed that they ran on, with its measured rate; empty without one.
    traffic : tuple of Traffic
        The bytes that each node of the testbed sent and received.
    wires : fidelity.Fidelity
        Whether the testbed's wires were the limit, or its cores.
    cpus : tuple of int
        All CPUs that ranks were bound to; empty if they were not bound.
    """

    command: str
    lines: tuple[tuple[str, ...], ...]
    seconds: float
    threads: int
    bound: bool
    warning: str
    remarks: tuple[str, ...]
    others: load.Contention = field(default_factory=load.Contention)
    network: str = ""
    traffic: tuple[Traffic, ...] = ()
    wires: fidelity.Fidelity = field(default_factory=fidelity.Fidelity)
    cpus: tuple[int, ...] = ()


def run_ranks(
    n: int,
    script: str | Path,
    *args: object,
    threads: int | None = None,
    env: Mapping[str, object] | None = None,
    timeout: float = 600.0,
    cwd: str | Path | None = None,
    show: bool = True,
    nodes: int | None = None,
    network: float | str | Testbed | None = None,
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
        The script, relative to `cwd`.
    args
        The script's arguments.
    threads : int, optional
        Threads per rank; by default an equal share of the cores that this process may use and that are free.
    env : mapping, optional
        Additional environment variables for the ranks.
    timeout : float
        Seconds after which all ranks are killed.
    cwd : path, optional
        The folder to run in; by default the current one.
    show : bool
        Whether to print the command and the lines.
    nodes : int, optional
        Nodes of the testbed, each with an equal share of the cores; by default one per rank.
    network : float, str or Testbed, optional
        The rate of the wires, in bit/s or as a text such as "1 Gbit/s", for a testbed of this run only; or an existing
        testbed.

    Raises
    ------
    NoTestbed
        If no testbed can be made here.
    LabError
        If something is missing, or an argument is invalid on this machine.
    RankError
        Within seconds after a rank fails, and after a timeout; no process of the run is left then.
    """
    folder, path = _resolve(script, cwd)
    if not (BIN / HYDRA).exists():
        raise LabError("mpirun is missing from this environment: ./lab setup installs it.")

    with contextlib.ExitStack() as until_over:
        until_over.enter_context(cores.reserve())
        machine = usable_machine()
        testbed = _testbed(n, nodes, network, until_over)
        make_plan = partial(
            plan,
            n,
            os.path.relpath(path, folder),
            *args,
            machine=machine,
            threads=threads,
            env=env,
            testbed=testbed,
            lab=f"{os.path.relpath(paths.ROOT, folder)}/lab",  # always with a slash, as it is not on the PATH
        )
        planned = _reserve_cores(make_plan, machine, len(machine.cores) if testbed else n * (threads or 1), until_over)
        network_line = str(testbed or "")  # the first call measures the wires
        pipes = until_over.enter_context(files.temporary_folder())
        library = loopback.library(pipes) if planned.local and not testbed else None
        is_open = planned.local and not testbed and not library and is_new(loopback.OPEN_PORT_WARNING)
        warnings = (planned.warning, testbed.warning if testbed else "", loopback.OPEN_PORT_WARNING * is_open)
        warning = "\n".join(filter(None, warnings))
        if show:
            command = planned.wrapped_command if is_new(planned.options) else planned.short_command
            print("\n".join(filter(None, [command, network_line, warning])), flush=True)
        launched = _launch(planned, testbed, folder, MpiRun(n, pipes, show), library, timeout)
    ranks, remarks = launched.mpirun.ranks, launched.mpirun.remarks()
    if not launched.in_time:
        raise timeout_error(timeout, ranks, launched.seconds, remarks)
    if error := first_failure(ranks, launched.mpirun.abort_status(), remarks):
        raise error
    if show and remarks:
        print("\n".join(quote_mpirun(remarks)), flush=True)
    return Run(
        command=planned.command,
        lines=tuple(tuple(rank.lines) for rank in ranks),
        seconds=launched.seconds,
        threads=planned.threads,
        bound=planned.bound,
        warning=warning,
        remarks=(*quote_mpi(ranks), *quote_mpirun(remarks)),
        others=launched.others,
        network=network_line,
        traffic=launched.traffic,
        wires=launched.wires,
        cpus=planned.cpus,
    )


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


def _reserve_cores(
    make_plan: Callable[..., Plan], machine: Machine, needed: int, until_over: contextlib.ExitStack
) -> Plan:
    """Return a plan on free cores; those that its ranks are bound to are reserved until the run ends."""
    planned = make_plan()
    if not planned.cpus:
        return planned
    reservation = until_over.enter_context(contextlib.closing(cores.reserve_free(machine.cores, needed)))
    planned = make_plan(free=reservation.free)
    reservation.keep_only(planned.cpus)
    reason = f"Warning: other runs may use the same cores, as cores cannot be reserved here: {reservation.failure}."
    if reservation.failure and is_new(reason):
        planned = replace(planned, warning="\n".join(filter(None, [planned.warning, reason])))
    return planned


class _Launched(NamedTuple):
    """A run that is over, however it ended; see `Run`."""

    mpirun: MpiRun
    in_time: bool
    seconds: float
    others: load.Contention
    wires: fidelity.Fidelity
    traffic: tuple[Traffic, ...]


def _launch(
    planned: Plan, testbed: Testbed | None, folder: Path, mpirun: MpiRun, library: Path | None, timeout: float
) -> _Launched:
    """Run mpirun to its end, or to the end of its time, and observe its cores and wires meanwhile."""
    argv = [*(testbed.enter() if testbed else ()), *planned.hydra_argv]
    before = testbed.traffic() if testbed else ()
    with _watch_cores(planned) as others:
        with fidelity.watch(testbed) as wires:
            try:
                mpirun.start(argv, {**planned.variables, **planned.env}, folder, library)
                in_time = mpirun.wait(timeout)
            finally:
                mpirun.end()
        others.doubt = wires.doubt
    seconds = mpirun.elapsed()
    after = testbed.traffic() if testbed else ()
    traffic = tuple(late - early for late, early in zip(after, before, strict=True))
    return _Launched(mpirun, in_time, seconds, others, wires, traffic)


def _testbed(
    n: int, nodes: int | None, network: float | str | Testbed | None, until_over: contextlib.ExitStack
) -> Testbed | None:
    """Return the testbed to run on; one made here ends with the run."""
    if network is None:
        if nodes is not None:
            raise LabError('nodes needs a network: set the rate of its wires too, such as network="1 Gbit/s".')
        return None
    if not isinstance(network, Testbed):
        ranks = check_ranks(n, usable_machine().usable_cores)  # before their nodes are made
        return until_over.enter_context(Testbed(ranks if nodes is None else nodes, network))
    if nodes not in (None, len(network.nodes)):
        raise LabError(f"the network has {len(network.nodes)} nodes, not {nodes!r}: omit nodes.")
    return network


def _watch_cores(planned: Plan) -> AbstractContextManager[load.Contention]:
    """Watch the cores that the ranks are bound to, or all; ranks in a Slurm job may be on any node."""
    unknown = "the ranks run in a Slurm job" if planned.variables else ""
    return load.observe(cpus=planned.cpus or None, unknown=unknown)


def _resolve(script: str | Path, cwd: str | Path | None) -> tuple[Path, Path]:
    """Return the folder to run in and the script's path."""
    folder = Path(cwd or ".").resolve()
    if not folder.is_dir():
        raise LabError(f"There is no folder {cwd} to run in: set cwd to an existing one.")
    path = (folder / script).resolve()
    if not path.is_file():
        raise LabError(f"{script} {'is a folder' if path.is_dir() else 'does not exist'}: pass the path of a script.")
    return folder, path
