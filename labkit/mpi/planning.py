"""Plan the mpirun command for n ranks: each rank's share of the cores, and the variables that libraries need."""

import contextlib
import ctypes
import functools
import math
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from labkit.mpi import rank_runner
from labkit.system.arguments import as_integer
from labkit.system.cores import RESERVED_VARIABLE, Core
from labkit.system.errors import LabError
from labkit.system.files import SHARED_MEMORY
from labkit.system.machine import Machine, node_cores, shares
from labkit.system.words import plural
from labkit.testbed import Testbed
from labkit.testbed.topology import Topology
from labkit.testbed.units import show_rate
from labkit.testbed.wiring import interface

HYDRA = "mpiexec.hydra"  # MPICH's mpirun and mpiexec are copies of it; `mpirun.sh` replaces them
MAX_RANKS_PER_CORE = 8  # a generous limit: MPICH waits by polling, so even 2 on a core slow each other down
COMMAND_WIDTH = 88  # the columns that a notebook shows
# The prefixes of the names of a small Slurm, whose nodes are all this machine (`labkit.slurm`): of its cluster, and of
# its folder; the second if wires connect its nodes (`labkit.testbed`).
SMALL = "lab-cluster-"
SMALL_ON_WIRES = f"{SMALL}wires-"
SHM_BYTES_PER_RANK = 16 << 20  # shared memory that a rank may need: UCX 1.20 and MPICH use 5.4 MB at the start


class Reach(NamedTuple):
    """The reach of an mpirun: the machines that its ranks are on."""

    slurm: bool  # whether the ranks run in a Slurm job
    nodes: int  # machines, or nodes that MPICH treats as machines
    local: bool  # whether mpirun and all ranks are on this machine: no connections from outside
    device: str = ""  # the network interface between the nodes of a small Slurm


@dataclass(frozen=True)
class Plan:
    """The command that starts the ranks, and the resources that they get."""

    n: int  # number of ranks
    wrapper: tuple[str, ...]  # the command to type before mpirun on a testbed; the kit itself starts mpirun differently
    options: tuple[str, ...]  # mpirun's options after `-n`
    script: tuple[str, ...]  # the script and its arguments
    variables: Mapping[str, str]  # variables for mpirun itself
    env: Mapping[str, str]  # further variables, not needed when typing the command
    cpus: tuple[int, ...]  # the CPUs that ranks are bound to
    local: bool  # whether mpirun and all ranks are on this machine, or on one node of a testbed
    warning: str  # the line to print if there are too few cores, or empty

    @property
    def argv(self) -> tuple[str, ...]:
        """The command, with this environment's `mpirun` and `python`."""
        return (*self._launcher, *self._program)

    @property
    def hydra_argv(self) -> tuple[str, ...]:
        """The command with Hydra itself instead of `mpirun`, which would determine the reach again."""
        return (HYDRA, *self.argv[1:])

    @property
    def command(self) -> str:
        """The command to type, in continuation lines for a shell, wrapped at options."""
        assignments = [f"{name}={value}" for name, value in self.variables.items()]
        return " \\\n    ".join([*_wrap([*assignments, *self.wrapper, *self._launcher]), *_wrap(self._program)])

    @property
    def short_command(self) -> str:
        """The command without its options."""
        return f"{'… -- ' if self.wrapper else ''}mpirun -n {self.n} … {shlex.join(self.script)}"

    @property
    def _launcher(self) -> tuple[str, ...]:
        return ("mpirun", "-n", str(self.n), *self.options)

    @property
    def _program(self) -> tuple[str, ...]:
        return ("python", "-u", "-m", rank_runner.__name__, *self.script)


def _wrap(words: Iterable[str]) -> list[str]:
    """Return the lines of a command, never broken between an option and its values."""
    lines: list[str] = []
    for option in _options(words):
        if lines and len(lines[-1]) + 1 + len(option) <= COMMAND_WIDTH:
            lines[-1] += f" {option}"
        else:
            lines.append(option)
    return lines


def _options(words: Iterable[str]) -> list[str]:
    """Return each option with its values, as typed, after any words before the first option."""
    options: list[str] = []
    for word in words:
        if options and not word.startswith("-"):
            options[-1] += f" {shlex.quote(word)}"
        else:
            options.append(shlex.quote(word))
    return options


