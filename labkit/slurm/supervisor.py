"""The supervisor of a small Slurm: starts its daemons, watches them, and ends them with all their jobs.

The daemons come from Debian's packages and are started for this checkout only: munged, slurmctld, and a slurmd for each
node, with their own configuration, key and ports. They need no root, because they run jobs only for the user who
started them. A slurmd without root runs every job as its own user, so no other user may be able to submit one. All
requests between Slurm's programs need a credential from munged, whose socket and key are in a folder that is closed to
other users.

A supervisor process (`python -m labkit.slurm.supervisor`) starts the daemons. Processes under them whose parents have
ended become its children (PR_SET_CHILD_SUBREAPER, prctl(2)), so it can end all of them.

On a testbed (`labkit.testbed`), each slurmd runs on one of its nodes, and slurmctld at its switch. No network connects
the testbed to the machine, so Slurm's commands run inside it too: the folder `bin` holds a wrapper for each, which
enters it. munged stays outside: its socket is a file, which every process can open.
"""

import contextlib
import fcntl
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from labkit.mpi.planning import SMALL, SMALL_ON_WIRES
from labkit.system import addresses, locks, processes
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError
from labkit.system.lifetime import adopt_orphans, end_with
from labkit.system.machine import Machine, node_cores, node_cpus
from labkit.testbed import Testbed
from labkit.testbed.wiring import SWITCH_ADDRESS

