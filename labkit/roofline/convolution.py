"""Run and time convolutions in C (lab 02), and measure the limits of the cores with the same compiler and threads."""

from collections.abc import Sequence
from pathlib import Path

from labkit import native
from labkit.roofline import peaks
from labkit.system.cores import usable_machine

PROGRAM = Path(__file__).with_suffix(".c")  # its head lists its commands
LEAST_S = 0.3  # the duration of a measurement, at least


def build(*files: str | Path, flags: Sequence[str] = native.FAST, **macros: int) -> Path:
    """Return the program with the functions of `convolution.h` that C files define, for macros such as PIXELS=6."""
    defines = (f"-D{name}={value}" for name, value in macros.items())
    return native.build(*files, PROGRAM, flags=(*flags, f"-I{PROGRAM.parent}", *defines))


def seconds(program: Path, size: Sequence[int], threads: int | None = None) -> float:
    """Return the duration of the median call, in s, for a size (N, H, W, C, K): see `convolution.h`."""
    return float(native.run(program, "time", LEAST_S, *size, threads=threads)[0])


def peak(threads: int | None = None) -> float:
    """Return the FLOP/s of multiply-adds on values in registers, on all threads together."""
    return 2 * float(native.run(build(), "peak", LEAST_S, threads=threads)[0])


def read(threads: int | None = None) -> float:
    """Return the bytes/s at which threads together read an array larger than the caches."""
    machine = usable_machine()
    size = peaks.array_bytes(machine, peaks.last_level_cache(machine.cpus))
    return float(native.run(build(), "read", LEAST_S, size, threads=threads)[0])
