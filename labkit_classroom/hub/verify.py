"""Verify limits and isolation of students' servers, from inside one."""

import contextlib
import json
import math
import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.machine import Machine, own_cgroups
from labkit.system.paths import ROOT
from labkit_classroom.hub import settings
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.settings import CHECK_SEAT, Settings

FILE = "probe.json"
START_TIMEOUT_S = 120.0
GIB = 1 << 30
RESERVED = 1 << 30  # bytes for the system and the hub
USUAL_MEMORY = 4 << 30  # bytes per student, assumed if there is no limit
MIN_NO_LIMIT = 1 << 60  # from here on, a cgroup v1 limit means "no limit"


class Row(NamedTuple):
    """A property of a student's server: requested (or promised) and actual."""

    name: str
    requested: str
    actual: str


def verify(client: Client) -> list[Row]:
    """Start the server of `CHECK_SEAT`, return its verified properties, and stop it.

    Raises
    ------
    LabError
        If the server does not start, or lacks a requested property.
    """
    hub = client.settings
    client.stop(CHECK_SEAT)  # in case an earlier check was killed
    client.start(CHECK_SEAT)
    try:
        client.wait(CHECK_SEAT, START_TIMEOUT_S)
        rows = judge(hub, json.loads((hub.home(CHECK_SEAT) / FILE).read_text(encoding="utf-8")))
    finally:
        client.stop(CHECK_SEAT)
    broken = [row for row in rows if row.actual != row.requested]
    if broken:
        details = "; ".join(f"{row.name}: requested {row.requested}, actual {row.actual}" for row in broken)
        raise LabError(f"a student's server does not have the requested limits. {details}.")
    return rows


def judge(hub: Settings, probed: dict[str, Any]) -> list[Row]:
    """Compare a server's properties with those that the hub's mode promises."""
    if not hub.has_accounts:
        return []
    rows = [
        Row("the kit", "read only", "writable" if probed["write"] else "read only"),
        Row("others' folders", "unreadable", f"can read {probed['read'][0]}" if probed["read"] else "unreadable"),
    ]
    if hub.cpus:
        rows.append(Row("starts on CPUs", *(",".join(map(str, cpus)) for cpus in (hub.cpus, probed["cpus"]))))
    if hub.memory:
        rows.append(Row("memory", *(f"{(size or math.inf) / GIB:.1f} GiB" for size in (hub.memory, probed["memory"]))))
    if hub.mode == settings.SYSTEMD:
        rows.append(Row("processes and threads", "limited", "no limit" if probed["tasks"] < 0 else "limited"))
        rows.append(Row("privilege escalation", "blocked", "possible" if probed["privileges"] else "blocked"))
    return rows


def capacity(hub: Settings, machine: Machine, students: int) -> str:
    """Return a sentence about how many students fit into the machine's free memory."""
    per_student = hub.memory or USUAL_MEMORY
    fit = max(0, (machine.memory_free - RESERVED) // per_student)
    return f"Free memory is enough for {fit} students with {per_student / GIB:g} GiB each; {students} are expected."


def processes_of(hub: Settings, seats: Iterable[str]) -> list[psutil.Process]:
    """Return the processes of seats' servers."""
    homes = {str(hub.home(seat)) for seat in seats}
    return processes.find(lambda process: processes.environ_of(process).get("LAB_FOLDER") in homes)


def probe(home: Path) -> dict[str, Any]:
    """Return limits and access rights of this process, a student's server before it becomes JupyterLab.

    Parameters
    ----------
    home : Path
        The student's folder.

    Returns
    -------
    dict
        The `memory` limit (bytes; None if unlimited), `tasks` (-1 if unlimited), the `cpus` it may run on, the paths of
        the kit it can `write`, the other seats' folders it can `read`, and whether it can gain `privileges`.
    """
    return {
        "memory": min(filter(None, map(_memory_limit, own_cgroups(Path("/")))), default=None),
        "tasks": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "cpus": sorted(os.sched_getaffinity(0)),
        "write": [str(path) for path in (ROOT, ROOT / "labkit", ROOT / "notebooks") if os.access(path, os.W_OK)],
        "read": [path.name for path in home.parent.iterdir() if path != home and os.access(path, os.R_OK)],
        "privileges": "NoNewPrivs:\t1" not in Path("/proc/self/status").read_text(encoding="utf-8"),
    }


def _memory_limit(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            limit = int((group / name).read_text(encoding="utf-8"))
            return limit if limit < MIN_NO_LIMIT else None
    return None
