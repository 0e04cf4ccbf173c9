"""Locks on files (flock(2)): who reads, changes and writes a file, who uses a folder, which process lives.

The kernel frees a lock when the last process that has the file open ends, however that is. Standard library only: the
OpenMP environment has this too.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from labkit.system import files
from labkit.system.paths import shown

PATIENCE_S = 10.0  # the wait for other holders, each of whom takes milliseconds
LOOK_INTERVAL_S = 0.005


def try_lock(file: IO[Any] | int) -> bool:
    """Lock an open file, or its descriptor, for this process alone; return False when another process has the lock.

    On a file system without locks, print a warning and return True.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        path = shown(Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}"))
        files.warn(f"{path} can't be locked ({error.strerror}): use it in one notebook or command at a time.")
    return True


def is_locked(file: Path) -> bool:
    """Whether a process has locked a file; what can't be opened is not locked."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        if _is_held(opened.fileno()):
            return int(opened.read() or 0) or None  # from the open file, which may just be removed
    return None


def _is_held(opened: int) -> bool:
    """Whether another has locked an open file; it must be closed soon, or whoever wants to lock it can't."""
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # others: a file system without locks
    return False


@contextlib.contextmanager
def locked(path: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Hold the lock of `path`'s folder for the block, which is then the only one of all processes and threads.

    Where the folder can't be locked (a file system without locks, a process that was stopped while it had it), the
    block runs without the lock, after a warning.

    Parameters
    ----------
    path : Path
        A file that the block changes; it need not exist, but its folder must.
    patience_s : float
        Seconds to wait for others.
    """
    with contextlib.ExitStack() as until_over:
        with contextlib.suppress(OSError):  # without the folder, `path` can't be written either
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            until_over.callback(os.close, folder)
            deadline = time.monotonic() + patience_s
            while not (ours := try_lock(folder)) and time.monotonic() < deadline:
                time.sleep(LOOK_INTERVAL_S)
            if not ours:
                files.warn(f"{shown(path.parent)} is locked by another process for {patience_s:g} s: continuing.")
        yield
