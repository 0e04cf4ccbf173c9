"""Compile C files to libraries, mostly to change a program's behaviour at its start (LD_PRELOAD, ld.so(8))."""

import contextlib
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from labkit.system.paths import STATE

COMPILER = "g++"  # the compiler that ./lab requires, as Horovod needs it; CXX names another
COMPILE_TIMEOUT_S = 60.0  # per compilation, which takes 0.05 s


def library(source: Path, fallback: Path | None = None) -> Path | None:
    """Return the compiled library, built on first use; None if it can't be built.

    Parameters
    ----------
    source : Path
        The C file.
    fallback : Path, optional
        A private folder of this user's, in case the kit's own can't hold the library.
    """
    name = f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    for folder in filter(None, (STATE, fallback)):
        with contextlib.suppress(OSError):  # such as a full disk
            folder.mkdir(parents=True, exist_ok=True)
            if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                target = folder / name
                return target if os.access(target, os.R_OK) else _compile(source, target)
    return None


def variables(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes a program preload a library (a path without spaces) before any others."""
    return {"LD_PRELOAD": ":".join(filter(None, [path, environ.get("LD_PRELOAD")]))}


def _compile(source: Path, target: Path) -> Path | None:
    """Return the library, or None if no compiler can build it."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unfinished = Path(folder, target.name)
        compiler = shlex.split(os.environ.get("CXX") or COMPILER)
        command = [*compiler, "-x", "c", "-O1", "-shared", "-fPIC", "-o", str(unfinished), str(source), "-ldl"]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):  # no such compiler
            return None
        if done.returncode:
            return None
        unfinished.chmod(0o755)  # for everyone who can use the checkout
        return unfinished.replace(target)  # only now, so that it is never incomplete
