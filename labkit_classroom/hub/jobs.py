"""Students' servers as jobs of Slurm: which Slurm, where its nodes are, what a job has, how all of them are ended."""

import contextlib
import ipaddress
import math
import os
import re
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from labkit.mpi import small_slurm
from labkit.slurm import Slurm, find_slurm
from labkit.slurm.supervisor import query
from labkit.system import processes
from labkit.system.addresses import towards
from labkit.system.errors import LabError
from labkit_classroom.hub.settings import Request, State

CORES = 2  # CPUs of each job, where the nodes have them: ranks need two
HOURS = 8.0  # hours that a job lasts, in which a day of teaching fits
END_TIMEOUT_S = 40.0  # seconds for jobs to end: Slurm kills what does not within KillWait, 30 s by default
PLACE_TIMEOUT_S = 120.0  # seconds for the job that is looked at to leave the queue
PENDING, RUNNING = "PENDING", "RUNNING"


class Given(NamedTuple):
    """What Slurm gives a job.

    Attributes
    ----------
    cpus : int
        CPUs that no other job has.
    memory : int
        Bytes; 0 where Slurm shares out no memory.
    hours : float
        After which it is ended; infinite without a limit.
    """

    cpus: int
    memory: int
    hours: float


def find() -> Slurm:
    """Return the Slurm that takes the jobs.

    Raises
    ------
    LabError
        When there is none, or its nodes cannot reach the hub.
    """
    slurm = find_slurm()
    if not slurm:
        raise LabError("--isolation slurm takes a Slurm that answers. To try it here: ./lab cluster up --nodes 2")
    if slurm.network:
        raise LabError("the small Slurm's nodes are on wires that lead nowhere else: start it without --network.")
    return slurm


def variables(slurm: Slurm, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables by which commands find a Slurm, and the user's own for sbatch, such as SBATCH_PARTITION."""
    own = {name: value for name, value in environ.items() if name == "SLURM_CONF" or name.startswith("SBATCH_")}
    return own | dict(slurm.variables)


def check_cores(slurm: Slurm, cores: float | None) -> int:
    """Return the number of CPUs that each job asks for; by default two, where the nodes have them.

    Raises
    ------
    LabError
        When no job can have so many.
    """
    if cores is None:
        return min(CORES, slurm.cpus_per_node)
    if cores not in range(1, slurm.cpus_per_node + 1):
        raise LabError(f"a job has whole CPUs, and its node has {slurm.cpus_per_node}: --cores is not {cores:g}.")
    return int(cores)


def capacity(slurm: Slurm, request: Request) -> str:
    """Return a sentence on how many servers Slurm has CPUs for."""
    places = slurm.nodes * (slurm.cpus_per_node // int(request.cores))
    return (
        f"Slurm has CPUs for {places} servers at a time, {request.cores:g} for each, on {slurm.nodes} nodes that are up"
    )


def is_small(hub: State) -> bool:
    """Whether it is the small Slurm, which holds nobody to what it gives: it has no control groups."""
    return small_slurm.is_small(Path(hub.variables.get("SLURM_CONF", "")).parent.name)


def addresses(slurm_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the address of each node."""
    listing = query("sinfo", "-h", "-N", "-o", "%N %o", environ=os.environ | dict(slurm_variables)) or ""
    return dict(line.split() for line in listing.splitlines())


def hub_address(slurm_variables: Mapping[str, str]) -> str:
    """Return this machine's address on the way to the nodes."""
    for address in addresses(slurm_variables).values():
        return towards(address)
    raise LabError("Slurm does not say where its nodes are: `sinfo -N` lists them where it answers.")


def reached_at(hub: State, host: str) -> str:
    """Return the address at which the hub reaches a server on a node: the hub's own, where the node is this machine.

    Its name may lead to another address of loopback, such as Debian's 127.0.1.1, where nobody listens.
    """
    with contextlib.suppress(OSError):
        if ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0]).is_loopback:
            return hub.hub_address
    return host


def given(hub: State, seat: str) -> Given | None:
    """Return what Slurm gives the job of a seat's server; None when none runs."""
    for _, name, state, cpus, memory, start, end in _jobs(hub):
        if name == hub.account(seat) and state == RUNNING:
            return Given(int(cpus), _bytes(memory), _hours(start, end))
    return None


def _bytes(text: str) -> int:
    """Read memory as Slurm writes it, such as 1500M or 4G."""
    number, unit = re.fullmatch(r"([\d.]+)([KMGT]?)", text).groups()  # type: ignore[union-attr]
    return int(float(number) * 1024 ** ("KMGT".index(unit) + 1 if unit else 2))


def _hours(start: str, end: str) -> float:
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() / 3600
    except ValueError:  # a word of Slurm's
        return math.inf


def wait_for_place(hub: State, seat: str) -> None:
    """Wait while the job of a seat's server is in the queue.

    Raises
    ------
    LabError
        When it is there for long; it is cancelled then.
    """

    def queued() -> list[str]:
        return [job[0] for job in _jobs(hub) if job[1:3] == [hub.account(seat), PENDING]]

    if not processes.wait_until(lambda: not queued(), PLACE_TIMEOUT_S):
        numbers = queued()
        query("scancel", *numbers, environ=os.environ | hub.variables)
        raise LabError(
            f"Slurm had no place for a server within {PLACE_TIMEOUT_S:.0f} s: `squeue` shows why. Ask for less by "
            "--cores, --memory and --hours, or for nodes that are free by SBATCH_PARTITION or SBATCH_RESERVATION."
        )


def is_gone(hub: State) -> bool:
    """Whether the small Slurm is down, and has ended its jobs; its commands would look for it for a minute."""
    return "SLURM_CONF" in hub.variables and not Path(hub.variables["SLURM_CONF"]).exists()


def cancel_all(hub: State) -> None:
    """Cancel a hub's jobs, and wait until they are gone.

    Raises
    ------
    LabError
        When Slurm does not answer, or does not end them.
    """
    if is_gone(hub):
        return
    deadline = time.monotonic() + END_TIMEOUT_S
    while numbers := [number for number, *_ in _jobs(hub)]:
        if time.monotonic() > deadline:
            raise LabError(f"Slurm does not end the jobs {', '.join(numbers)}: once it has, ./lab hub down goes on.")
        query("scancel", *numbers, environ=os.environ | hub.variables)
        time.sleep(1)


def _jobs(hub: State) -> list[list[str]]:
    """Return of each of a hub's jobs its number, name, state, CPUs, memory, start and end."""
    command = ["squeue", "-h", f"--user={os.geteuid()}", "-o", "%A %j %T %C %m %S %e"]
    listing = query(*command, environ=os.environ | hub.variables)
    if listing is None:
        raise LabError("Slurm does not answer, and knows of this hub's jobs: try again when `squeue` does.")
    jobs = [line.split(" ") for line in listing.splitlines()]
    return [job for job in jobs if job[1].startswith(hub.account(""))]


def listen_on_node(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which a server in a job listens where the hub reaches it, and not at all addresses."""
    hub = str(urlsplit(environ["JUPYTERHUB_API_URL"]).hostname)
    own = towards(hub)
    return {"JUPYTERHUB_SERVICE_URL": environ["JUPYTERHUB_SERVICE_URL"].replace("0.0.0.0", own, 1)}
