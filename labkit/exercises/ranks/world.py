"""MPI.COMM_WORLD for scripts that get a communicator of their own."""

from typing import Any, ClassVar

from mpi4py import MPI


class World(MPI.Intracomm):
    """MPI.COMM_WORLD, closed while a student's function runs on another communicator."""

    closed: ClassVar[bool] = False

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute, unless the communicator is closed."""
        if World.closed and not name.startswith("__"):
            raise RuntimeError(
                f"MPI.COMM_WORLD.{name} is used. Your function gets the communicator `ranks`, with different "
                f"ranks in a different order: use ranks.{name}"
            )
        return super().__getattribute__(name)
