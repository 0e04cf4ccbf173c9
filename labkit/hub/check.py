"""Whether a server is held to what was asked for, read back from inside one; and how many the machine carries."""

import json
from typing import Any, NamedTuple

from labkit.hub import settings
from labkit.hub.client import Client
from labkit.hub.memory import GIB, pss
from labkit.hub.settings import CHECK_SEAT, Settings
from labkit.system import processes
from labkit.system.machine import Machine

LOOK = "import json\nfrom labkit.hub import probe\nprint(json.dumps(probe.look()))"
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
        What `probe.look` saw; and the memory (bytes) of that server with an idle kernel.
    """
    client.start(CHECK_SEAT)
    try:
        client.wait(CHECK_SEAT, timeout)
        seen = json.loads(client.run(CHECK_SEAT, LOOK))
        home = str(client.hub.home(CHECK_SEAT))
        server = processes.find(lambda process: processes.environ_of(process).get("LAB_FOLDER") == home)
        return seen, sum(map(pss, server))
    finally:
        client.stop(CHECK_SEAT)


def judge(hub: Settings, seen: dict[str, Any]) -> list[Row]:
    """Compare what a server is held to with what was asked; where nothing keeps students apart, nothing was asked."""
    memory, cores, tasks, write = seen["memory"], seen["cores"], seen["tasks"], seen["write"]
    others = f"{len(seen['read'])} and {seen['signal']} in reach" if seen["read"] or seen["signal"] else OUT_OF_REACH
    rows = [
        Row(
            "memory",
            f"{hub.memory / GIB:.1f} GiB" if hub.memory else NO_LIMIT,
            f"{memory / GIB:.1f} GiB" if memory else NO_LIMIT,
            not hub.memory or (memory is not None and memory <= hub.memory + PAGE_BYTES),
        ),
        Row(
            "CPU time",
            f"{hub.cores:g} CPUs" if hub.cores else NO_LIMIT,
            f"{cores:g} CPUs" if cores else NO_LIMIT,
            not hub.cores or (cores is not None and cores <= hub.cores + 0.01),
        ),
        Row("processes and threads", str(hub.tasks), str(tasks) if tasks >= 0 else NO_LIMIT, 0 <= tasks <= hub.tasks),
        Row("starts on CPUs", _cpus(hub.cpus), _cpus(seen["cpus"]), not hub.cpus or seen["cpus"] == list(hub.cpus)),
        Row("the kit", "read only", f"can write {write[0]}" if write else "read only", not write),
        Row("others' folders, processes", OUT_OF_REACH, others, others == OUT_OF_REACH),
        Row("more rights", "none", "can be had" if seen["privileges"] else "none", not seen["privileges"]),
    ]
    if hub.isolation == settings.NONE:
        return [row._replace(asked="–", holds=True) for row in rows]
    return rows


def carries(machine: Machine, student: int) -> int:
    """Return how many students fit into the memory that is free now, each with so many bytes."""
    return max(0, (machine.memory_free - RESERVED) // student)


def _cpus(cpus: Any) -> str:
    return ",".join(map(str, cpus)) if cpus else "all"
