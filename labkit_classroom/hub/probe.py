"""What a student's server really is held to, seen from a cell in it.

`python -m labkit_classroom.hub.probe` prints it as JSON.
"""

import contextlib
import json
import os
import resource
from pathlib import Path
from typing import Any

import psutil

from labkit.system.machine import own_cgroups, quota
from labkit.system.paths import ROOT

UNLIMITED = 1 << 60  # bytes from which on a limit is none: v1 of cgroups has a number for it


def look() -> dict[str, Any]:
    """Return the limits of this process, and what of others is in its reach.

    Returns
    -------
    dict
        `memory` (bytes) and `cores` (CPUs; None without a quota) that cgroups allow, `tasks` (-1 for no limit), the
        `cpus` that it may run on, the paths of the checkout that it could `write`, the folders of other seats that it
        could `read`, how many processes of others it could `signal`, and whether it can gain `privileges`.
    """
    # The groups' own: on a server with measuring slots, `Machine.quota` may be less.
    groups, home = list(own_cgroups(Path("/"))), Path(os.environ["LAB_FOLDER"])
    return {
        "memory": min(filter(None, map(_memory, groups)), default=None),
        "cores": min(filter(None, map(quota, groups)), default=None),
        "tasks": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "cpus": sorted(os.sched_getaffinity(0)),
        "write": [str(path) for path in (ROOT, ROOT / "labkit", ROOT / "notebooks") if os.access(path, os.W_OK)],
        "read": sorted(path.name for path in home.parent.iterdir() if path != home and _can_list(path)),
        "signal": sum(_can_signal(process) for process in psutil.process_iter()),
        "privileges": "NoNewPrivs:\t1" not in Path("/proc/self/status").read_text(),
    }


def _memory(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            limit = int((group / name).read_text())
            return limit if limit < UNLIMITED else None
    return None


def _can_list(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.R_OK | os.X_OK)


def _can_signal(process: psutil.Process) -> bool:
    """Whether a process is another seat's, or the hub's, and this one could end it."""
    try:
        os.kill(process.pid, 0)
        return process.environ().get("LAB_FOLDER") != os.environ["LAB_FOLDER"]
    except (OSError, psutil.Error):
        return False


if __name__ == "__main__":
    print(json.dumps(look()))
