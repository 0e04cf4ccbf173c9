"""Files: each is written whole or not at all, and what others made is read within bounds."""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from labkit.system.errors import LabError, reason
from labkit.system.paths import shown
from labkit.system.terminal import say

MAX_BYTES = 64 * 2**20  # the size of a file that is read whole: what labs leave, with their pictures, has a tenth

# Errors of the system, each with its remedy.
REMEDIES = {
    errno.ENOSPC: "free some space on that disk (df -h), then do it again",
    errno.EDQUOT: "your quota is used up: delete what you no longer need, then do it again",
    errno.EFBIG: "a limit on the size of files ends it: raise it (ulimit -f), then do it again",
    errno.EROFS: "work in a copy that is your own, on a disk that can be written",
    errno.EACCES: "change its mode (ls -ld shows it, and the owner), or work in a copy that is your own",
    errno.EPERM: "change its mode (ls -ld shows it, and the owner), or work in a copy that is your own",
    errno.ENAMETOOLONG: "give a shorter one",
    errno.ELOOP: "its links lead in a circle: take one away, or name another",
    errno.EISDIR: "move that folder away, or name another place",
    errno.EMFILE: "raise the limit on open files (ulimit -n), then do it again",
    errno.EAGAIN: "a limit on processes or threads ends it: end some, or raise it (ulimit -u), then do it again",
    errno.ENOMEM: "end what you don't need (free -h shows memory), or raise the limit on it, then do it again",
}


class NotWritten(LabError):
    """A file could not be written: which, why, and what to do. What was there before is unchanged."""


def describe_error(error: OSError, what: str, remedy: str = "") -> str:
    """Return an error of the system in one line: what failed, why, and what to do."""
    remedy = remedy or REMEDIES.get(error.errno or 0, "name another place to write to")
    return f"{what}: {error.strerror or error}. {remedy[0].upper()}{remedy[1:]}."


@contextlib.contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Raise `NotWritten` for an error of the system in the block, which writes `path`.

    Parameters
    ----------
    path : Path
        The file that the message names.
    remedy : str
        The remedy, where `REMEDIES` does not say enough.
    """
    try:
        yield
    except OSError as error:
        raise NotWritten(describe_error(error, f"cannot write {shown(path)}", remedy)) from error


def system_error(error: Exception) -> OSError:
    """Return the error of the system that TensorFlow's message quotes: of a full disk, it has the words alone."""
    words = reason(error)
    for number in REMEDIES:
        if os.strerror(number) in words:
            return OSError(number, os.strerror(number))
    return OSError(0, words)


def write(path: Path, content: str | bytes, remedy: str = "") -> None:
    """Write a file, whole or not at all: until all of it is on the disk, what was there before stays.

    A file that was there keeps its mode; a symbolic link stays one; what is no file (a terminal, a pipe) gets the
    content as it is. A file that is write-protected is not replaced.

    Raises
    ------
    NotWritten
        When it can't be written; nothing is left behind.
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
    part = path.with_name(f".{secrets.token_hex(8)}.part")  # in the same folder, so that the change of name is all
    try:
        with part.open("xb") as file:
            if before:
                with contextlib.suppress(PermissionError):  # only root gives files away
                    os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # after a power cut too; and a file server tells of a quota only now
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def append(path: Path, line: str) -> None:
    """Add a line to a file, whole or not at all.

    Raises
    ------
    NotWritten
        When it can't be written; the file is as it was.
    """
    content = f"{line}\n".encode()
    with writing(path), path.open("ab", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if file.write(content) < len(content):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_regular(path: Path, most: float = MAX_BYTES) -> BinaryIO:
    """Open a file that somebody else may have made, to be read; it never waits.

    Raises
    ------
    OSError
        When it is no regular file (a pipe, a device and a folder are none), or has more than `most` bytes.
    """
    path = Path(path)
    _check_regular(path.stat(), path, most)  # first: some devices act when they are opened
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_regular(os.fstat(descriptor), path, most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(status: os.stat_result, path: Path, most: float) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is no regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EINVAL, f"It has more than {most / 2**20:,.0f} MiB", str(path))


def read(path: Path, most: float = MAX_BYTES) -> bytes:
    """Return the bytes of a file that somebody else may have made.

    Raises
    ------
    OSError
        As `open_regular`.
    """
    with open_regular(path, most) as file:
        size = max(os.fstat(file.fileno()).st_size, 2**16)  # the files of /proc say 0
        return file.read(size) or b""  # and no more, should it grow


def read_json(path: Path, most: float = MAX_BYTES) -> Any:
    """Return the value in a JSON file that somebody else may have made.

    Raises
    ------
    OSError
        As `open_regular`.
    ValueError
        When it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read(path, most))
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error


def is_folder_of_mine(status: os.stat_result) -> bool:
    """Whether a status is that of a folder of this user's in which no other user can write."""
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not others


_warned: set[str] = set()


def warn(text: str) -> None:
    """Print a warning; the same text is printed once."""
    if text not in _warned:
        _warned.add(text)
        say(f"Warning: {text}")
