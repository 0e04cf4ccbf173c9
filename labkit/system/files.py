"""Atomic files: each is written whole or not at all, whatever ends the writing."""

import atexit
import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labkit.system.errors import LabError, reason
from labkit.system.paths import shown

# What keeps anything from being written, and what to do about it.
REMEDIES = {
    errno.ENOSPC: "free some space on that disk (df -h), then do it again",
    errno.EDQUOT: "your quota is used up: delete what you no longer need, then do it again",
    errno.EFBIG: "a limit on the size of files ends it: raise it (ulimit -f), then do it again",
    errno.EROFS: "work in a copy that is your own, on a disk that can be written",
    errno.EACCES: "change its mode (ls -ld shows it, and the owner), or work in a copy that is your own",
    errno.EPERM: "change its mode (ls -ld shows it, and the owner), or work in a copy that is your own",
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
        What the message names.
    remedy : str
        What to do, where `REMEDIES` does not say enough.
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
    if before and (not stat.S_ISREG(before.st_mode) or _is_open_file(path)):
        with path.open("wb") as file:
            file.write(content)
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


def _is_open_file(path: Path) -> bool:
    """Whether the path means a file that this process has open, as /dev/stdout does: another would be another file."""
    return any(os.path.realpath(name.parent).startswith("/proc/") for name in (path, *_link(path)))


def _link(path: Path) -> tuple[Path, ...]:
    return (path.parent / path.readlink(),) if path.is_symlink() else ()


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
        try:
            while content:
                content = content[file.write(content) :]
        except BaseException:
            file.truncate(size)
            raise


def write_with_fallback(path: Path, content: str) -> Path:
    """Write a file that later steps need, in a temporary folder when it can't be at `path`; return where it is."""
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
    except NotWritten as error:
        warn(f"{error} Until then it is in a temporary folder.")
        with writing(Path(tempfile.gettempdir())):
            folder = tempfile.mkdtemp(prefix="labkit-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / path.name
        write(path, content)
    return path


_warned: set[str] = set()


def warn(text: str) -> None:
    """Print a warning about what stops nothing; the same text is printed once."""
    if text not in _warned:
        _warned.add(text)
        print(f"Warning: {text}", file=sys.stderr)
