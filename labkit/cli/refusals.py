"""What somebody can mend, told in one line: what a command refuses, and what the system refuses it."""

import errno
import os
import sqlite3
from pathlib import Path

import typer

from labkit.system import files, paths
from labkit.system.errors import LabError

VARIABLE = "LAB_TRACEBACK"  # set to anything, it has a refusal of the system shown with where it was met
# Of which there is something to do also where nobody knows at which file it happened.
WITHOUT_FILE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.EAGAIN, errno.ENOMEM}
LOOK = "look at what is there (ls -ld), or name another"
_NO_HOME = "home directory"  # Python's words in Path.expanduser() without HOME, which is no OSError


def in_one_line(error: Exception) -> str:
    """Return what is wrong and what to do about it; an empty text for a failure of the kit's own."""
    match error:
        case LabError():
            return str(error)
        case typer.TyperException():
            return _usage(error)
        case UnicodeDecodeError():
            return f"a file that should be text is none ({error}): {VARIABLE}=1 before the command shows where."
        case UnicodeError():
            return f"a name or word can't be used ({error}): give a shorter one, of letters in UTF-8."
        case MemoryError():
            return "there is not enough memory: end what you don't need (free -h), or raise the limit (ulimit -v)."
        case OSError():
            return _of_the_system(error)
        case RuntimeError() if _NO_HOME in str(error):
            return "you have no home directory: set the variable HOME to a folder of yours."
        case sqlite3.OperationalError():
            return f"a database can't be used: {error}. Is there space on its disk, and is its folder yours?"
    return ""


def _usage(error: typer.TyperException) -> str:
    """Return what is wrong with the command line."""
    context = getattr(error, "ctx", None)
    what = " ".join((error.format_message() or "What to do is missing").split())
    what += "" if what.endswith(("?", ".")) else "."
    return f"{what} ./{context.command_path} --help says what there is." if context else what


def _of_the_system(error: OSError) -> str:
    if not _is_somewhere():
        return "the folder that you are in is gone: cd to one that is there."
    remedy = files.REMEDIES.get(error.errno or 0, LOOK)
    if isinstance(error.filename, str | bytes | Path):
        return files.describe_error(error, paths.shown(Path(os.fsdecode(error.filename))), remedy)
    if error.errno not in WITHOUT_FILE:
        remedy = f"{VARIABLE}=1 before the command shows where, for a report"
    return files.describe_error(error, "the command could not go on", remedy)


def _is_somewhere() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109
    except OSError:
        return False
