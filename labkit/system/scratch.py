"""A temporary folder for a run, removed at its end, or by the next run when it was killed."""

import contextlib
import fcntl
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from labkit.system import locks
from labkit.system.errors import LabError

PREFIX = "labkit-"  # the prefix of what is looked at
OWN_PREFIX = f"{PREFIX}run-"  # that of what is made: nobody else makes any of this name
SHARED_MEMORY = Path("/dev/shm")
# The prefixes of files there that killed ranks leave behind: MPICH's (docs/upstream.md), and UCX's, which it unlinks a
# moment after it has made them.
RANKS_PREFIXES = ("mpich_shm_", "ucx_shm_posix_")
IN_USE = "in-use"  # the file that whoever uses the folder has locked: with its process, the lock ends as well


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for the length of a `with` block; remove those that killed processes of this user left behind."""
    try:
        top = Path(tempfile.gettempdir())
        _sweep(top)
        path, lock = _make(top)
    except OSError as error:
        raise LabError(f"cannot make a temporary folder: {error.strerror}. Set TMPDIR to one with room.") from error
    owner = os.getpid()
    with lock:
        try:
            yield path
        finally:
            if os.getpid() == owner:  # and not a process that was forked meanwhile
                _remove(path)


def _make(top: Path) -> tuple[Path, TextIO]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=OWN_PREFIX, dir=top))
        try:
            lock = (path / IN_USE).open("x")
        except FileNotFoundError:  # swept since
            continue
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is swept
            locks.try_lock(lock)
        if (path / IN_USE).exists():
            return path, lock
        lock.close()  # swept before it was locked


def _sweep(top: Path) -> None:
    for folder, prefix, sweep in ((top, PREFIX, _sweep_folder), (SHARED_MEMORY, RANKS_PREFIXES, _sweep_shared_memory)):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:  # none, or one that may not be listed
            for name in [entry.name for entry in entries if entry.name.startswith(prefix)]:
                with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # another's, in use, or gone since
                    sweep(folder / name, stack)


def _sweep_folder(left: Path, stack: contextlib.ExitStack) -> None:
    """Remove a folder of this user, made by this module, that nobody uses; no link is followed on the way."""
    folder = _open(left, os.O_RDONLY | os.O_DIRECTORY, stack)
    if left.name.startswith(OWN_PREFIX):
        with contextlib.suppress(OSError):
            left.rmdir()  # empty: its process was killed at the first moment, or the last
            return
    lock = _open(IN_USE, os.O_RDONLY, stack, within=folder)
    if stat.S_ISREG(os.fstat(lock).st_mode) and locks.try_lock(lock):
        _remove(left)


def _remove(folder: Path) -> None:
    """Remove a folder, and `IN_USE` last: should this process be killed on the way, the next run goes on."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != IN_USE:
                path.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _sweep_shared_memory(left: Path, stack: contextlib.ExitStack) -> None:
    """Remove a file that no process has open or mapped: else the kernel grants no lease to write it (fcntl(2))."""
    file = _open(left, os.O_RDWR, stack)
    if stat.S_ISREG(os.fstat(file).st_mode):
        # Should another sweep open the file just now, the kernel tells by a signal: not by SIGIO, which ends a process.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        left.unlink()


def _open(path: str | Path, flags: int, stack: contextlib.ExitStack, within: int | None = None) -> int:
    """Open what is this user's own, until the stack is closed; it neither follows a link nor waits for a pipe."""
    opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=within)
    stack.callback(os.close, opened)
    if os.fstat(opened).st_uid != os.geteuid():
        raise PermissionError
    return opened
