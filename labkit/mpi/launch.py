"""Run a script in n MPI ranks, each with its share of the cores; if one fails, all end."""

import contextlib
import math
import numbers
import os
import signal
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from labkit.mpi import loopback
from labkit.mpi.mpirun import BIN, SRUN, MpiRun, Rank
from labkit.mpi.planning import HYDRA, Plan, check_ranks, plan
from labkit.system import cores, files, load, paths, processes
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit.system.words import plural
from labkit.testbed import Testbed, Traffic, fidelity

QUOTED_LINES = 15  # last lines of a failed rank in its error
_printed: set[Hashable] = set()  # texts that this process prints only once, as they are the same in each run


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


class RankError(LabError):
    """A run in which a rank failed, or that timed out.

    Attributes
    ----------
    rank : int or None
        The rank that failed first; None if unknown, or after a timeout.
    status : int or None
        Its exit status; None if a signal killed it, or if unknown.
    signal : signal.Signals or None
        The signal that killed it.
    lines : tuple of str
        The last lines it printed; after a timeout, the state of each rank in a line.
    mpi : tuple of str
        The last lines of MPI libraries on the ranks, such as `[0] MPI: …`.
    """

    def __init__(
        self,
        message: str,
        lines: tuple[str, ...],
        rank: int | None = None,
        code: int | None = None,
        mpi: tuple[str, ...] = (),
    ) -> None:
        mpi = mpi[-QUOTED_LINES:]
        super().__init__("\n  ".join([message, *(line[:500] for line in (*lines, *mpi))]))
        self.lines, self.rank, self.mpi = lines, rank, mpi
        self.status = code if code is not None and code >= 0 else None
        self.signal = signal.Signals(-code) if code is not None and code < 0 else None


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
    timeout = _check_timeout(timeout)
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
        needed = len(machine.cores) if testbed else n * (threads or 1)
        planned, unreserved = _reserve_cores(make_plan, machine.cores, needed, until_over)
        network_line = str(testbed or "")  # the first call measures the wires
        pipes = until_over.enter_context(files.temporary_folder())
        preload = loopback.library(pipes) if planned.local and not testbed else None
        open_port = _once(loopback.OPEN_PORT_WARNING) if planned.local and not testbed and not preload else ""
        slow_wires = testbed.warning if testbed else ""
        warning = "\n".join(filter(None, [planned.warning, slow_wires, unreserved, open_port]))
        if show:
            command = _once(planned.wrapped_command, key=planned.options) or planned.short_command
            print("\n".join(filter(None, [command, network_line, warning])), flush=True)
        mpirun = MpiRun(n, pipes, show)
        argv = [*(testbed.enter() if testbed else ()), *planned.hydra_argv]
        before = testbed.traffic() if testbed else ()
        with _watch_cores(planned) as others:
            with fidelity.watch(testbed) if testbed else contextlib.nullcontext(fidelity.Fidelity()) as wires:
                try:
                    mpirun.start(argv, {**planned.variables, **planned.env}, folder, preload)
                    in_time = mpirun.wait(timeout)
                finally:
                    mpirun.end()
            others.doubt = wires.doubt
        seconds = mpirun.elapsed()
        after = testbed.traffic() if testbed else ()
    remarks = mpirun.remarks()
    if not in_time:
        raise _timeout_error(timeout, mpirun.ranks, seconds, remarks)
    if error := _first_failure(mpirun.ranks, mpirun.abort_status(), remarks):
        raise error
    if show and remarks:
        print("\n".join(_quote_mpirun(remarks)), flush=True)
    return Run(
        command=planned.command,
        lines=tuple(tuple(rank.lines) for rank in mpirun.ranks),
        seconds=seconds,
        threads=planned.threads,
        bound=planned.bound,
        warning=warning,
        remarks=(*_quote_mpi(mpirun.ranks), *_quote_mpirun(remarks)),
        others=others,
        network=network_line,
        traffic=tuple(late - early for late, early in zip(after, before, strict=True)),
        wires=wires,
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
    make_plan: Callable[..., Plan], all_cores: Sequence[cores.Core], needed: int, until_over: contextlib.ExitStack
) -> tuple[Plan, str]:
    """Return a plan on free cores, and a warning if cores cannot be reserved.

    The cores that ranks are bound to are reserved until the run ends.
    """
    planned = make_plan()
    if not planned.cpus:
        return planned, ""
    reservation = until_over.enter_context(contextlib.closing(cores.reserve_free(all_cores, needed)))
    planned = make_plan(free=reservation.free)
    reservation.keep_only(planned.cpus)
    if not reservation.failure:
        return planned, ""
    reason = f"Warning: other runs may use the same cores, as cores cannot be reserved here: {reservation.failure}."
    return planned, _once(reason)


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


def _resolve(script: object, cwd: object) -> tuple[Path, Path]:
    """Return the folder to run in and the script's path."""
    if not isinstance(script, str | os.PathLike):
        raise LabError(f"script must be the path of a script, not {script!r}.")
    if not isinstance(cwd, str | os.PathLike | None):
        raise LabError(f"cwd must be the path of the folder to run in, not {cwd!r}.")
    try:
        folder = Path(cwd or ".").resolve()
        if not folder.is_dir():
            raise LabError(f"There is no folder {cwd} to run in: set cwd to an existing one.")
        path = (folder / script).resolve()
        if not path.is_file():
            raise LabError(
                f"{script} {'is a folder' if path.is_dir() else 'does not exist'}: pass the path of a script."
            )
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, or a loop of links
        raise LabError(
            f"cannot look for the script {str(script)[:100]!r} in {str(cwd or '.')[:100]!r}: {error}"
        ) from error
    return folder, path


