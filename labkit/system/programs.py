"""Where programs are, also those of administrators."""

import os
import shutil

ADMIN_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # of `ip`, `tc` and daemons: not on the PATH of Debian's users


def search_path() -> str:
    """Return the PATH with the administrators' folders at its end."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *ADMIN_PATH])


def which(program: str) -> str | None:
    """Return where a program is; None when it is not there."""
    return shutil.which(program, path=search_path())
