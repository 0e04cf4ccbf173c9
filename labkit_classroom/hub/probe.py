"""What a student's server is held to, seen from inside: the server writes it to a file before it becomes JupyterLab."""

import contextlib
import os
import resource
from pathlib import Path
from typing import Any

import psutil

from labkit.system.machine import own_cgroups
from labkit.system.paths import ROOT

FILE = "probe.json"
MIN_LIMIT_FREE = 1 << 60  # cgroup v1 has a number in this order for no limit


def probe() -> dict[str, Any]:
    """Return the limits of this process, and what it can reach.

    Returns
    -------
    dict
        The `memory` limit (bytes; None without one), `tasks` (-1 for no limit), the `cpus` it may run on, the paths of
        the kit that it could `write`, the other seats' folders that it could `read`, the number of others' processes
        that it could `signal`, and whether it can gain `privileges`.
    """
    home = Path(os.environ["LAB_FOLDER"])
    return {
        "memory": min(filter(None, map(_memory_limit, own_cgroups(Path("/")))), default=None),
        "tasks": resource.getrlimit(resource.RLIMIT_NPROC)[0],
        "cpus": sorted(os.sched_getaffinity(0)),
        "write": [str(path) for path in (ROOT, ROOT / "labkit", ROOT / "notebooks") if os.access(path, os.W_OK)],
        "read": sorted(path.name for path in home.parent.iterdir() if path != home and _can_list(path)),
        "signal": sum(map(_can_signal, psutil.process_iter())),
        "privileges": "NoNewPrivs:\t1" not in Path("/proc/self/status").read_text(),
    }


def _memory_limit(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            limit = int((group / name).read_text())
            return limit if limit < MIN_LIMIT_FREE else None
    return None


def _can_list(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.R_OK | os.X_OK)


def _can_signal(process: psutil.Process) -> bool:
    """Whether this process could end another seat's process, or the hub's."""
    try:
        os.kill(process.pid, 0)
        return process.environ().get("LAB_FOLDER") != os.environ["LAB_FOLDER"]
    except (OSError, psutil.Error):
        return False
