"""A preloaded library, compiled from `loopback.c`, that keeps mpirun from listening where others can connect."""

from pathlib import Path

from labkit.system import preload

SOURCE = Path(__file__).with_name("loopback.c")
OPEN_PORT_WARNING = (
    "Warning: mpirun's port is open to other machines, as no C++ compiler was found that makes labkit/mpi/loopback.c: "
    "install g++, or name one in CXX."
)


def library(spare: Path) -> Path | None:
    """Return the compiled library, in a spare folder should there be no other; None where it can't be made."""
    return preload.library(SOURCE, spare)
