"""How are n ranks of a script run, each with its share of the cores, so that all end when one fails?"""

import contextlib
import math
import numbers
import operator
import os
import re
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from labkit.mpi import loopback
from labkit.mpi import rank_runner as runner
from labkit.mpi.mpirun import BIN, Job, Rank
from labkit.system import cores, load, processes, scratch
from labkit.system.errors import LabError
from labkit.system.machine import Machine, this_machine

MOST_PER_CORE = 8  # ranks; MPICH waits by polling, so already 2 on a core slow each other down
TAIL = 15  # lines of a failed rank that its error quotes
SMALL_SLURM = "lab-cluster-"  # begins the name of a Slurm whose nodes are all this machine (labkit.slurm.cluster)
SHM = Path("/dev/shm")
SHM_A_RANK = 16 << 20  # bytes; UCX 1.20 and MPICH take 5.4 MB at the start
OPEN = (
    "Warning: mpirun's port is open to other machines, as no C++ compiler was found that makes labkit/mpi/loopback.c: "
    "install g++, or name one in CXX."
)
_told: set[str] = set()  # what is said once in a process, as it is the same in each run


@dataclass(frozen=True)
class Run:
    """A run in which every rank succeeded.

    Attributes
    ----------
    command : str
        The command, as typed in the folder where it ran.
    lines : tuple of tuple of str
        What each rank printed on stdout and stderr, by rank.
    seconds : float
        From mpirun's start to its end.
    threads : int
        Threads per rank.
    bound : bool
        Whether each rank had cores of its own, which no other run on this machine had.
    warning : str
        Why figures of this run may be worse than the machine, such as too few free cores; else empty.
    remarks : tuple of str
        What MPI's libraries and mpirun said beside, such as `[0] MPI: …`.
    others : load.Others
        What else had the ranks' cores meanwhile.
    """

    command: str
    lines: tuple[tuple[str, ...], ...]
    seconds: float
    threads: int
    bound: bool
    warning: str
    remarks: tuple[str, ...]
    others: load.Others = field(default_factory=load.Others)


class RankError(LabError):
    """A run in which a rank failed, or that was not over in time.

    Attributes
    ----------
    rank : int or None
        The rank that failed first; None when there is no such, as at the time limit.
    status : int or None
        Its exit status; None when a signal killed it, or nobody knows.
    signal : signal.Signals or None
        The signal that killed it.
    lines : tuple of str
        The last lines it printed; at the time limit, what each rank was doing.
    mpirun : tuple of str
        What mpirun itself had to say.
    mpi : tuple of str
        The last lines of MPI's libraries on the ranks, such as `[0] MPI: …`.
    """

    def __init__(
        self,
        message: str,
        lines: tuple[str, ...],
        rank: int | None = None,
        code: int | None = None,
        mpirun: tuple[str, ...] = (),
        mpi: tuple[str, ...] = (),
    ) -> None:
        super().__init__("\n  ".join([message, *(line[:500] for line in (*lines, *mpi))]))
        self.mpi = mpi
        self.lines, self.rank, self.mpirun = lines, rank, mpirun
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
) -> Run:
    """Run a Python script in n MPI ranks and print their lines, whole, as they come, each after `[rank]`.

    Each rank has cores of its own, which no other run on this machine has, whoever started that
    (`labkit.system.cores`); where they are too few, ranks take turns and a line says so. What MPI's libraries say comes
    after `[rank] MPI:`. Unless the run spans machines, it listens on loopback alone, and other users have no part in
    it.

    Parameters
    ----------
    n : int
        Number of ranks.
    script : path
        The script, relative to `cwd`.
    args
        Its arguments.
    threads : int, optional
        Threads per rank; by default an equal share of the cores that this process may use and no other run has.
    env : mapping, optional
        Further variables for the ranks.
    timeout : float
        Seconds after which all ranks are ended.
    cwd : path, optional
        The folder to run in; by default the current one.
    show : bool
        Whether to print the command and the lines.

    Raises
    ------
    LabError
        When something asked for is not there, or makes no sense on this machine.
    RankError
        Within seconds when a rank fails, and when the time is up; no process of the run is left then.
    """
    timeout = _seconds(timeout)
    folder, path = _find(script, cwd)
    if not (BIN / "mpirun").exists():
        raise LabError("mpirun is missing from this environment: ./lab setup installs it.")

    here = this_machine()
    ask = partial(plan, n, os.path.relpath(path, folder), *args, machine=here, threads=threads, env=env)
    todo = ask()
    with contextlib.ExitStack() as until_over:
        trouble = ""
        if todo.bound:
            loan = until_over.enter_context(contextlib.closing(cores.borrow(here.cores, n * (threads or 1))))
            todo, trouble = ask(free=loan.free), loan.failure
            loan.keep_only(todo.cpus)
        pipes = until_over.enter_context(scratch.folder())
        preload = loopback.library(pipes) if todo.local else None
        warnings = [todo.warning]
        if trouble:
            warnings.append(_once(f"Warning: others may use the same cores, as none can be lent here: {trouble}."))
        if todo.local and not preload:
            warnings.append(_once(OPEN))
        warning = "\n".join(filter(None, warnings))
        if show:
            print("\n".join(filter(None, [todo.command, warning])), flush=True)
        job = Job(n, pipes, show)
        with _watch(todo) as others:
            try:
                job.start(todo.argv, {**todo.variables, **todo.hidden}, folder, preload)
                in_time = job.wait(timeout)
            finally:
                job.end()
        seconds = job.clock()
    remarks = job.remarks()
    if not in_time:
        raise _too_late(job.ranks, timeout, seconds, remarks)
    if error := _failure(job.ranks, job.aborted(), remarks):
        raise error
    if show and remarks:
        print("\n".join(_by_mpirun(remarks)), flush=True)
    lines = tuple(tuple(rank.lines) for rank in job.ranks)
    told = (*_by_mpi(job.ranks), *_by_mpirun(remarks))
    return Run(todo.command, lines, seconds, todo.threads, todo.bound, warning, told, others)