TMP = Path("/tmp")  # the folder of the folders that hold a small Slurm
CONF = "slurm.conf"
COMMANDS_FOLDER = "bin"  # in the folder, on a testbed: wrappers of Slurm's commands
COMMANDS = ("sacct", "salloc", "sattach", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
NETWORK_FILE = "network"  # a file in the folder: the requested rate, and the measured one in words
# Listen only at the address of this machine's name: on most machines, loopback.
OWN_ADDRESS_ALONE = "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny"
CONTROLLER_PORT, NODE_PORT = 6817, 6818  # Slurm's default ports: on a testbed, they are free
PARTITION = "lab"

START_TIMEOUT_S = 30.0  # the limit for a daemon to come up
SAVE_TIMEOUT_S = 5.0  # the limit for jobs to save their state when the cluster is taken down
ANSWER_TIMEOUT_S = 5.0  # the limit for Slurm to answer a query
LOG_LINES = 5  # the number of a daemon's last log lines that an error quotes

PID_FILE = "supervisor.pid"  # a file in the folder, locked while the supervisor runs
UP, STAY = "up\n", "stay\n"  # the supervisor's line once all is up (otherwise, the reason), and the answer to it
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
SCRIPT_RUNNER = "slurmscriptd"  # a child of slurmctld
PROGRAMS = {"munged", "slurmctld", "slurmd", "slurmstepd", "srun", SCRIPT_RUNNER}


class Place(NamedTuple):
    """A daemon's listening place: its machine's name, an address and a port."""

    host: str
    address: str
    port: int


class Supervisor:
    """The process that starts the daemons, watches them, and ends all that runs under them."""

    def __init__(self, link: Path, nodes: int, until: int, rate: str) -> None:
        self.link, self.nodes, self.rate = link, nodes, rate
        self.until = psutil.Process(until) if until else None
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.testbed: Testbed | None = None
        self.holders: set[int] = set()  # the processes that hold the testbed
        prefix = SMALL_ON_WIRES if rate else SMALL
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=TMP))  # closed to all other users

    def run(self) -> None:
        """Start everything, print `UP` and, if asked to stay, run until a stop signal or the end of `until`."""
        try:
            self.start()
            print(UP, end="", flush=True)
            if sys.stdin.readline() == STAY:
                _close_pipes()
                while not self.tick(1.0 if self.until else 3600.0) and (
                    not self.until or processes.is_alive(self.until)
                ):
                    pass
        except LabError as error:
            print(error)
        finally:
            self.end()

    def start(self) -> None:
        """Start the daemons and wait until the nodes accept jobs."""
        folder, machine = self.folder, usable_machine()
        self.lock = (folder / PID_FILE).open("w", encoding="utf-8")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        locks.sign(self.lock)
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(folder)

        for name in ("log", "state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        conf = folder / CONF
        if self.rate:
            testbed = self.make_testbed()
            places = [Place(socket.gethostname(), SWITCH_ADDRESS, CONTROLLER_PORT)]
            places += [Place(f"node{node.number}", node.address, NODE_PORT) for node in testbed.nodes]
            settings = [self.task_prolog(testbed.interface)]
        else:
            places = _places_here(self.nodes + 1)
            settings = [OWN_ADDRESS_ALONE, self.task_prolog("lo")]
        conf.write_text(slurm_conf(folder, self.nodes, machine, places, settings), encoding="utf-8")
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={_cgroup_plugin()}\n", encoding="utf-8")

        files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munged.pid"}
        files |= {"seed-file": folder / "munge.seed"}
        # By default, munged insists on a socket that every user can reach: hence --force.
        options = (f"--{name}={path}" for name, path in files.items())
        self.daemon("munged", "munged", "--foreground", "--force", *options)
        self.wait("munged", files["socket"].exists)
        files["socket"].chmod(0o600)
        self.daemon("slurmctld", "slurmctld", "-D", "-f", str(conf), within=self.enter())
        # Cores are not reserved (labkit.system.cores): a cluster stays up for hours and is mostly idle, and concurrent
        # runs would have no free core.
        for number, cpus in enumerate(node_cpus(machine, self.nodes), start=1):
            slurmd = ("slurmd", "-D", "-N", f"n{number}", "-f", str(conf))
            self.daemon(f"n{number}", *slurmd, cpus=cpus, within=self.enter(number))
        self.wait("the nodes", self.all_idle)
        if not self.testbed and address() != addresses.LOOPBACK and address().startswith("127."):
            # Such as 127.0.1.1 on Debian. The daemons already listen there. An srun that listens there would never hear
            # from its tasks, which reply to its source address: within loopback, the kernel uses the first address.
            conf.write_text(conf.read_text(encoding="utf-8").replace(",NoInAddrAny", ""), encoding="utf-8")
        (folder / "up").write_text(f"{self.nodes} {node_cores(machine, self.nodes)}", encoding="utf-8")

    def make_testbed(self) -> Testbed:
        """Make the testbed, and the wrappers of Slurm's commands that run in it."""
        testbed = Testbed(self.nodes, self.rate)
        self.holders = {process.pid for process in self.children()}
        self.testbed = testbed  # from now on, `end` closes it
        (self.folder / NETWORK_FILE).write_text(f"{self.rate}\n{testbed}", encoding="utf-8")
        self.write_commands(testbed.enter())
        return testbed

    def write_commands(self, enter: Sequence[str]) -> None:
        """Write a wrapper for each of Slurm's commands; within a job, which is in the testbed, it enters nothing."""
        folder = self.folder / COMMANDS_FOLDER
        folder.mkdir()
        for path in filter(None, map(processes.which, COMMANDS)):
            command = f'{shlex.quote(path)} "$@"'
            wrapper = folder / Path(path).name
            inside = f"[ /proc/self/ns/net -ef /proc/{os.getpid()}/ns/net ]"
            lines = ["#!/bin/sh", f"{inside} && exec {shlex.join(enter)} {command}", f"exec {command}\n"]
            wrapper.write_bytes(os.fsencode("\n".join(lines)))
            wrapper.chmod(0o700)

    def task_prolog(self, interface: str) -> str:
        """Write a script whose output Slurm reads, variables for each task and a job's script; return its setting.

        Between nodes, which are all this machine, MPI uses the interface that joins them and no other.
        """
        lines = [f"echo export {name}={interface}" for name in ("UCX_NET_DEVICES", "HYDRA_IFACE")]
        lines += ['[ "${SLURM_JOB_NUM_NODES:-1}" = 1 ] || echo export UCX_TLS=all', ""]
        prolog = self.folder / "task-prolog"
        prolog.write_text("\n".join(["#!/bin/sh", *lines]), encoding="utf-8")
        prolog.chmod(0o700)
        return f"TaskProlog={prolog}"

    def enter(self, node: int | None = None) -> Sequence[str]:
        """Return the command prefix that runs a daemon on a node of the testbed, or at its switch; else nothing."""
        return self.testbed.enter(node) if self.testbed else ()

    def daemon(self, name: str, *argv: str, cpus: tuple[int, ...] = (), within: Sequence[str] = ()) -> None:
        """Start a daemon, which ends with the supervisor; it and its children use only these CPUs."""
        supervisor = os.getpid()

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if cpus:
                os.sched_setaffinity(0, cpus)
            end_with(supervisor)

        with self.log(name).open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [*within, processes.which(argv[0]) or argv[0], *argv[1:]],
                env=environ(self.folder),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=prepare,
            )

    def log(self, name: str) -> Path:
        """Return the file with a daemon's output."""
        return self.folder / "log" / f"{name}.log"

    def wait(self, what: str, is_ready: Callable[[], bool]) -> None:
        """Wait until `is_ready`; give up if a daemon ends, time runs out, or the process that started this is gone."""
        began = time.monotonic()
        while not is_ready():
            stop = self.tick(0.1)
            if ended := self.ended():
                raise LabError("\n".join(ended))
            if stop or select.select([sys.stdin], [], [], 0)[0]:
                raise LabError("interrupted")
            if time.monotonic() - began > START_TIMEOUT_S:
                logs = "\n".join(self.last_lines(name) for name in self.daemons)
                raise LabError(f"{what} did not answer within {START_TIMEOUT_S:.0f} s\n{logs}")

    def all_idle(self) -> bool:
        """Return whether every node is ready for jobs."""
        states = query("sinfo", "-h", "-N", "-o", "%T", environ=environ(self.folder), timeout=1.0)
        return (states or "").split() == ["idle"] * self.nodes

    def tick(self, seconds: float) -> bool:
        """Wait for `seconds` or a signal; note which daemons ended; return whether to end everything."""
        received = signal.sigtimedwait({signal.SIGCHLD, *STOP_SIGNALS}, seconds)
        self.reap()
        return received is not None and received.si_signo in STOP_SIGNALS

    def reap(self) -> None:
        """Note which daemons ended, and reap ended processes that have no other parent."""
        daemons = {process.pid: process for process in self.daemons.values()}
        with contextlib.suppress(ChildProcessError):
            while child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if child.si_pid in daemons:
                    daemons[child.si_pid].poll()
                    (self.folder / "ended").write_bytes("".join(f"{words}\0" for words in self.ended()).encode())
                else:
                    os.waitpid(child.si_pid, 0)

    def ended(self) -> list[str]:
        """Return the exit of each ended daemon in words, with the last lines of its log."""
        ended = []
        for name, process in self.daemons.items():
            if process.returncode is not None:
                verb = "was" if process.returncode < 0 else "ended with"
                ended.append(f"{name} {verb} {processes.describe_exit(process.returncode)}.\n{self.last_lines(name)}")
        return ended

    def last_lines(self, name: str) -> str:
        """Return the end of a daemon's log."""
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        return "\n    ".join([f"The log of {name} ends:", *(line[:300] for line in lines)])

    def end(self) -> None:
        """Cancel the jobs, which may save their state, kill the remaining processes, and remove all files."""
        if is_complete := (self.folder / "up").exists() and not self.ended():
            query("scancel", f"--partition={PARTITION}", environ=environ(self.folder))
        excluded = {SCRIPT_RUNNER} if is_complete else PROGRAMS  # clients of a dead daemon would wait in vain
        if not is_complete:
            for process in self.jobs(excluded):
                with contextlib.suppress(psutil.Error):
                    process.terminate()
        processes.wait_until(lambda: not self.jobs(excluded), SAVE_TIMEOUT_S)
        processes.end_all(self.children)
        if self.testbed:
            self.testbed.close()
        if self.link.is_symlink() and self.link.readlink() == self.folder:
            self.link.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def jobs(self, excluded: set[str]) -> list[psutil.Process]:
        """Return the processes that are neither daemons nor named in `excluded`."""
        pids = self.holders | {process.pid for process in self.daemons.values()}
        return [process for process in self.children() if process.pid not in pids and _name(process) not in excluded]

    def children(self) -> list[psutil.Process]:
        """Return all processes under this one that have not ended."""
        self.reap()
        return psutil.Process().children(recursive=True)


