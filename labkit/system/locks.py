"""Locks on files (flock(2)): who reads, changes and writes a file, who uses a folder, which process lives.

The kernel frees a lock when the last process that has the file open ends, however that is. Standard library only: the
OpenMP environment has this too.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from labkit.system import files
from labkit.system.paths import shown

PATIENCE_S = 10.0  # the wait for other holders, each of whom takes milliseconds
LOOK_INTERVAL_S = 0.005
# Errors for which `path` itself can't be written either.
_WRITING_TELLS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR)


def try_lock(file: IO[Any] | int) -> bool:
    """Lock an open file, or its descriptor, for this process alone; return False when another process has the lock.

    Raises
    ------
    OSError
        When the file system knows no locks.
    """
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def open_plain(file: Path) -> int:
    """Open a file to lock or read it, which may be somebody else's; neither a link nor a pipe is opened.

    Raises
    ------
    OSError
        When it can't be opened.
    """
    opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return opened


def is_locked(file: Path) -> bool:
    """Whether a process has locked a file; what can't be opened is not locked."""
    try:
        opened = open_plain(file)
    except OSError:
        return False
    try:
        return _is_held(opened)
    finally:
        os.close(opened)


def sign(file: IO[str]) -> None:
    """Write this process's number to a file that it has locked, for `holder`."""
    file.seek(0)
    file.truncate()
    print(os.getpid(), file=file, flush=True)


def holder(file: Path) -> int | None:
    """Return the process that has locked and signed a file; None when it has ended, whoever has its number since."""
    with contextlib.suppress(FileNotFoundError), file.open() as opened:
        if _is_held(opened.fileno()):
            return int(opened.read() or 0) or None  # from the open file, which may just be removed
    return None


def _is_held(opened: int) -> bool:
    """Whether another has locked an open file; it must be closed soon, or whoever wants to lock it can't."""
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


@contextlib.contextmanager
def locked(path: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold `path`'s lock for the block, which is then the only one of all processes and threads.

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
        while (descriptor := _lock_beside(file)) is None and time.monotonic() < deadline:
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


def _lock_beside(file: Path) -> int | None:
    """Return the open and locked file; None when another has it.

    Raises
    ------
    OSError
        When it can't be made.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    locked = False
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():  # a stranger's could be held for ever
            raise OSError(errno.EPERM, f"{file.name} is not yours")
        locked = try_lock(descriptor) and _is_at(file, os.fstat(descriptor))
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None


def _is_at(file: Path, status: os.stat_result) -> bool:
    """Whether a file is still the one with this status: a holder of its lock may have removed it."""
    try:
        return os.path.samestat(os.lstat(file), status)
    except FileNotFoundError:
        return False