def _watch(todo: "Plan") -> AbstractContextManager[load.Others]:
    """Watch the cores that the ranks are bound to, or all; in a Slurm job, it is Slurm that starts them, anywhere."""
    unknown = "the ranks are of a Slurm job" if todo.variables else ""
    return load.watch(cpus=todo.cpus or None, unknown=unknown, show=False)


def _find(script: object, cwd: object) -> tuple[Path, Path]:
    """Return the folder to run in, and the script's path."""
    if not isinstance(script, str | os.PathLike):
        raise LabError(f"script is the path of a script, not {script!r}.")
    if not isinstance(cwd, str | os.PathLike | None):
        raise LabError(f"cwd is the path of the folder to run in, not {cwd!r}.")
    try:
        folder = Path(cwd or ".").resolve()
        if not folder.is_dir():
            raise LabError(f"There is no folder {cwd} to run in: give cwd the path of one.")
        path = (folder / script).resolve()
        if not path.is_file():
            raise LabError(f"{script} {'is a folder' if path.is_dir() else 'is not there'}: give the path of a script.")
    except (OSError, ValueError, RuntimeError) as error:  # too long; with a null byte; links in a circle
        raise LabError(f"there can be no script {str(script)[:100]!r} in {str(cwd or '.')[:100]!r}: {error}") from error
    return folder, path


def _seconds(timeout: object) -> float:
    if not isinstance(timeout, numbers.Real) or isinstance(timeout, bool) or not timeout > 0:
        raise LabError(f"timeout is a time in seconds, more than 0, not {timeout!r}.")
    return float(timeout)


def _once(text: str) -> str:
    """Return the text the first time, and nothing from then on."""
    new = text not in _told
    _told.add(text)
    return text * new


# Who gets which cores


@dataclass(frozen=True)
class Plan:
    """What mpirun is told.

    Attributes
    ----------
    argv : tuple of str
        The command; its `mpirun` and `python` are this environment's.
    variables : mapping of str to str
        Variables for mpirun itself.
    hidden : mapping of str to str
        Further ones that change nothing for who types the command.
    cpus : tuple of int
        The CPUs that ranks are bound to.
    local : bool
        Whether mpirun and all ranks are on this machine.
    threads : int
        Threads per rank.
    bound : bool
        Whether each rank gets cores of its own.
    warning : str
        What to tell when the cores are not enough, else empty.
    """

    argv: tuple[str, ...]
    variables: Mapping[str, str]
    hidden: Mapping[str, str]
    cpus: tuple[int, ...]
    local: bool
    threads: int
    bound: bool
    warning: str

    @property
    def command(self) -> str:
        """The command as one types it."""
        return " ".join([*(f"{name}={value}" for name, value in self.variables.items()), shlex.join(self.argv)])


