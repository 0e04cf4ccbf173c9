"""Compile students' C, and run it in child processes: a wrong index there doesn't end the notebook's kernel."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from labkit.system import compiler, cores, files, processes
from labkit.system.compiler import obstacle
from labkit.system.errors import LabError
from labkit.system.machine import cpu_flags
from labkit.system.paths import shown

__all__ = ["CHECKED", "FAST", "NoSanitizers", "build", "compute", "obstacle", "run"]

FAST = ("-O3", "-march=native", "-ffp-contract=fast", "-fopenmp")
CHECKED = (  # stops at the first wrong index or undefined operation, and names its line
    *("-O1", "-g", "-march=native", "-fopenmp", "-fsanitize=address,undefined", "-fno-sanitize=object-size"),
    "-fno-sanitize-recover=all",
)
# Waiting threads leave their cores to others. Memory that a program leaves to the system at its end is no error.
VARIABLES = {"OMP_WAIT_POLICY": "passive", "ASAN_OPTIONS": "detect_leaks=0"}
NO_SANITIZER = re.compile("cannot find .*(asan|ubsan)")  # the linker's message
SANITIZERS_MISSING = (
    "the compiler's libraries that check indices and operations are missing. On Fedora: `sudo dnf install libasan "
    "libubsan`; elsewhere your distribution's packages of these names. flags=FAST needs neither."
)
FOUND = re.compile(r"(?P<place>\S+:\d+):\d+: runtime error: (?P<what>.*)|SUMMARY: \w+: (?P<kind>\S+) (?P<where>.*)")


class NoSanitizers(LabError):
    """The linker lacks the libraries that `CHECKED` needs."""


def build(*sources: str | Path, flags: Sequence[str] = FAST) -> Path:
    """Return the program compiled from C files, from a cache if it has been compiled before.

    The cache distinguishes the files as preprocessed, with all that they include, the flags, the compiler, and the
    CPU's flags: unequal machines may share a folder, and `-march=native` uses what this one has.

    Raises
    ------
    LabError
        If there is no compiler, or a file is missing or does not compile.
    """
    if why := obstacle():
        raise LabError(f"{why}.")
    paths = [Path(source) for source in sources]
    if missing := next((path for path in paths if not path.is_file()), None):
        raise LabError(f"{missing} does not exist: run the cell that writes it.")
    try:
        parts = compiler.run(["-E", *flags, *compiler.as_c(paths)]), flags, compiler.version(), cpu_flags()
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        return compiler.build(f"{paths[0].stem}-{key}", paths, flags)
    except LabError as error:
        if "sanitize" in "".join(flags) and NO_SANITIZER.search(str(error)):
            raise NoSanitizers(f"{paths[0]}: {SANITIZERS_MISSING}") from error
        raise LabError(f"{paths[0]}: {error}") from error


def run(program: Path, *args: object, threads: int | None = None, timeout: float = 60.0) -> tuple[str, ...]:
    """Run a program from `build` in a child process, and return the lines that it prints.

    It has `threads` threads of OpenMP, by default one per usable core, and is ended after `timeout` seconds.

    Raises
    ------
    LabError
        If it fails: where, if it was built with `CHECKED`.
    """
    with cores.reserve():
        variables = {**VARIABLES, "OMP_NUM_THREADS": threads or cores.usable_machine().usable_cores}
        done = processes.run([program, *map(str, args)], variables, timeout=timeout, separate_errors=True)
    if not done.failure:
        return done.lines
    name = program.name.rpartition("-")[0]
    if found := next(filter(None, map(FOUND.search, done.errors)), None):
        place = Path(found["place"] or found["where"].partition(" in ")[0])
        raise LabError(f"{name}: {found['what'] or found['kind']} at {shown(place)}.")
    hint = " An index may be out of range: build it with flags=CHECKED to find the line." * ("SIG" in done.failure)
    raise LabError("\n  ".join([f"{name}: {done.failure}.{hint}", *done.errors[-5:]]))


def compute(
    program: Path, arrays: Iterable[np.ndarray], *args: object, threads: int | None = None, timeout: float = 20.0
) -> np.ndarray:
    """Run `PROGRAM compute IN OUT ARGS` on arrays in IN, as float32, and return those in OUT; see `run`."""
    with files.temporary_folder() as folder:
        source, result = folder / "in", folder / "out"
        source.write_bytes(b"".join(np.asarray(array, np.float32).tobytes() for array in arrays))
        run(program, "compute", source, result, *args, threads=threads, timeout=timeout)
        return np.fromfile(result, np.float32)
