"""The library, compiled from `loopback.c`, that makes a run on one machine listen on loopback only.

`python -m labkit.mpi.loopback` prints its path, for `mpirun.sh`.
"""

import sys
from pathlib import Path

from labkit.system import compiler

SOURCE = Path(__file__).with_name("loopback.c")
OPEN_PORT_WARNING = (
    "Warning: mpirun's port is open to other machines, as no C++ compiler could build labkit/mpi/loopback.c: "
    "install g++, or set CXX to a compiler."
)


def library(fallback: Path | None = None) -> Path | None:
    """Return the compiled library, in the `fallback` folder if there is no other; None if it can't be built."""
    return compiler.library(SOURCE, fallback)


if __name__ == "__main__":
    print(library() or sys.exit(OPEN_PORT_WARNING))
