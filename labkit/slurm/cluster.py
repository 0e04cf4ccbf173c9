"""A Slurm to submit jobs to: a real cluster's, or a small one on this machine's cores.

Only the user who started the small one can use it, with its `SLURM_CONF` in the environment. A Slurm that is already on
the machine is left alone.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from labkit.mpi.planning import SMALL
from labkit.slurm import supervisor
from labkit.system import files, lacks, locks, processes
from labkit.system.errors import LabError
from labkit.system.paths import STATE
from labkit.system.terminal import progress
from labkit.testbed.units import parse_rate, show_rate

INSTALL = "sudo apt-get install --no-install-recommends slurm-wlm munge"
PACKAGES = {
    **dict.fromkeys(("slurmctld", "slurmd", "sbatch", "srun", "sinfo", "squeue", "scancel"), "slurm-wlm"),
    "munged": "munge",
}
MAX_NODES = 64
LOCK_TIMEOUT_S = 120.0  # the wait for another process that starts or ends a cluster
READY_STATES = ("idle", "mixed", "allocated", "completing", "planned")  # states of nodes that accept jobs


@dataclass(frozen=True)
class Slurm:
    """A Slurm that accepts jobs.

    Attributes
    ----------
    kind : {"real", "own"}
        "real" for an existing cluster, "own" for the small one on this machine.
    nodes : int
        The number of nodes of the default partition that are up.
    cpus_per_node : int
        The fewest CPUs that Slurm counts on any node; on the small one, cores.
    variables : mapping of str to str
        The environment variables with which `sbatch`, `srun` and `squeue` find it.
    network : str
        The wires between the small one's nodes, with their measured rate; empty if nodes share this machine's loopback.
    """

    kind: Literal["real", "own"]
    nodes: int
    cpus_per_node: int
    variables: Mapping[str, str]
    network: str = ""


def find_slurm() -> Slurm | None:
    """Return the small Slurm if it is up, else a real cluster that answers, else None."""
    return None if lacks.reason("slurm") else Cluster().slurm() or _real_slurm()


def start_slurm(nodes: int = 2, until: int | None = None, network: float | str | None = None) -> Slurm:
    """Start the small Slurm; see `Cluster.up`."""
    return Cluster().up(nodes, until, network)


def obstacle() -> str:
    """Return one line on why the small Slurm can't be started here and what to do; empty if it can."""
    if reason := lacks.reason("slurm"):
        return reason
    missing = dict.fromkeys(package for program, package in PACKAGES.items() if not processes.which(program))
    if missing:
        return (
            f"missing: {' '.join(missing)}. On Debian and Ubuntu: `{INSTALL}`, which ./lab setup runs as root; "
            "elsewhere your distribution's packages for Slurm and MUNGE"
        )
    try:
        supervisor.address()
    except OSError:
        name = socket.gethostname()
        return f"this machine's name, {name}, does not resolve to an address. Put '127.0.1.1 {name}' into /etc/hosts"
    try:
        # As Slurm looks for its own address (get_addr_info in its common/util-net.c).
        socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    except OSError:
        return (
            "this machine has only a loopback address, so Slurm cannot resolve its own name. Join a network, or as "
            "root: `ip addr add 192.0.2.1/32 dev lo`, an address reserved for examples"
        )
    return ""


