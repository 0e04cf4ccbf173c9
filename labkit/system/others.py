"""Whether other accounts of this machine, such as a hub's students, can use this kit and its Python."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from labkit.system.paths import ROOT, shown

NOBODY = 65534  # the number of an account that owns nothing
REMEDY = (
    "have the kit and Python where all may read, such as a copy of the kit in /opt, and there "
    "`UV_PYTHON_PREFERENCE=only-managed UV_PYTHON_INSTALL_DIR=/opt/python ./lab setup`"
)
TIME_LIMIT_S = 60.0
# A shell in between: rights that root keeps over the change of user are gone with its exec. Python says where it lives,
# as one that can't read its own files goes on with those of another Python.
_SHELL = 'exec "$0" -c "import sys, labkit.cli; print(sys.base_prefix)"'


def why_not(user: int = NOBODY, group: int = NOBODY, folder: Path = Path("/")) -> str:
    """Return in a line why another account can't use this environment; empty when it can.

    Root becomes that account and tries. Who is not root looks at what the folders' modes allow to everybody.

    Parameters
    ----------
    user, group : int
        The account, by its numbers.
    folder : Path
        Where it starts.
    """
    if os.geteuid() != 0:
        return _first_closed()
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _SHELL, sys.executable],
            cwd=folder,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            user=user,
            group=group,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if not done.returncode and done.stdout.strip() == sys.base_prefix:
        return ""
    if closed := _first_closed():
        return closed
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"for others, {sys.executable} is {done.stdout.strip()}"


def _first_closed() -> str:
    return next(filter(None, map(_closed, (Path(sys.executable), Path(sys.base_prefix), ROOT))), "")


def _closed(path: Path) -> str:
    """Return which folder on the way to a path, or to where it leads, is closed to others; empty when none is."""
    for place in (path, Path(os.path.realpath(path))):
        for folder in reversed(place.parents):
            mode = folder.stat().st_mode
            if not mode & stat.S_IXOTH:
                return f"{_short(place)} is below {folder}, whose mode is {stat.S_IMODE(mode):04o}"
    return ""


def _short(path: Path) -> str:
    """Return the path, with a ~ for the own home."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else shown(path)