def plan(
    n: int,
    script: str,
    *args: object,
    machine: Machine,
    threads: int | None = None,
    env: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    free: Sequence[cores.Core] | None = None,
) -> Plan:
    """Share the cores out among n ranks, and give the command that does so.

    Parameters
    ----------
    n, script, args, threads, env
        As for `run_ranks`; `script` is relative to the folder where the command runs.
    machine : Machine
        What the ranks may use, unless in a Slurm job.
    environ : mapping of str to str
        The variables that tell of a Slurm job.
    free : sequence of tuple of int, optional
        Those of the machine's cores that nobody else has; by default all. Ranks that find too few of them get none.

    Raises
    ------
    LabError
        When n or threads make no sense on this machine.
    """
    slurm = "SLURM_JOB_ID" in environ
    nodes = int(environ.get("SLURM_JOB_NUM_NODES", 1)) if slurm else 1
    most = _slurm_cpus(environ) if slurm else machine.usable_cores  # cores of a node
    n = _count("n, the number of ranks,", n)
    if n > MOST_PER_CORE * most * nodes:
        fit = f"use at most {MOST_PER_CORE * most * nodes}, {MOST_PER_CORE} for each core"
        raise LabError(f"{n} ranks are more than fit here: {fit}.")
    n_on_node = math.ceil(n / nodes)
    # Under a CPU quota, this process shares all the CPUs it sees with others, and the kernel moves it to one that is
    # free: bound, it would wait for its own. In a Slurm job, each node knows for itself which CPUs are the job's.
    may_bind = not slurm and (machine.quota is None or machine.quota >= len(machine.cpus))
    free = machine.cores if free is None else free
    fair = max(1, most // n_on_node)
    asked_for_all = threads is None
    if asked_for_all:
        threads = min(fair, len(free) // n) if may_bind and n <= len(free) else fair
    threads = _count("threads", threads)
    enough = n_on_node * threads <= most
    bound = enough and may_bind and n * threads <= len(free)
    warning = ""
    if not enough:
        warning = _crowded(n_on_node, threads, most)
    elif may_bind and (not bound or (asked_for_all and threads < fair)):
        warning = _taken(n, threads, bound, machine.cores, free)
    options, cpus = ["-n", str(n)], []
    if bound:
        cpus = shares(replace(machine, cores=tuple(free)), n, threads)
        # Hydra's `-bind-to core` would count all of the machine's cores, also those that this process may not use
        # (MPICH 5.0.2 under taskset). After `user:` stand the CPUs by the kernel's numbers.
        options += ["-bind-to", "user:" + ",".join(map(_ranges, cpus))]
    small = slurm and environ.get("SLURM_CLUSTER_NAME", "").startswith(SMALL_SLURM)
    local = small or (nodes == 1 and (not slurm or "SLURMD_NODENAME" in environ))
    variables = _thread_variables(threads) | _between_ranks(n, nodes, small, slurm)
    for name, value in (variables | _variables(env)).items():
        options += ["-genv", name, str(value)]
    all_cpus = tuple(sorted(set().union(*cpus)))
    return Plan(
        argv=("mpirun", *options, "python", "-u", "-m", runner.__name__, script, *map(_argument, args)),
        # Inside a job step, as a kernel may be, srun waits for that step to end unless told to overlap; and it would
        # bind Hydra's proxy, with all the node's ranks under it, to one task's share.
        variables={"SLURM_OVERLAP": "1", "SLURM_CPU_BIND": "none"} if slurm else {},
        hidden=(
            ({cores.LENT_VARIABLE: ",".join(map(str, all_cpus))} if bound else {})
            | ({"HYDRA_IFACE": "lo"} if slurm and local else {})  # where srun's proxies find mpirun's port
        ),
        cpus=all_cpus,
        local=local,
        threads=threads,
        bound=bound,
        warning=warning,
    )


def shares(machine: Machine, n: int, threads: int) -> list[tuple[int, ...]]:
    """Return each of n ranks the CPUs of `threads` whole cores, ranks spread evenly, one NUMA node after the other."""
    node = {cpu: number for number, cpus in enumerate(machine.numa) for cpu in cpus}
    cores = sorted(machine.cores, key=lambda core: (node[core[0]], core))
    starts = [rank * len(cores) // n for rank in range(n)]
    return [tuple(sorted(cpu for core in cores[start : start + threads] for cpu in core)) for start in starts]


def _slurm_cpus(environ: Mapping[str, str]) -> int:
    """Return how many CPUs the job has on this node, or when salloc left us on another, on its first, of `16(x2),8`."""
    cpus = environ.get("SLURM_CPUS_ON_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE", "1")
    return int(re.match(r"\d+", cpus)[0])


def _thread_variables(threads: int) -> dict[str, object]:
    """Return what OpenMP and TensorFlow take their numbers of threads from.

    Inter-op threads are for operations that need not wait for each other. A network's layers do, and Horovod's
    operations leave their thread at once, so one is enough; a second serves the input pipeline, given a core for it.
    """
    return {
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": min(threads, 2),
    }


def _between_ranks(n: int, nodes: int, small: bool, slurm: bool) -> dict[str, object]:
    """Return what UCX may use between ranks on one machine: shared memory, without sockets that would listen.

    Of its two kinds, System V's is open to all of the user's group (`ipcs -m` shows 660, UCX 1.20), and POSIX' is not,
    but needs room in /dev/shm; where there is little, as in many containers, UCX has the choice of all. To MPICH, the
    nodes of a small Slurm are different machines: there it is sockets, on loopback.
    """
    if nodes > 1:
        return {"UCX_NET_DEVICES": "lo"} if small else {}
    room = 0
    with contextlib.suppress(OSError):  # there is none in some containers
        room = shutil.disk_usage(SHM).free
    return {"UCX_TLS": "posix,cma,self" if not slurm and room >= n * SHM_A_RANK else "sm,self"}


def _variables(env: object) -> dict[str, str]:
    if not isinstance(env, Mapping | None):
        raise LabError(f"env is a dict of variables, not {env!r}.")
    for name, value in (env or {}).items():
        if not (isinstance(name, str) and re.fullmatch(r"[^=\s\0]+", name)):
            raise LabError(f"env has the name {name!r}: the name of a variable is a text without = and blanks.")
        if value is None or "\0" in str(value):
            raise LabError(f"env[{name!r}] is {value!r}, which no variable can have.")
    return {name: str(value) for name, value in (env or {}).items()}


def _argument(value: object) -> str:
    if value is None or "\0" in str(value):
        raise LabError(f"an argument of the script is {value!r}, which no command can have: leave it out.")
    return str(value)


def _count(what: str, value: object) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise LabError(f"{what} is a whole number, 1 or more, not {value!r}.")
    return count


def _crowded(n: int, threads: int, most: int) -> str:
    return (
        f"Warning: {_many(n, 'rank')} × {_many(threads, 'thread')} on {_many(most, 'core')}: they take turns, unbound."
    )


def _taken(n: int, threads: int, bound: bool, all_cores: Sequence[cores.Core], free: Sequence[cores.Core]) -> str:
    taken = [core[0] for core in all_cores if core not in free]
    others = f"Warning: other runs have {len(taken)} of {_many(len(all_cores), 'core')} ({_ranges(taken, ', ')})"
    ranks = f"{_many(n, 'rank')} × {_many(threads, 'thread')}"
    if bound:
        return f"{others}: {ranks} on the rest."
    return f"{others}: {ranks} take turns with them, unbound, and figures will be noisy."


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count > 1)}"


def _ranges(cpus: Sequence[int], between: str = "+") -> str:
    """Return CPUs as Hydra takes them, such as 0-3+8."""
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return between.join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


# What became of them


def _failure(ranks: list[Rank], aborted: int | None, remarks: tuple[str, ...]) -> RankError | None:
    """Return the error of the rank that failed first; None when all succeeded."""
    if not any(rank.started or rank.lines for rank in ranks):
        return RankError(
            "mpirun started no rank. It said:", remarks[-TAIL:], mpirun=remarks, mpi=_by_mpi(ranks)[-TAIL:]
        )
    # A rank that reports no end was killed along with its runner, be it by mpirun; its script may have been through.
    failed = [rank for rank in ranks if rank.code or (rank.code is None and not rank.done)]
    failed.sort(key=lambda rank: rank.end or math.inf)
    if not failed and aborted is None:
        return None
    culprit = next((rank for rank in failed if rank.aborted), None) or _killed(failed)
    if culprit is None and aborted is not None and not any(rank.code for rank in failed):
        lines = tuple(f"rank {rank.number}: {rank.lines[-1]}" for rank in ranks if rank.lines)
        text = f"A rank ended all by MPI_Abort, with exit status {aborted}. The last line of each:"
        return RankError(text, lines, code=aborted, mpirun=remarks, mpi=_by_mpi(ranks)[-TAIL:])
    return _rank_error(culprit or _left(ranks, failed[0]) or failed[0], ranks, remarks)


def _killed(failed: list[Rank]) -> Rank | None:
    """Return the first rank that a signal killed, if about as soon as any failed: that is no consequence of failures.

    While a process is being killed, others already fail to reach it, and say so before it is reported killed. Ranks
    that mpirun kills report nothing.
    """
    by_signal = [rank for rank in failed if rank.code and rank.code < 0 and rank.code != -signal.SIGABRT]
    return by_signal[0] if by_signal and by_signal[0].end - failed[0].end < 1 else None


def _left(ranks: list[Rank], first: Rank) -> Rank | None:
    """Return the rank that left with status 0, but without MPI_Finalize, just before the first was killed for it."""
    if first.code is not None or first.end is None:
        return None
    left = [rank for rank in ranks if rank.code == 0 and abs(first.end - rank.end) < 1]
    return max(left, key=lambda rank: rank.end, default=None)


def _rank_error(rank: Rank, ranks: list[Rank], remarks: tuple[str, ...]) -> RankError:
    code = -signal.SIGKILL if rank.code is None and rank.gone else rank.code
    if code is None:
        how = "ended without a word"
    elif code == 0:
        how = "left the others with exit status 0, but without MPI_Finalize as after os._exit()"
    else:
        how = f"{'failed with' if code > 0 else 'was'} {processes.describe_exit(code)}"
    when = "" if rank.end is None else f", {rank.end:.1f} s after the start"
    done = "".join(
        f" Rank {other.number} had finished before."
        for other in ranks
        if other is not rank and other.done and rank.end and other.done < rank.end
    )
    lines = tuple(rank.lines[-TAIL:])
    last = "Its last lines:" if lines else "It had printed nothing."
    text = f"Rank {rank.number} {how}{when}; all were ended.{done} {last}"
    return RankError(text, lines, rank.number, code, remarks, _by_mpi(ranks)[-TAIL:])


def _too_late(ranks: list[Rank], timeout: float, now: float, remarks: tuple[str, ...]) -> RankError:
    """Return the error that tells what each rank was doing when the time was up."""

    def state(rank: Rank) -> str:
        last = f"its last line: {rank.lines[-1]}" if rank.lines else "it had printed nothing"
        if rank.done or rank.code == 0:
            return f"rank {rank.number} had finished after {rank.done or rank.end:.1f} s; {last}"
        if not rank.started:
            return f"rank {rank.number} had not started"
        return f"rank {rank.number} was silent for {now - rank.heard:.1f} s; {last}"

    return RankError(
        f"Not over after {timeout:g} s, so all ranks were ended. Did one wait in a collective for another that never "
        "came there? If not, give them more time with timeout=.",
        (*map(state, ranks), *(() if all(rank.started for rank in ranks) else remarks[-TAIL:])),
        mpirun=remarks,
        mpi=_by_mpi(ranks)[-TAIL:],
    )


def _by_mpi(ranks: list[Rank]) -> tuple[str, ...]:
    return tuple(f"[{rank.number}] MPI: {line}" for rank in ranks for line in rank.mpi)


def _by_mpirun(remarks: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"[mpirun] {remark}" for remark in remarks)