class Cluster:
    """The small Slurm of a checkout.

    Parameters
    ----------
    link : Path
        The symbolic link to its folder. The folder itself is in /tmp: a socket's path is limited to 107 characters
        (unix(7)), and Slurm's configuration does not allow spaces.
    """

    def __init__(self, link: Path = STATE / "cluster") -> None:
        self.link = link

    def up(self, nodes: int = 2, until: int | None = None, network: float | str | None = None) -> Slurm:
        """Start it, unless it is up. A start that fails or is interrupted leaves nothing behind.

        Parameters
        ----------
        nodes : int
            The number of nodes; each gets an equal share of the cores that this process may use.
        until : int, optional
            A process id. The cluster ends when that process ends, however it ends; by default it stays until `down`.
        network : float or str, optional
            The rate of the wires between the nodes (`labkit.testbed`), in bit/s or as text such as "1 Gbit/s". By
            default there are no wires, and the nodes share this machine's loopback.

        Raises
        ------
        LabError
            If it can't be started here, does not come up, or is up with a different number of nodes or network.
        """
        if not (isinstance(nodes, int) and 1 <= nodes <= MAX_NODES):
            raise LabError(f"nodes must be an integer from 1 to {MAX_NODES}, not {nodes!r}.")
        rate = "" if network is None else f"{parse_rate(network):.0f} bit/s"
        if reason := obstacle():
            raise LabError(f"cannot start Slurm here: {reason}")
        with files.writing(self.link.parent):
            self.link.parent.mkdir(parents=True, exist_ok=True)
        with locks.locked(self.link, LOCK_TIMEOUT_S):
            if running := self.slurm():
                running_rate = _network(self.link.readlink())[0]
                if (running.nodes, running_rate) != (nodes, rate):
                    wires = f"with wires of {show_rate(parse_rate(running_rate))}" if running_rate else "without wires"
                    raise LabError(
                        f"a cluster of {running.nodes} nodes {wires} is up: end it first with ./lab cluster down"
                    )
                return running
            self._clear()
            self._start(nodes, until, rate)
            if running := self.slurm():
                return running
            raise LabError("Slurm started and ended at once: ./lab cluster status shows why.")

    def slurm(self) -> Slurm | None:
        """Return the small Slurm if it is up and complete, else None."""
        folder = self._folder()
        if not folder or self.broken():
            return None
        nodes, cpus = map(int, (folder / "up").read_text(encoding="utf-8").split())
        return Slurm("own", nodes, cpus, supervisor.variables(folder), _network(folder)[1])

    def broken(self) -> tuple[str, ...]:
        """Return its parts that have ended, a daemon with the last lines of its log; none if it was not started."""
        folder = self._folder()
        if not folder:
            return ("its folder is gone, as after a restart of this machine",) if self._target() else ()
        if not _supervisor_pid(folder):
            return ("its supervisor process is gone",)
        if not (folder / "up").exists():
            return ("it is still starting",)
        try:
            return tuple((folder / "ended").read_text(encoding="utf-8").split("\0")[:-1])
        except FileNotFoundError:
            return ()

    def down(self) -> bool:
        """End it and its jobs, which get SIGTERM and some seconds to save; return whether there was one."""
        with locks.locked(self.link, LOCK_TIMEOUT_S):
            return self._clear()

    def _target(self) -> Path | None:
        """Return the target of the link, whether it exists or not; None without a link."""
        return self.link.readlink() if self.link.is_symlink() else None

    def _folder(self) -> Path | None:
        """Return its folder; None if it is gone. Another user's is never used, not even by root: it names programs."""
        folder = self._target()
        if not folder or not _has_our_name(folder) or not folder.is_dir():
            return None
        if folder.stat().st_uid != os.geteuid():
            raise LabError(
                f"the cluster here belongs to {folder.owner()}: only that user and root can use or end it. As root: "
                f"runuser -u {folder.owner()} -- ./lab cluster down"
            )
        return folder

    def _start(self, nodes: int, until: int | None, rate: str) -> None:
        """Start it through a supervisor, and wait until it is up."""
        process = subprocess.Popen(
            [sys.executable, "-m", supervisor.__name__, str(self.link.absolute()), str(nodes), str(until or 0), rate],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            cwd="/",
            start_new_session=True,  # unaffected by an interrupt, or by a terminal that closes
        )
        first = ""
        assert process.stdin
        assert process.stdout
        with process.stdin as stdin, process.stdout as stdout, progress("Starting Slurm …"):
            try:
                process.wait()  # the supervisor is its child
                first = stdout.readline()
                if first == supervisor.UP:
                    stdin.write(supervisor.STAY)
            finally:
                with contextlib.suppress(BrokenPipeError):  # the supervisor was killed meanwhile
                    stdin.close()
                # Until the supervisor has ended, and with it everything that it started.
                problems = [] if first == supervisor.UP else [first, *stdout]
        if problems:
            lines = [line.rstrip() for line in problems]
            raise LabError(("\n  " if len(lines) > 1 else " ").join(["Slurm did not come up:", *lines]))

    def _clear(self) -> bool:
        """End all that is left of it; return whether there was anything."""
        folder, target = self._folder(), self._target()
        if not target:
            return False
        with progress("Ending Slurm and its jobs, which may save …"):
            if folder and (pid := _supervisor_pid(folder)):
                os.kill(pid, signal.SIGTERM)
                if not processes.wait_until(lambda: not _supervisor_pid(folder), processes.KILL_TIMEOUT_S):
                    os.kill(pid, signal.SIGKILL)  # the daemons end with it
            if _has_our_name(target):
                _kill_leftovers(target)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        self.link.unlink(missing_ok=True)
        return True