def slurm_conf(folder: Path, nodes: int, machine: Machine, places: Sequence[Place], settings: Iterable[str]) -> str:
    """Return the configuration, with settings that Slurm 21.08 to 24.11 accepts; others have their defaults.

    `places` are those of the controller and of each node, which is an equal share of the machine.
    """
    controller, *node_places = places
    user = psutil.Process().username()
    cpus, memory = node_cores(machine, nodes), max(1, machine.memory // nodes // 2**20)
    lines = [
        f"ClusterName={folder.name}",  # set in each job's environment, which identifies its processes
        f"SlurmctldHost={controller.host}({controller.address})",
        f"SlurmctldPort={controller.port}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        # A requeued job waits until its credential has expired: 5 s instead of 2 minutes.
        f"AuthInfo=socket={folder}/munge.socket,cred_expire=5",
        "JobCompType=jobcomp/filetxt",  # for `sacct -c`; accounting needs a database
        f"JobCompLoc={folder}/jobs",
        *settings,
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/%n.pid",
        "ProctrackType=proctrack/linuxproc",  # the default needs control groups
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SlurmdParameters=config_overrides",  # a node is a part of this machine, not all that slurmd sees
        "ReturnToService=2",
        # Even with a credential, another user sees nothing and has no partition to submit to: RootOnly admits root and
        # SlurmUser (_part_access_check in Slurm's job_mgr.c).
        "PrivateData=jobs,nodes,partitions,reservations,usage,users",
        "SchedulerParameters=batch_sched_delay=0",  # by default, a job waits up to 3 s for others
        *(
            f"NodeName=n{number} NodeHostname={host} NodeAddr={addr} Port={port} CPUs={cpus} RealMemory={memory}"
            for number, (host, addr, port) in enumerate(node_places, start=1)
        ),
        f"PartitionName={PARTITION} Nodes=ALL Default=YES RootOnly=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join([*lines, ""])


def _places_here(n: int) -> list[Place]:
    """Return this machine's address with each of n free ports."""
    host_address = address()
    return [Place(socket.gethostname(), host_address, port) for port in addresses.free_ports(n, host_address)]


def _cgroup_plugin() -> str:
    """Return the plugin that keeps slurmd away from control groups: `disabled`, documented since 24.05.

    Older versions get the plugin for control groups version 1, which does nothing until a limit is requested, whichever
    version the machine has (tried with 22.05). The plugin for version 2, Slurm's own choice, needs systemd or root
    (https://slurm.schedmd.com/cgroup_v2.html). Remove the older case when docs/contribute/upstream.md says so.
    """
    words = query("sinfo", "--version", environ={"PATH": processes.search_path()}) or ""  # as "slurm-wlm 22.05.8"
    version = tuple(int(part) for part in re.findall(r"\d+", words)[:2])
    return "disabled" if version >= (24, 5) else "cgroup/v1"


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _close_pipes() -> None:
    """Close the pipes to the process that started this one."""
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)


# Variables and queries


def variables(folder: Path) -> dict[str, str]:
    """Return the environment variables with which `sbatch` and the others find the small Slurm in a folder."""
    settings = {"SLURM_CONF": str(folder / CONF)}
    commands = folder / COMMANDS_FOLDER
    if commands.exists():
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        settings["PATH"] = os.pathsep.join(dict.fromkeys([str(commands), *path]))
    return settings


def environ(folder: Path) -> dict[str, str]:
    """Return the complete environment of the small Slurm's daemons and queries, without another Slurm's variables."""
    path = os.pathsep.join([str(folder / COMMANDS_FOLDER), processes.search_path()])
    return {"PATH": path, "SLURM_CONF": str(folder / CONF)}


def query(*argv: str, environ: Mapping[str, str], timeout: float = ANSWER_TIMEOUT_S) -> str | None:
    """Return the output of a Slurm command; None if it fails or does not answer in time."""
    try:
        done = subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").rstrip() if done.returncode == 0 else None


def address() -> str:
    """Return the address of this machine's name: under NoInAddrAny, Slurm listens only there."""
    return str(socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])


def main(link: str, nodes: str, until: str, rate: str) -> None:
    """Run a supervisor in a detached process."""
    if os.fork():
        os._exit(0)
    os.umask(0o077)  # only the user can read the key and the configuration
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *STOP_SIGNALS})
    adopt_orphans()
    try:
        Supervisor(Path(link), int(nodes), int(until), rate).run()
    except OSError as error:  # such as a full disk
        print(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
