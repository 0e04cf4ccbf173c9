"""Whether a server is held to what was asked for, read back from inside one; and how many the machine carries."""

import json
import math
from typing import Any, NamedTuple

from labkit.system.machine import Machine
from labkit_classroom.hub import accounts, jobs, settings
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.memory import GIB, pss
from labkit_classroom.hub.settings import CHECK_SEAT, State

LOOK = "import json\nfrom labkit_classroom.hub import probe\nprint(json.dumps(probe.look()))"
PAGE_BYTES = 1 << 16  # a page, or more: the kernel rounds a limit to whole pages
NO_LIMIT, OUT_OF_REACH = "no limit", "out of reach"
RESERVED = 1 << 30  # bytes for the system, the hub and its proxy


class Row(NamedTuple):
    """One thing that a student's server is held to: what was asked, what was read back, whether it holds."""

    what: str
    asked: str
    found: str
    holds: bool


def read_back(client: Client, timeout: float) -> tuple[dict[str, Any], int]:
    """Start a server that is nobody's, look at it from inside, and end it.

    Returns
    -------
    dict, int
        What `probe.look` saw, and what Slurm gives its `job`; and the memory (bytes) of that server with an idle
        kernel.
    """
    client.stop(CHECK_SEAT)  # of a look that was killed
    client.start(CHECK_SEAT)
    try:
        if client.hub.request.isolation == settings.SLURM:
            jobs.wait_for_place(client.hub, CHECK_SEAT)
        client.wait(CHECK_SEAT, timeout)
        seen = json.loads(client.run(CHECK_SEAT, LOOK))
        if client.hub.request.isolation == settings.SLURM:
            seen["job"] = jobs.given(client.hub, CHECK_SEAT)
        return seen, sum(map(pss, accounts.processes_of(client.hub, CHECK_SEAT)))
    finally:
        client.stop(CHECK_SEAT)


def judge(hub: State, seen: dict[str, Any]) -> list[Row]:
    """Compare what a server is held to with what was asked; where nothing keeps students apart, nothing was asked."""
    request, memory, cores, tasks, write = hub.request, seen["memory"], seen["cores"], seen["tasks"], seen["write"]
    others = f"{len(seen['read'])} and {seen['signal']} in reach" if seen["read"] or seen["signal"] else OUT_OF_REACH
    rows = [
        Row(
            "memory",
            f"{request.memory / GIB:.1f} GiB" if request.memory else NO_LIMIT,
            f"{memory / GIB:.1f} GiB" if memory else NO_LIMIT,
            not request.memory or (memory is not None and memory <= request.memory + PAGE_BYTES),
        ),
        Row(
            "CPU time",
            f"{request.cores:g} CPUs" if request.cores else NO_LIMIT,
            f"{cores:g} CPUs" if cores else NO_LIMIT,
            not request.cores or (cores is not None and cores <= request.cores + 0.01),
        ),
        Row(
            "processes and threads",
            str(request.tasks),
            str(tasks) if tasks >= 0 else NO_LIMIT,
            0 <= tasks <= request.tasks,
        ),
        Row(
            "starts on CPUs",
            _cpus(request.cpus),
            _cpus(seen["cpus"]),
            not request.cpus or seen["cpus"] == list(request.cpus),
        ),
        Row("the kit", "read only", f"can write {write[0]}" if write else "read only", not write),
        Row("others' folders, processes", OUT_OF_REACH, others, others == OUT_OF_REACH),
        Row("more rights", "none", "can be had" if seen["privileges"] else "none", not seen["privileges"]),
    ]
    if request.isolation == settings.SLURM:
        return [*_of_job(hub, seen), *(row._replace(asked="–", holds=True) for row in rows[2:])]
    if request.isolation == settings.NONE:
        return [row._replace(asked="–", holds=True) for row in rows]
    return rows


def _of_job(hub: State, seen: dict[str, Any]) -> list[Row]:
    """Compare what was asked with what Slurm gives the job, and with what the job could take all the same."""
    request, job, small = hub.request, seen["job"] or jobs.Given(0, 0, math.inf), jobs.is_small(hub)
    memory = f"{request.memory / GIB:.1f} GiB" if request.memory else NO_LIMIT
    taken = f"{seen['memory'] / GIB:.1f} GiB" if seen["memory"] else NO_LIMIT
    held = not request.memory or (seen["memory"] is not None and seen["memory"] <= request.memory + PAGE_BYTES)
    cpus, none = len(seen["cpus"]), ": the small Slurm sets none"
    return [
        Row("memory that Slurm gives", memory, f"{job.memory / GIB:.1f} GiB", job.memory >= request.memory),
        Row("CPUs that Slurm gives", f"{request.cores:g}", str(job.cpus), job.cpus >= request.cores),
        Row(
            "time that Slurm gives", f"{request.hours:g} h", f"{job.hours:g} h", abs(job.hours - request.hours) < 1 / 30
        ),
        Row("memory in its reach", memory, taken + (none if small and not held else ""), held or small),
        Row("CPUs in its reach", f"{request.cores:g}", str(cpus), cpus <= max(request.cores, job.cpus) or small),
    ]


def carries(machine: Machine, student: int) -> int:
    """Return the number of students for whom free memory is enough, by the bytes of each."""
    return max(0, (machine.memory_free - RESERVED) // student)


def _cpus(cpus: Any) -> str:
    return ",".join(map(str, cpus)) if cpus else "all"
