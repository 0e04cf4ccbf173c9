"""A temporary folder for a run; clean-up of shared memory that killed ranks left behind."""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labkit.system.errors import LabError

SHARED_MEMORY = Path("/dev/shm")
# The prefixes of files there that killed ranks leave behind: MPICH's (docs/upstream.md), and UCX's, which it unlinks a
# moment after creating them.
RANKS_PREFIXES = ("mpich_shm_", "ucx_shm_posix_")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for the duration of a `with` block."""
    _sweep_shared_memory()
    try:
        path = Path(tempfile.mkdtemp(prefix="labkit-run-"))
    except OSError as error:
        raise LabError(
            f"cannot make a temporary folder: {error.strerror}. Set TMPDIR to a folder with free space."
        ) from error
    owner = os.getpid()
    try:
        yield path
    finally:
        if os.getpid() == owner:  # not a process forked meanwhile
            shutil.rmtree(path, ignore_errors=True)


def _sweep_shared_memory() -> None:
    """Remove files of this user's ranks that no process uses: the kernel grants a lease (fcntl(2)) only for those."""
    for file in (file for prefix in RANKS_PREFIXES for file in SHARED_MEMORY.glob(f"{prefix}*")):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # another user's, in use, or gone by now
            opened = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            stack.callback(os.close, opened)
            if os.fstat(opened).st_uid == os.geteuid():
                # If another sweep opens the file now, the kernel sends this signal instead of SIGIO, which kills.
                fcntl.fcntl(opened, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                file.unlink()