def _check_timeout(timeout: object) -> float:
    seconds = float(timeout) if isinstance(timeout, numbers.Real) and not isinstance(timeout, bool) else math.nan
    if not seconds > 0:
        raise LabError(f"timeout must be a positive number of seconds, not {timeout!r}.")
    return seconds


def _once(text: str, key: Hashable = None) -> str:
    """Return the text the first time in this process, later an empty one; by default, the text is its own key."""
    key = key or text
    is_new = key not in _printed
    _printed.add(key)
    return text * is_new


# Errors of failed runs


def _first_failure(ranks: list[Rank], abort_status: int | None, remarks: tuple[str, ...]) -> RankError | None:
    """Return the error of the rank that failed first; None if all succeeded."""
    if not any(rank.started or rank.lines for rank in ranks):
        stale = ""
        if any(map(SRUN.match, remarks)):
            job = os.environ.get("SLURM_JOB_ID")
            stale = f" If job {job} has ended, leave its shell or `unset ${{!SLURM_*}}`, then start this program again."
        return RankError(f"mpirun started no rank.{stale} It reported:", remarks[-QUOTED_LINES:], mpi=_quote_mpi(ranks))
    # A rank that reports no end was killed with its runner, possibly by mpirun; its script may have finished.
    failed = [rank for rank in ranks if rank.exit_code or (rank.exit_code is None and not rank.finished_at)]
    failed.sort(key=_ended_at)
    if not failed and abort_status is None:
        return None
    culprit = next((rank for rank in failed if rank.aborted), None) or _first_killed(failed)
    if culprit is None and abort_status is not None and not any(rank.exit_code for rank in failed):
        lines = tuple(f"rank {rank.number}: {rank.lines[-1]}" for rank in ranks if rank.lines)
        text = f"A rank called MPI_Abort with exit status {abort_status}. The last line of each:"
        return RankError(text, lines, code=abort_status, mpi=_quote_mpi(ranks))
    return _rank_error(culprit or _left_without_finalize(ranks, failed[0]) or failed[0], ranks)


def _first_killed(failed: list[Rank]) -> Rank | None:
    """Return the first rank that a signal killed at about the time of the first failure, which then did not cause it.

    While a process is being killed, other ranks already fail to reach it, and report that before it is reported killed;
    or they crash in MPI, but never with SIGKILL. Ranks that mpirun kills report nothing.
    """
    early = [rank for rank in failed if _ended_at(rank) - _ended_at(failed[0]) < 1]
    by_signal = [rank for rank in early if rank.exit_code and rank.exit_code < 0 and rank.exit_code != -signal.SIGABRT]
    return min(by_signal, key=lambda rank: rank.exit_code != -signal.SIGKILL, default=None)


def _left_without_finalize(ranks: list[Rank], first: Rank) -> Rank | None:
    """Return the rank that exited with status 0 but without MPI_Finalize just before the first was killed for it."""
    if first.exit_code is not None or first.ended_at is None:
        return None
    left = [rank for rank in ranks if rank.exit_code == 0 and abs(first.ended_at - _ended_at(rank)) < 1]
    return max(left, key=_ended_at, default=None)


def _ended_at(rank: Rank) -> float:
    return math.inf if rank.ended_at is None else rank.ended_at


def _rank_error(rank: Rank, ranks: list[Rank]) -> RankError:
    code = -signal.SIGKILL if rank.exit_code is None and rank.gone_at else rank.exit_code
    if code is None:
        how = "ended without a message"
    elif code == 0:
        how = "exited with status 0 but without MPI_Finalize, as after os._exit()"
    else:
        how = f"{'failed with' if code > 0 else 'was'} {processes.describe_exit(code)}"
    when = "" if rank.ended_at is None else f", {rank.ended_at:.1f} s after the start"
    done = "".join(
        f" Rank {other.number} had already finished."
        for other in ranks
        if other is not rank and other.finished_at and rank.ended_at and other.finished_at < rank.ended_at
    )
    lines = tuple(rank.lines[-QUOTED_LINES:])
    last = "Its last lines:" if lines else "It had printed nothing."
    text = f"Rank {rank.number} {how}{when}; all were ended.{done} {last}"
    return RankError(text, lines, rank.number, code, _quote_mpi(ranks))


def _timeout_error(timeout: float, ranks: list[Rank], now: float, remarks: tuple[str, ...]) -> RankError:
    """Return the error for a timeout, with the state of each rank."""

    def state(rank: Rank) -> str:
        last = f"its last line: {rank.lines[-1]}" if rank.lines else "it had printed nothing"
        if rank.finished_at or rank.exit_code == 0:
            return f"rank {rank.number} had finished after {rank.finished_at or rank.ended_at:.1f} s; {last}"
        if not rank.started:
            return f"rank {rank.number} had not started"
        return f"rank {rank.number} was silent for {now - rank.last_output_at:.1f} s; {last}"

    return RankError(
        f"Timed out after {timeout:g} s, and all ranks were ended. Did one wait in a collective operation that another "
        "never reached? If not, increase timeout=.",
        (*map(state, ranks), *(() if all(rank.started for rank in ranks) else remarks[-QUOTED_LINES:])),
        mpi=_quote_mpi(ranks),
    )


def _quote_mpi(ranks: list[Rank]) -> tuple[str, ...]:
    return tuple(f"[{rank.number}] MPI: {line}" for rank in ranks for line in rank.mpi_lines)


def _quote_mpirun(remarks: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"[mpirun] {remark}" for remark in remarks)
