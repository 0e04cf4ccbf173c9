"""Whether other accounts of this machine, such as a hub's students, can use this kit and its Python."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from labkit.system.paths import ROOT, shown

NOBODY = 65534  # the number of an account that owns nothing
REMEDY = (
    "install the kit and Python where every account can read them, such as a copy of the kit in /opt, and there "
    "`UV_PYTHON_PREFERENCE=only-managed UV_PYTHON_INSTALL_DIR=/opt/python ./lab setup`"
)
TIME_LIMIT_S = 60.0
# The shell's exec drops the rights that root keeps over the change of user. A Python that can't read its own files
# continues with another Python's: hence its prefix.
_SHELL = 'exec "$0" -c "import sys, labkit.cli; print(sys.base_prefix)"'


def problem(user: int = NOBODY, group: int = NOBODY, folder: Path = Path("/")) -> str:
    """Return in a line why another account can't use this environment; empty when it can.

    Root becomes that account and tries; other users look at the modes of the folders.

    Parameters
    ----------
    user, group : int
        The account, by its numbers.
    folder : Path
        Where it starts.
    """
    if os.geteuid() != 0:
        return _closed()
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
            timeout=TIME_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if not done.returncode and os.fsdecode(done.stdout).strip() == sys.base_prefix:
        return ""
    errors = done.stderr.decode(errors="replace").strip()
    return _closed() or errors.rpartition("\n")[2] or f"{shown(Path(sys.executable))} can't be used"


def _closed() -> str:
    """Return which folder on the way to Python or the kit is closed to others; empty when none is."""
    python = Path(sys.executable)
    for path in (python, python.resolve(), Path(sys.base_prefix), ROOT):
        for folder in reversed(path.parents):
            if not (mode := folder.stat().st_mode) & stat.S_IXOTH:
                return f"{shown(path)} is below {folder}, whose mode is {stat.S_IMODE(mode):04o}"
    return ""
