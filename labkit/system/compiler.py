"""Compile C with the compiler that set-up requires: libraries of the kit, and students' programs (`labkit.native`)."""

import contextlib
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.system import lacks
from labkit.system.errors import LabError
from labkit.system.paths import STATE

COMPILER = "g++"  # the compiler that ./lab requires, as Horovod needs it; CXX names another
COMPILE_TIMEOUT_S = 60.0
MAX_LINES = 20  # of the compiler's messages


def command() -> list[str]:
    """Return the compiler's command."""
    return shlex.split(os.environ.get("CXX", "")) or [COMPILER]


def as_c(sources: Sequence[Path]) -> list[str | Path]:
    """Return the arguments that compile files as C, which g++ would take for C++."""
    return [word for source in sources for word in ("-x", "c", source)]


def obstacle() -> str:
    """Return one line on why C can't be compiled here and what to do; empty if it can."""
    if (why := lacks.reason("compiler")) or shutil.which(program := command()[0]):
        return why
    return f"there is no compiler {program}. To install one: `sudo apt-get install {COMPILER}`, or set CXX to another"


def version() -> str:
    """Return the compiler and its version, such as "g++ (Debian 12.2.0-14) 12.2.0"; empty if there is none."""
    with contextlib.suppress(LabError):
        return run(["--version"]).decode(errors="replace").partition("\n")[0]
    return ""


def run(arguments: Sequence[str | Path]) -> bytes:
    """Run the compiler in the current folder, and return its standard output.

    Raises
    ------
    LabError
        If it can't be run, or fails; the message has its first lines.
    """
    try:
        done = subprocess.run(
            [*command(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_TIMEOUT_S
        )
    except OSError as error:
        raise LabError(f"cannot start the compiler {command()[0]}: {error.strerror}.") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"the compiler took more than {COMPILE_TIMEOUT_S:.0f} s.") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise LabError("\n  ".join(["it does not compile:", *lines[:MAX_LINES]]))
    return done.stdout


def build(name: str, sources: Sequence[Path], flags: Sequence[str], fallback: Path | None = None) -> Path:
    """Return the program or library `name`, compiled unless the kit's state folder has it.

    Parameters
    ----------
    name : str
        Its file name, different for different content.
    sources : sequence of Path
        The C files.
    flags : sequence of str
        The compiler's flags.
    fallback : Path, optional
        A private folder of this user's, in case the kit's own can't hold it.

    Raises
    ------
    LabError
        If it does not compile, or no folder can hold it.
    """
    for folder in filter(None, (STATE, fallback)):
        with contextlib.suppress(OSError):  # such as a full disk
            folder.mkdir(parents=True, exist_ok=True)
            if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                target = folder / name
                if not os.access(target, os.R_OK):
                    with tempfile.TemporaryDirectory(dir=folder) as private:
                        unfinished = Path(private, name)
                        run([*flags, "-o", unfinished, *as_c(sources), "-ldl"])
                        unfinished.chmod(0o755)  # for everyone who can use the checkout
                        unfinished.replace(target)  # only now, so that it is never incomplete
                return target
    raise LabError(f"compiled programs can't be stored in {STATE}: is its disk full, or mounted with noexec?")


def library(source: Path, fallback: Path | None = None) -> Path | None:
    """Return one of the kit's libraries, compiled on first use; None if it can't be built."""
    name = f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}.so"
    with contextlib.suppress(LabError):
        return build(name, [source], ("-O1", "-shared", "-fPIC"), fallback)
    return None


def preload(path: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes a program preload a library (a path without spaces) before others (ld.so(8))."""
    return {"LD_PRELOAD": ":".join(filter(None, [path, environ.get("LD_PRELOAD")]))}
