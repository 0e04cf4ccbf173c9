"""Whether other accounts of this machine can use this environment: its Python, its packages, the kit."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import labkit
from labkit.system.paths import ROOT

NOBODY = 65534
REMEDY = "put Python and the kit where all may read, such as in /opt"
TIMEOUT_S = 120.0
# A Python that can't read its own standard library may take another one's, such as the system's, without a word.
_SELF = (
    "import json, os, sys; import psutil, labkit; "
    "print(json.dumps([sys.version, sys.prefix, sys.base_prefix, os.__file__, labkit.__file__]))"
)


def why_not(uid: int = NOBODY, gid: int = NOBODY, folder: Path = Path("/")) -> str:
    """Return in a line why another account can't use this environment; nothing when it can.

    Root becomes that account and tries. Others look at what the paths' modes allow to everybody.

    Parameters
    ----------
    uid, gid : int
        The account's.
    folder : Path
        Where it starts.
    """
    if os.geteuid() != 0:
        return next(filter(None, map(_closed, (Path(sys.executable), Path(os.__file__), ROOT / "labkit"))), "")
    try:
        done = subprocess.run(  # which changes the user before it starts Python
            [sys.executable, "-c", _SELF],
            cwd=folder,
            user=uid,
            group=gid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _closed(Path(sys.executable)) or str(error)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    own = [sys.version, sys.prefix, sys.base_prefix, os.__file__, labkit.__file__]
    taken = json.loads(done.stdout)
    return "" if taken == own else f"its Python takes {taken[3]} in place of {own[3]}"


def _closed(path: Path) -> str:
    """Return which part of a path, and of where its links lead, others can't enter or read; nothing if none."""
    target = Path(os.path.realpath(path))
    for part in (*reversed(path.parents), *reversed(target.parents)):
        if not part.stat().st_mode & stat.S_IXOTH:
            return f"others may not enter {part}"
    needed = stat.S_IROTH | (stat.S_IXOTH if target.is_dir() else 0)
    return "" if target.stat().st_mode & needed == needed else f"others may not read {target}"
