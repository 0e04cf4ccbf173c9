"""A lock for files that are read, changed and written: whoever comes meanwhile waits, and nothing of theirs is lost."""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from labkit.system import files
from labkit.system.paths import shown

PATIENCE_S = 10.0  # for others, each of whom takes milliseconds
LOOK_INTERVAL_S = 0.005
# What keeps `path` itself from being written, too.
_WRITING_TELLS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR)


@contextlib.contextmanager
def locked(path: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Have the block be the only one of all processes and threads that holds `path`'s lock.

    The lock is on a file beside it, which this user alone can open, and which is there no longer than the lock. The
    kernel takes it from a process that ends. Where none can be had (no flock on that file system, a process that was
    stopped while it had it), the block goes on without, and that is said.

    Parameters
    ----------
    path : Path
        A file in a folder that is there; it need not be there itself.
    patience_s : float
        Seconds to wait for others.
    """
    file = path.with_name(f".{path.name}.lock")
    descriptor, deadline = None, time.monotonic() + patience_s
    try:
        while (descriptor := _try_lock(file)) is None and time.monotonic() < deadline:
            time.sleep(LOOK_INTERVAL_S)
        if descriptor is None:
            files.warn(f"{shown(path)} is held by another process of yours for {patience_s:g} s: going on without.")
    except OSError as error:
        if error.errno not in _WRITING_TELLS:
            files.warn(
                f"{shown(path)} can't be locked ({error.strerror}): use it in one notebook or command at a time."
            )
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):
                file.unlink()  # while it is held: who waits for it sees that it is gone, and makes another
            os.close(descriptor)


def _try_lock(file: Path) -> int | None:
    """Return the open and locked file; None when another has it.

    Raises
    ------
    OSError
        When there can be none.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    kept = False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():  # a stranger's could be held for ever
            raise OSError(errno.EPERM, f"{file.name} is not yours")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept = _is_at(file, os.fstat(descriptor))
    except BlockingIOError:
        pass
    finally:
        if not kept:
            os.close(descriptor)
    return descriptor if kept else None


def _is_at(file: Path, status: os.stat_result) -> bool:
    """Whether it is that file still: whoever had the lock has taken it away."""
    try:
        return os.path.samestat(os.lstat(file), status)
    except FileNotFoundError:
        return False
