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
PAGE_BYTES = 1 << 16  # the kernel rounds a limit to whole pages
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
        if client.hub.asked.isolation == settings.SLURM:
            jobs.wait_for_place(client.hub, CHECK_SEAT)
        client.wait(CHECK_SEAT, timeout)
        seen = json.loads(client.run(CHECK_SEAT, LOOK))
        if client.hub.asked.isolation == settings.SLURM:
            seen["job"] = jobs.given(client.hub, CHECK_SEAT)
        return seen, sum(map(pss, accounts.processes_of(client.hub, CHECK_SEAT)))
    finally:
        client.stop(CHECK_SEAT)


def judge(hub: State, seen: dict[str, Any]) -> list[Row]:
    """Compare what a server is held to with what was asked; where nothing keeps students apart, nothing was asked."""
    asked, memory, cores, tasks, write = hub.asked, seen["memory"], seen["cores"], seen["tasks"], seen["write"]
    others = f"{len(seen['read'])} and {seen['signal']} in reach" if seen["read"] or seen["signal"] else OUT_OF_REACH
    rows = [
        Row(
            "memory",
            f"{asked.memory / GIB:.1f} GiB" if asked.memory else NO_LIMIT,
            f"{memory / GIB:.1f} GiB" if memory else NO_LIMIT,
            not asked.memory or (memory is not None and memory <= asked.memory + PAGE_BYTES),
        ),
        Row(
            "CPU time",
            f"{asked.cores:g} CPUs" if asked.cores else NO_LIMIT,
            f"{cores:g} CPUs" if cores else NO_LIMIT,
            not asked.cores or (cores is not None and cores <= asked.cores + 0.01),
        ),
        Row(
            "processes and threads", str(asked.tasks), str(tasks) if tasks >= 0 else NO_LIMIT, 0 <= tasks <= asked.tasks
        ),
        Row(
            "starts on CPUs", _cpus(asked.cpus), _cpus(seen["cpus"]), not asked.cpus or seen["cpus"] == list(asked.cpus)
        ),
        Row("the kit", "read only", f"can write {write[0]}" if write else "read only", not write),
        Row("others' folders, processes", OUT_OF_REACH, others, others == OUT_OF_REACH),
        Row("more rights", "none", "can be had" if seen["privileges"] else "none", not seen["privileges"]),
    ]
    if asked.isolation == settings.SLURM:
        return [*_of_job(hub, seen), *(row._replace(asked="–", holds=True) for row in rows[2:])]
    if asked.isolation == settings.NONE:
        return [row._replace(asked="–", holds=True) for row in rows]
    return rows


def _of_job(hub: State, seen: dict[str, Any]) -> list[Row]:
    """Compare what was asked with what Slurm gives the job, and with what the job could take all the same."""
    asked, job, small = hub.asked, seen["job"] or jobs.Given(0, 0, math.inf), jobs.is_small(hub)
    memory = f"{asked.memory / GIB:.1f} GiB" if asked.memory else NO_LIMIT
    taken = f"{seen['memory'] / GIB:.1f} GiB" if seen["memory"] else NO_LIMIT
    held = not asked.memory or (seen["memory"] is not None and seen["memory"] <= asked.memory + PAGE_BYTES)
    cpus, none = len(seen["cpus"]), ": the small Slurm sets none"
    return [
        Row("memory that Slurm gives", memory, f"{job.memory / GIB:.1f} GiB", job.memory >= asked.memory),
        Row("CPUs that Slurm gives", f"{asked.cores:g}", str(job.cpus), job.cpus >= asked.cores),
        Row("time that Slurm gives", f"{asked.hours:g} h", f"{job.hours:g} h", abs(job.hours - asked.hours) < 1 / 30),
        Row("memory in its reach", memory, taken + (none if small and not held else ""), held or small),
        Row("CPUs in its reach", f"{asked.cores:g}", str(cpus), cpus <= max(asked.cores, job.cpus) or small),
    ]


def carries(machine: Machine, student: int) -> int:
    """Return how many students fit into the memory that is free now, each with so many bytes."""
    return max(0, (machine.memory_free - RESERVED) // student)


def _cpus(cpus: Any) -> str:
    return ",".join(map(str, cpus)) if cpus else "all"
