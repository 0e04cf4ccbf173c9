"""Verify what a student's server is held to, read back from inside one."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import psutil

from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.machine import Machine
from labkit_classroom.hub import probe, settings
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.settings import CHECK_SEAT, Settings

START_TIMEOUT_S = 120.0
GIB = 1 << 30
PAGE_BYTES = 1 << 16  # the kernel rounds memory limits to pages
RESERVED = 1 << 30  # bytes for the system and the hub
USUAL_MEMORY = 4 << 30  # bytes per student where there is no limit
NO_LIMIT, OUT_OF_REACH = "no limit", "out of reach"


class Row(NamedTuple):
    """A property of a student's server: what was requested, what was found, and whether that is good enough."""

    what: str
    requested: str
    found: str
    holds: bool


def verify(client: Client) -> list[Row]:
    """Start the server of `CHECK_SEAT`, return what it is held to, and stop it.

    Raises
    ------
    LabError
        If the server does not start, or is not held to what was requested.
    """
    hub = client.settings
    client.stop(CHECK_SEAT)  # left by one that was killed
    client.start(CHECK_SEAT)
    try:
        client.wait(CHECK_SEAT, START_TIMEOUT_S)
        rows = judge(hub, json.loads((hub.home(CHECK_SEAT) / probe.FILE).read_text()))
    finally:
        client.stop(CHECK_SEAT)
    if broken := [f"{row.what}: requested {row.requested}, found {row.found}" for row in rows if not row.holds]:
        raise LabError(f"a student's server is not held to what was requested. {'; '.join(broken)}.")
    return rows


def judge(hub: Settings, found: dict[str, Any]) -> list[Row]:
    """Compare what a server is held to with what its hub promises."""
    memory, tasks, write = found["memory"], found["tasks"], found["write"]
    reach = f"{len(found['read'])} and {found['signal']} in reach" if found["read"] or found["signal"] else OUT_OF_REACH
    limited = hub.mode == settings.SYSTEMD
    rows = [
        Row(
            "memory",
            f"{hub.memory / GIB:.1f} GiB" if hub.memory else NO_LIMIT,
            f"{memory / GIB:.1f} GiB" if memory else NO_LIMIT,
            not hub.memory or (memory is not None and memory <= hub.memory + PAGE_BYTES),
        ),
        Row(
            "processes and threads",
            "limited" if limited else NO_LIMIT,
            str(tasks) if tasks >= 0 else NO_LIMIT,
            tasks >= 0 or not limited,
        ),
        Row(
            "starts on CPUs",
            _cpu_list(hub.cpus) or "all",
            _cpu_list(found["cpus"]),
            not hub.cpus or found["cpus"] == list(hub.cpus),
        ),
        Row("the kit", "read only", f"can write {write[0]}" if write else "read only", not write),
        Row("others' folders, processes", OUT_OF_REACH, reach, reach == OUT_OF_REACH),
        Row(
            "more rights",
            "none" if limited else "–",
            "by setuid programs" if found["privileges"] else "none",
            not found["privileges"] or not limited,
        ),
    ]
    return rows if hub.has_accounts else [row._replace(requested="–", holds=True) for row in rows]


def capacity(hub: Settings, machine: Machine, students: int) -> str:
    """Return a sentence on how many students fit into the machine's free memory."""
    each = hub.memory or USUAL_MEMORY
    fit = max(0, (machine.memory_free - RESERVED) // each)
    return f"Free memory is enough for {fit} students with {each / GIB:g} GiB each; {students} are expected."


def processes_of(hub: Settings, seats: Iterable[str]) -> list[psutil.Process]:
    """Return the processes of seats' servers."""
    homes = {str(hub.home(seat)) for seat in seats}
    return processes.find(lambda process: processes.environ_of(process).get("LAB_FOLDER") in homes)


def _cpu_list(cpus: Any) -> str:
    return ",".join(map(str, cpus))
