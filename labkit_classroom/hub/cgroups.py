"""Limits by cgroups, of v1 or v2, for servers that systemd does not start."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from labkit.system.machine import own_cgroups

PERIOD_US = 100_000


def make(name: str, memory: int, cores: float, root: Path = Path("/")) -> list[Path]:
    """Make groups with limits on memory (bytes) and CPU time (CPUs), under those of this process; return them.

    Where this machine lets nobody, there are none: whoever starts something in them reads back what came of it.
    """
    groups = []
    for parent in _parents(root):
        group = parent / name
        with contextlib.suppress(OSError):
            if (parent / "cgroup.subtree_control").exists():
                (parent / "cgroup.subtree_control").write_text("+memory +cpu")
            group.mkdir(exist_ok=True)
            groups.append(group)
            _limit(group, memory, cores)
    return groups


def join(groups: list[Path]) -> None:
    """Move this process into groups."""
    for group in groups:
        (group / "cgroup.procs").write_text(str(os.getpid()))


def remove(name: str, root: Path = Path("/")) -> None:
    """Remove groups in which nothing runs any more."""
    for parent in _parents(root):
        with contextlib.suppress(OSError):
            (parent / name).rmdir()


def names(prefix: str, root: Path = Path("/")) -> set[str]:
    """Return the names of the groups that begin with a prefix."""
    return {group.name for parent in _parents(root) for group in parent.glob(f"{prefix}*")}


def _parents(root: Path) -> Iterator[Path]:
    """Yield the groups of this process itself, without those above."""
    for group in own_cgroups(root):
        with contextlib.suppress(OSError):
            if str(os.getpid()) in (group / "cgroup.procs").read_text().split():
                yield group


def _limit(group: Path, memory: int, cores: float) -> None:
    """Set the limits that this kind of group has, on swap too: a student who swaps slows everybody."""
    values: dict[str, object] = {}
    if memory:
        values |= {"memory.max": memory, "memory.swap.max": 0}
        values |= {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
    if cores:
        quota = int(cores * PERIOD_US)
        values |= {"cpu.max": f"{quota} {PERIOD_US}", "cpu.cfs_quota_us": quota}
    for name, value in values.items():
        with contextlib.suppress(OSError):  # this kind of group has no such limit
            (group / name).write_text(str(value))