def plan(
    n: int,
    script: str,
    *args: object,
    machine: Machine,
    threads: int | None = None,
    env: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    free: Sequence[Core] | None = None,
    testbed: Testbed | None = None,
    lab: str = "./lab",
) -> Plan:
    """Divide the cores among n ranks, and return the command for that.

    Parameters
    ----------
    n, script, args, threads, env
        As for `run_ranks`; `script` is relative to the folder where the command runs.
    machine : Machine
        The share of the machine that the ranks may use, unless in a Slurm job.
    environ : mapping of str to str
        The variables that describe a Slurm job.
    free : sequence of tuple of int, optional
        The cores that no other run has; by default all. If they are too few, ranks are not bound.
    testbed : Testbed, optional
        The nodes that the ranks run on, the same number on each.
    lab : str
        The kit's command, as typed.

    Raises
    ------
    LabError
        If n or threads are invalid on this machine.
    """
    reach = Reach(slurm=False, nodes=len(testbed.nodes), local=True) if testbed else reach_of(environ)
    slurm, nodes = reach.slurm, reach.nodes
    free = machine.cores if free is None else free
    may_bind = machine.may_bind and not slurm  # each node of the job knows which CPUs are the job's
    if testbed:
        cores_per_node, total = node_cores(machine, nodes), machine.usable_cores  # nodes may share cores
    else:
        cores_per_node = _slurm_cpus(environ) if slurm else machine.usable_cores
        total = cores_per_node * nodes
    n = check_ranks(n, total)
    n_on_node = math.ceil(n / nodes)
    fair_share = max(1, cores_per_node // n_on_node)
    is_default = threads is None
    if is_default:
        fewer = may_bind and not testbed and n <= len(free)
        threads = min(fair_share, len(free) // n) if fewer else fair_share
    threads = _check_count("threads", threads)
    sharing, shared = (n, total) if testbed else (n_on_node, cores_per_node)  # ranks, and the cores that they share
    enough = sharing * threads <= shared

    variables, options, cpus = _thread_variables(threads), [], set[int]()
    if testbed:
        cpus = {cpu for node in testbed.nodes for cpu in node.cpus if may_bind}
        own_cores = [core for core in machine.cores if cpus.intersection(core)]
        are_free = set(own_cores) <= set(free)
        bound = bool(cpus) and enough and are_free and n_on_node == 1
        options += ["-ppn", str(n_on_node)]
    else:
        own_cores, are_free = list(machine.cores), n * threads <= len(free)
        bound = enough and may_bind and are_free
        variables |= ucx_variables(n, reach, environ)
    if bound and not testbed:
        of_ranks = shares(replace(machine, cores=tuple(free)), n, threads)
        cpus = set().union(*of_ranks)
        # Hydra's `-bind-to core` counts all of the machine's cores, including those that this process may not use
        # (MPICH 5.0.2 under taskset; docs/contribute/upstream.md). `user:` takes CPUs by the kernel's numbers.
        options += ["-bind-to", "user:" + ",".join(map(_ranges, of_ranks))]
    for name, value in (variables | dict(env or {})).items():
        options += ["-genv", name, str(value)]
    warning = ""
    if not enough:
        warning = _too_few_cores(sharing, threads, shared)
    elif may_bind and (not are_free or (is_default and threads < fair_share)):
        warning = _cores_in_use(n, threads, are_free, own_cores, free)
    return Plan(
        n=n,
        wrapper=(lab, "testbed", *_testbed_options(testbed.topology), "--") if testbed else (),
        options=tuple(options),
        script=(script, *map(str, args)),
        # Inside a job step, where a notebook kernel may be, srun waits for that step to end unless it may overlap; and
        # it would bind Hydra's proxy, with all the node's ranks, to one task's share.
        variables={"SLURM_OVERLAP": "1", "SLURM_CPU_BIND": "none"} if slurm else {},
        env={
            **(testbed.variables if testbed else {}),
            **({RESERVED_VARIABLE: ",".join(map(str, sorted(cpus)))} if cpus and are_free else {}),
            **hydra_variables(reach),
        },
        cpus=tuple(sorted(cpus)),
        local=reach.local,
        warning=warning,
    )


def _testbed_options(topology: Topology) -> list[str]:
    """Return the options of `lab testbed` for such a testbed."""
    options = ["--nodes", str(topology.nodes), "--rate", show_rate(topology.rate, digits=12)]
    if topology.uplink is not None:
        options += ["--racks", str(len(topology.racks)), "--uplink", show_rate(topology.uplink, digits=12)]
    for node, rate in topology.wires.items():
        options += ["--wire", f"{node}={show_rate(rate, digits=12)}"]
    if topology.queue:
        options += ["--queue", str(topology.queue)]
    return options


def check_ranks(n: object, cores: int) -> int:
    """Return the number of ranks, if it is valid on this number of cores."""
    n, maximum = _check_count("n, the number of ranks,", n), MAX_RANKS_PER_CORE * cores
    if n > maximum:
        raise LabError(f"{n} ranks are too many here: use at most {maximum}, {MAX_RANKS_PER_CORE} per core.")
    return n


def _slurm_cpus(environ: Mapping[str, str]) -> int:
    """Return the job's CPUs on this node; under salloc on another machine, on its first node, as in `16(x2),8`."""
    cpus = environ.get("SLURM_CPUS_ON_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE", "1")
    return int(re.split(r"\D", cpus)[0])


def _thread_variables(threads: int) -> dict[str, object]:
    """Return the variables that set the number of threads of OpenMP and TensorFlow.

    Inter-op threads run independent operations. A network's layers depend on each other, and Horovod's operations
    release their thread at once, so one is enough; a second serves the input pipeline, if it has a core.
    """
    return {
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": min(threads, 2),
    }


def reach_of(environ: Mapping[str, str]) -> Reach:
    """Return the reach of an mpirun with these variables, in a Slurm job or on this machine.

    MPICH treats the nodes of a small Slurm as different machines, so they use sockets: on loopback, or on the wires
    between them.
    """
    if "SLURM_JOB_ID" not in environ:
        return Reach(slurm=False, nodes=1, local=True)
    nodes, cluster = int(environ.get("SLURM_JOB_NUM_NODES", 1)), environ.get("SLURM_CLUSTER_NAME", "")
    device = interface() if cluster.startswith(SMALL_ON_WIRES) else "lo" if cluster.startswith(SMALL) else ""
    return Reach(
        slurm=True,
        nodes=nodes,
        local=device == "lo" or (nodes == 1 and "SLURMD_NODENAME" in environ),
        device=device,
    )


def hydra_variables(reach: Reach) -> dict[str, str]:
    """Return the variable for the interface of mpirun's port for srun's proxies; empty if mpirun finds it itself."""
    iface = ("lo" if reach.local else reach.device) if reach.slurm else ""
    return {"HYDRA_IFACE": iface} if iface else {}


def ucx_variables(n: int, reach: Reach, environ: Mapping[str, str]) -> dict[str, object]:
    """Return the variables for UCX's transports: on one machine shared memory only, without listening sockets.

    System V shared memory is open to the user's whole group (`ipcs -m` shows 660, UCX 1.20). POSIX shared memory is
    not, but needs space in /dev/shm; if there is little, as in many containers, UCX may use either. Between machines it
    may use all transports, which set-up disables for this environment's UCX (`keep_mpi_here` in the script `lab`).
    """
    if reach.nodes > 1:
        devices = {"UCX_NET_DEVICES": reach.device} if reach.device else {}
        return {"UCX_TLS": environ.get("UCX_TLS", "all"), **devices}
    free = 0
    with contextlib.suppress(OSError):  # missing in some containers
        free = shutil.disk_usage(SHARED_MEMORY).free
    private = not reach.slurm and free >= n * SHM_BYTES_PER_RANK
    if may_copy_between_processes():
        return {"UCX_TLS": "posix,cma,self" if private else "sm,self"}
    return {"UCX_TLS": "posix,self" if private else "posix,sysv,self", "MPIR_CVAR_CH4_CMA_ENABLE": 0}


@functools.cache
def may_copy_between_processes() -> bool:
    """Return whether a process may copy from another's memory, process_vm_readv(2): some containers forbid the call.

    MPICH and UCX copy large messages so (CMA, Cross Memory Attach), and end the run if the call fails.
    """
    byte = ctypes.c_byte()
    whole = (ctypes.c_size_t * 2)(ctypes.addressof(byte), 1)  # a struct iovec
    copied: int = ctypes.CDLL(None).process_vm_readv(os.getpid(), whole, 1, whole, 1, 0)
    return copied == 1


def _check_count(name: str, value: object) -> int:
    count = as_integer(value)
    if count is None or count < 1:
        raise LabError(f"{name} must be an integer, 1 or more, not {value!r}.")
    return count


def _too_few_cores(n: int, threads: int, cores: int) -> str:
    ranks = f"{plural(n, 'rank')} × {plural(threads, 'thread')}"
    return f"Warning: {ranks} on {plural(cores, 'core')}: ranks share cores, unbound."


def _cores_in_use(n: int, threads: int, bound: bool, all_cores: Sequence[Core], free: Sequence[Core]) -> str:
    taken = sum(core not in free for core in all_cores)
    other_runs = f"Warning: other runs have {taken} of {plural(len(all_cores), 'core')}"
    ranks = f"{plural(n, 'rank')} × {plural(threads, 'thread')}"
    if bound:
        return f"{other_runs}: {ranks} on the rest."
    return f"{other_runs}: {ranks} share cores with them, unbound, and figures will be noisy."


def _ranges(cpus: Sequence[int]) -> str:
    """Return CPUs in Hydra's notation, such as 0-3+8."""
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
