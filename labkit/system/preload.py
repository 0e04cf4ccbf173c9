"""Libraries compiled from a file in C, most to change what a program does as it starts (LD_PRELOAD, ld.so(8))."""

import contextlib
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from labkit.system.paths import STATE

COMPILER = "g++"  # the compiler that ./lab insists on, as Horovod needs it; CXX names another
COMPILE_TIMEOUT_S = 60.0  # the limit for a compilation, which takes a twentieth of a second


def library(source: Path, spare: Path | None = None) -> Path | None:
    """Return the compiled library, made at the first use; None where it can't be made.

    Parameters
    ----------
    source : Path
        The file in C.
    spare : Path, optional
        A folder of this user's alone, for where the kit's own cannot hold it.
    """
    name = f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    for folder in filter(None, (STATE, spare)):
        with contextlib.suppress(OSError):  # such as a full disk
            folder.mkdir(parents=True, exist_ok=True)
            if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                target = folder / name
                return target if os.access(target, os.R_OK) else _compile(source, target)
    return None


def variables(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which a program preloads a library, by a path without blanks, before any others."""
    return {"LD_PRELOAD": ":".join(filter(None, [path, environ.get("LD_PRELOAD")]))}


def _compile(source: Path, target: Path) -> Path | None:
    """Return the library, or None when there is no compiler that makes it."""
    with tempfile.TemporaryDirectory(dir=target.parent) as beside:
        unfinished = Path(beside, target.name)
        compiler = shlex.split(os.environ.get("CXX") or COMPILER)
        command = [*compiler, "-x", "c", "-O1", "-shared", "-fPIC", "-o", str(unfinished), str(source)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):  # no such compiler
            return None
        if done.returncode:
            return None
        unfinished.chmod(0o755)  # whoever may use the checkout may use it
        return unfinished.replace(target)  # only now, so that it is whole
