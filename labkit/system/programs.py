"""Find programs, including those in administrators' folders."""

import os
import shutil

from labkit.system.errors import LabError
from labkit.system.paths import STATE

ADMIN_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # with `ip`, `tc` and daemons; not on users' PATH in Debian


def search_path() -> str:
    """Return the PATH with the administrators' folders at its end."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *ADMIN_PATH])


def which(program: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    return shutil.which(program, path=search_path())


def uv() -> str:
    """Return the path of the uv that made this environment: the one that `./lab` installed, if any.

    Raises
    ------
    LabError
        If it is gone.
    """
    installed = STATE / "uv" / "bin" / "uv"
    path = str(installed) if installed.exists() else shutil.which("uv")
    if not path:
        raise LabError("uv is missing: ./lab setup installs it.")
    return path
