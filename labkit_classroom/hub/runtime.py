"""The hub's folder under /run: sockets, measuring slots, what servers say.

/run is the machine's memory, and systemd's own files are there. What students can write to is therefore a small file
system for each: its seat's sockets; and one for the queue of the slots, which all share.
"""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from labkit.system import files, lease
from labkit.system.errors import LabError
from labkit.system.lease import Division
from labkit_classroom.hub.settings import CHECK_SEAT, State

SEAT_BYTES, SEAT_FILES = 4 << 20, 1024  # bytes and files of a seat: a kernel has five sockets and a file


def make(hub: State, division: Division | None) -> None:
    """Make the folder, or the parts of it that are missing, such as after a restart of the machine.

    Raises
    ------
    LabError
        When that can't be done.
    """
    with files.writing(hub.runtime):
        hub.runtime.mkdir(mode=0o711, exist_ok=True)
    if not files.is_folder_of_mine(hub.runtime.lstat()):
        raise LabError(f"{hub.runtime} is somebody else's: ./lab hub down, then start anew.")
    hub.runtime.chmod(0o711)
    if hub.request.has_accounts:
        for seat in (CHECK_SEAT, *hub.request.seats):
            account = pwd.getpwnam(hub.account(seat))
            _bound(hub.sockets(seat), SEAT_BYTES, SEAT_FILES)
            hub.sockets(seat).chmod(0o700)
            os.chown(hub.sockets(seat), account.pw_uid, account.pw_gid)
    if division and not hub.slots.exists():
        lease.create(division, hub.slots)


def remove(hub: State) -> None:
    """Remove a hub's folder, with the file systems in it."""
    for place in (path for path in hub.runtime.glob("*") if path.is_mount()):
        subprocess.run(["umount", "--lazy", place], capture_output=True, timeout=60)
    shutil.rmtree(hub.runtime, ignore_errors=True)


def _bound(folder: Path, size: int, count: int) -> None:
    """Give a folder a file system of its own, where root may mount one."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_mount():
        return
    options = f"size={size},nr_inodes={count},nosuid,nodev,noexec"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "lab-hub", folder], capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        files.warn(f"students can fill {folder.parent.parent}: nothing can be mounted here ({done.stderr.strip()}).")