def _real_slurm() -> Slurm | None:
    """Return the cluster that this machine belongs to, if it answers and any of its nodes are up."""
    if not (shutil.which("sbatch") and shutil.which("sinfo")):
        return None
    environ = dict(os.environ)
    environ.pop("SLURM_CLUSTERS", None)  # with several clusters, sinfo prints a line before each
    if Path(environ.get("SLURM_CONF", "")).parent.name.startswith(SMALL):
        del environ["SLURM_CONF"]  # a small cluster's configuration
    listing = supervisor.query("sinfo", "-h", "-N", "-o", "%N %c %T %P", environ=environ)
    nodes = [line.split() for line in (listing or "").splitlines()]
    if any(partition.endswith("*") for *_, partition in nodes):  # `*` marks the default partition
        nodes = [node for node in nodes if node[-1].endswith("*")]
    # sinfo(1) appends marks to states: asleep, waking up, planned, … accept jobs; nodes marked `*` don't answer.
    cpus = {name: int(cpus) for name, cpus, state, _ in nodes if state.rstrip("~#!%$@^-+") in READY_STATES}
    return Slurm("real", len(cpus), min(cpus.values()), {}) if cpus else None


def _has_our_name(folder: Path) -> bool:
    """Return whether a folder has the name of a small cluster's."""
    return folder.parent == supervisor.TMP and folder.name.startswith(SMALL)


def _network(folder: Path) -> tuple[str, str]:
    """Return the requested rate of its wires, and a description with the measured rate; else empty."""
    try:
        rate, network = (folder / supervisor.NETWORK_FILE).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return "", ""
    return rate, network


def _supervisor_pid(folder: Path) -> int | None:
    """Return the supervisor's process id, if it is running."""
    return locks.holder(folder / supervisor.PID_FILE)


def _kill_leftovers(folder: Path) -> None:
    """Kill the processes that a killed supervisor left behind, and clients that still wait for an answer."""
    excluded = {os.getpid(), *(process.pid for process in psutil.Process().parents())}

    def leftovers() -> list[psutil.Process]:
        return processes.find(lambda process: process.pid not in excluded and _belongs(process, folder))

    if not processes.wait_until(lambda: not leftovers(), 1.0):  # most end on their own
        processes.end_all(lambda: processes.with_children(leftovers()))


def _belongs(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process belongs to the cluster in a folder.

    SLURM_CONF alone proves nothing: a terminal or notebook that uses the cluster has it too. Slurm's own programs have
    it and a known name, but slurmstepd of Slurm 24.11 erases its environment: it runs in the cluster's folder. Only
    processes of jobs have the cluster's name in their environment.
    """
    environ = processes.environ_of(process)
    if environ.get("SLURM_CLUSTER_NAME") == folder.name:
        return True
    is_near = environ.get("SLURM_CONF") == str(folder / supervisor.CONF) or process.cwd() == str(folder)
    return is_near and process.name() in supervisor.PROGRAMS
