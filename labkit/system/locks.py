"""File locks (flock(2)): they serialise writers of a file and users of a folder, and show that a process is alive.

The kernel frees a lock when the last process that has the file open ends, however it ends.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from labkit.system.paths import shown
from labkit.system.terminal import warn

LOCK_TIMEOUT_S = 10.0  # the wait for other holders, each of which needs milliseconds
POLL_INTERVAL_S = 0.005


def try_lock(file: IO[Any] | int) -> bool:
    """Lock an open file, or its descriptor, exclusively; return False if another process has the lock.

    On a file system without locks, print a warning and return True.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        path = shown(Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}"))
        warn(f"{path} can't be locked ({error.strerror}): use it from one notebook or command at a time.")
    return True


def sign(file: IO[str]) -> None:
    """Write this process's id to a file that it has locked, for `holder`."""
    file.seek(0)
    file.truncate()
    print(os.getpid(), file=file, flush=True)


def holder(file: Path) -> int | None:
    """Return the id of the process that has locked and signed a file; None if it has ended."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:  # closed soon: this may lock others out
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(opened.read() or 0) or None  # from the open file, which may be removed by now
        except OSError:  # a file system without locks
            return None
    return None


@contextlib.contextmanager
def locked(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of `path`'s folder for the block, to the exclusion of all other processes and threads.

    If the folder can't be locked (a file system without locks, a suspended process that holds the lock), the block runs
    without the lock, after a warning.

    Parameters
    ----------
    path : Path
        A file that the block changes; it need not exist, but its folder must.
    timeout_s : float
        Seconds to wait for other holders.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # without the folder, `path` can't be written either
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            deadline = time.monotonic() + timeout_s
            while not (acquired := try_lock(folder)) and time.monotonic() < deadline:
                time.sleep(POLL_INTERVAL_S)
            if not acquired:
                warn(f"{shown(path.parent)} is still locked by another process after {timeout_s:g} s; continuing.")
        yield
