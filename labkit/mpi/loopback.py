"""The library, compiled from `loopback.c`, that keeps the promise that a run on one machine listens on loopback only.

`python -m labkit.mpi.loopback` prints its path, for `mpirun.sh`.
"""

import sys
from pathlib import Path

from labkit.system import preload

SOURCE = Path(__file__).with_name("loopback.c")
OPEN_PORT_WARNING = (
    "Warning: mpirun's port is open to other machines, as no C++ compiler was found that makes labkit/mpi/loopback.c: "
    "install g++, or name one in CXX."
)


def library(spare: Path | None = None) -> Path | None:
    """Return the compiled library, in a spare folder should there be no other; None where it can't be made."""
    return preload.library(SOURCE, spare)


if __name__ == "__main__":
    print(library() or sys.exit(OPEN_PORT_WARNING))
