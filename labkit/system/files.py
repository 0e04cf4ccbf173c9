"""Atomic writes, bounded reads of files that others have made, and temporary folders."""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from labkit.system.errors import LabError
from labkit.system.paths import shown

MAX_BYTES = 64 * 2**20  # for files that are read whole; a lab's results with pictures need a tenth
SHARED_MEMORY = Path("/dev/shm")
# The prefixes of files there that killed ranks leave behind: MPICH's (docs/contribute/upstream.md), and UCX's, which it
# unlinks a moment after creating them.
RANKS_PREFIXES = ("mpich_shm_", "ucx_shm_posix_")
RUN_PREFIXES = ("labkit-run-", *RANKS_PREFIXES)  # and the temporary folders of runs

# Remedies for system errors.
REMEDIES = {
    errno.ENOSPC: "free some space on that disk (df -h), then try again",
    errno.EDQUOT: "your quota is used up: delete what you no longer need, then try again",
    errno.EFBIG: "the limit on file sizes was reached: raise it (ulimit -f), then try again",
    errno.EROFS: "work in a copy of your own on a writable disk",
    errno.EACCES: "change its mode (ls -ld shows it, and the owner), or work in a copy that is your own",
    errno.EPERM: "change its mode (ls -ld shows it, and the owner), or work in a copy that is your own",
    errno.ENAMETOOLONG: "use a shorter one",
    errno.ELOOP: "its links form a loop: remove one, or use another path",
    errno.EISDIR: "move that folder away, or use another path",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then try again",
    errno.EAGAIN: "the limit on processes or threads was reached: end some, or raise it (ulimit -u), then try again",
    errno.ENOMEM: "end what you don't need (free -h shows memory), or raise the memory limit, then try again",
}


class NotWritten(LabError):
    """A file could not be written: which, why, and what to do. An existing file is unchanged."""


def describe_error(error: OSError, what: str, remedy: str = "") -> str:
    """Return a system error in one line: what failed, why, and what to do."""
    remedy = remedy or REMEDIES.get(error.errno or 0, "write to another path")
    return f"{what}: {error.strerror or error}. {remedy[0].upper()}{remedy[1:]}."


@contextlib.contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Raise `NotWritten` for a system error in the block, which writes `path`.

    Parameters
    ----------
    path : Path
        The file that the message names.
    remedy : str
        The remedy, if the one in `REMEDIES` is not enough.
    """
    try:
        yield
    except OSError as error:
        raise NotWritten(describe_error(error, f"cannot write {shown(path)}", remedy)) from error


def write(path: Path, content: str | bytes, remedy: str = "") -> None:
    """Write a file atomically: an existing file stays until the new content is on the disk.

    An existing file keeps its mode, and a symbolic link stays one. Anything but a regular file (a terminal, a pipe) is
    written to directly. A write-protected file is not replaced.

    Raises
    ------
    NotWritten
        If it can't be written; nothing is left behind.
    """
    content = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    with writing(path, remedy):
        _write(Path(path), content)


def _write(path: Path, content: bytes) -> None:
    before = path.stat() if path.exists() else None
    if before and not stat.S_ISREG(before.st_mode):
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    if before and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    part = path.with_name(f".{secrets.token_hex(8)}.part")  # in the same folder, so that renaming is enough
    try:
        with part.open("xb") as file:
            if before:
                with contextlib.suppress(PermissionError):  # only root can change a file's owner
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # against power cuts; a file server reports a quota only now
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def open_regular(path: Path, max_bytes: float = MAX_BYTES) -> BinaryIO:
    """Open a file that someone else may have made, for reading; never block.

    Raises
    ------
    OSError
        If it is not a regular file (but a pipe, device or folder), or has more than `max_bytes` bytes.
    """
    path = Path(path)
    _check_regular(path.stat(), path, max_bytes)  # first: opening some devices has effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(descriptor), path, max_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(status: os.stat_result, path: Path, max_bytes: float) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
    if status.st_size > max_bytes:
        raise OSError(errno.EINVAL, f"It has more than {max_bytes / 2**20:,.0f} MiB", str(path))


def read(path: Path, max_bytes: float = MAX_BYTES) -> bytes:
    """Return the bytes of a file that someone else may have made.

    Raises
    ------
    OSError
        As for `open_regular`.
    """
    with open_regular(path, max_bytes) as file:
        size = max(os.fstat(file.fileno()).st_size, 2**16)  # files in /proc report 0
        return file.read(size) or b""  # no more, even if it grows


def read_json(path: Path, max_bytes: float = MAX_BYTES) -> Any:
    """Return the value in a JSON file that someone else may have made.

    Raises
    ------
    OSError
        As for `open_regular`.
    ValueError
        If it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read(path, max_bytes))
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error


def is_folder_of_mine(status: os.stat_result) -> bool:
    """Return whether a status is of a folder that this user owns and no other user can write to."""
    others_can_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not others_can_write


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for the block; remove shared memory that killed ranks left behind."""
    _sweep_shared_memory()
    try:
        path = Path(tempfile.mkdtemp(prefix=RUN_PREFIXES[0]))
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
