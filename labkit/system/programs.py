"""Paths of programs, also of those of administrators."""

import os
import shutil

from labkit.system.errors import LabError
from labkit.system.paths import STATE

ADMIN_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # folders of `ip`, `tc`, daemons: not on Debian users' PATH


def search_path() -> str:
    """Return the PATH with the administrators' folders at its end."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *ADMIN_PATH])


def which(program: str) -> str | None:
    """Return the path of a program; None when it is not there."""
    return shutil.which(program, path=search_path())


def uv() -> str:
    """Return the uv that made this environment: the one that `./lab` brought, where there was none.

    Raises
    ------
    LabError
        When there is none any more.
    """
    brought = STATE / "uv" / "bin" / "uv"
    path = str(brought) if brought.exists() else shutil.which("uv")
    if not path:
        raise LabError("there is no uv: ./lab setup brings it.")
    return path
