"""Check that other accounts on this machine, such as a hub's students, can use this kit and its Python."""

import os
import stat
import subprocess
import sys
from pathlib import Path

from labkit.system.paths import ROOT, shown

NOBODY = 65534  # the uid and gid of an account that owns nothing
REMEDY = (  # as in docs/deploy/install.md, "One kit for many accounts"
    "put the kit into /opt/labs, and run there as root `UV_PYTHON=/usr/bin/python3 ./lab setup`, or for uv's Python "
    "`UV_PYTHON_PREFERENCE=only-managed UV_PYTHON_INSTALL_DIR=/opt/python ./lab setup`"
)
TIME_LIMIT_S = 60.0
# The shell's exec drops the capabilities that root keeps when it changes user. A Python that can't read its own files
# falls back to another Python's, so its prefix is compared.
_SHELL = 'exec "$0" -c "import sys, labkit.cli; print(sys.base_prefix)"'


def problem(user: int = NOBODY, group: int = NOBODY, folder: Path = Path("/")) -> str:
    """Return one line on why another account can't use this environment; empty if it can.

    Root tries it as that account; other users check the folders' modes.

    Parameters
    ----------
    user, group : int
        The account's uid and gid.
    folder : Path
        The folder to start in.
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
    """Return the closed folder on the path to Python or the kit, in words; empty if there is none."""
    python = Path(sys.executable)
    for path in (python, python.resolve(), Path(sys.base_prefix), ROOT):
        for folder in reversed(path.parents):
            if not (mode := folder.stat().st_mode) & stat.S_IXOTH:
                return f"{shown(path)} is below {folder}, whose mode is {stat.S_IMODE(mode):04o}"
    return ""
