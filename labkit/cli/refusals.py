"""One-line messages for errors that users can fix: the kit's own, and the operating system's."""

import errno
import os
import sqlite3
from pathlib import Path

import typer

from labkit.system import files, flags, paths
from labkit.system.errors import LabError

VARIABLE = "LAB_TRACEBACK"  # if set, errors keep their traceback
# Errors with a remedy even when the file is unknown.
WITHOUT_FILE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.EAGAIN, errno.ENOMEM}
CHECK_PATH = "check that path (ls -ld), or use another"
_NO_HOME = "home directory"  # from the RuntimeError that Path.expanduser() raises without HOME


def in_one_line(error: Exception) -> str:
    """Return the problem and its remedy; an empty string for a bug in the kit."""
    match error:
        case LabError():
            return str(error)
        case typer.TyperException():
            return flags.usage(error)
        case UnicodeDecodeError():
            return f"a text file is not valid UTF-8 ({error}). {VARIABLE}=1 before the command shows which."
        case UnicodeError():
            return f"a name can't be used ({error}): choose a shorter one, in UTF-8."
        case MemoryError():
            return "out of memory: close programs you don't need (free -h), or raise the limit (ulimit -v)."
        case OSError():
            return _describe_os_error(error)
        case RuntimeError() if _NO_HOME in str(error):
            return "you have no home directory: set the variable HOME to your own folder."
        case sqlite3.OperationalError():
            return f"cannot use a database: {error}. Check that its disk has space and that its folder is yours."
    return ""


def _describe_os_error(error: OSError) -> str:
    if not _current_folder_exists():
        return "the current folder no longer exists: cd to another."
    remedy = files.REMEDIES.get(error.errno or 0, CHECK_PATH)
    if isinstance(error.filename, str | bytes | Path):
        return files.describe_error(error, paths.shown(Path(os.fsdecode(error.filename))), remedy)
    if error.errno not in WITHOUT_FILE:
        remedy = f"{VARIABLE}=1 before the command shows where, for a bug report"
    return files.describe_error(error, "the command failed", remedy)


def _current_folder_exists() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109
    except OSError:
        return False
