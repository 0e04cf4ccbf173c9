"""What does a rank send? A communicator that counts messages and bytes."""

from collections.abc import Callable
from typing import Any, ClassVar

from mpi4py import MPI

SENDING = ("send", "bsend", "rsend", "ssend", "isend", "ibsend", "irsend", "issend")
EXCHANGING = ("sendrecv", "isendrecv", "sendrecv_replace", "isendrecv_replace")
# How many times its send buffer a rank of n sends at least, whatever the algorithm (Chan et al. 2007,
# https://doi.org/10.1002/cpe.1206); of the rooted ones, a rank that isn't the root, and of scatter the root.
COLLECTIVES: dict[str, Callable[[int], float]] = {
    "allgather": lambda n: n - 1,
    "allreduce": lambda n: 2 * (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "bcast": lambda n: 1,
    "gather": lambda n: 1,
    "reduce": lambda n: 1,
    "reduce_scatter": lambda n: (n - 1) / n,
    "reduce_scatter_block": lambda n: (n - 1) / n,
    "scatter": lambda n: 1,
}


class Counted(MPI.Intracomm):
    """A communicator that counts what this rank sends, and is otherwise as the one it is made from.

    Attributes
    ----------
    messages : list of (destination, bytes)
        Of messages from rank to rank.
    collectives : list of (name, bytes)
        Of collective operations; bytes as the least that a rank must send.
    """

    messages: ClassVar[list[tuple[int, int]]] = []
    collectives: ClassVar[list[tuple[str, float]]] = []

    def __new__(cls, comm: MPI.Comm | None = None) -> "Counted":
        """Make it of a communicator; mpi4py itself makes an empty one, as for `Dup`."""
        return super().__new__(cls, comm)

    @classmethod
    def reset(cls) -> None:
        """Forget what was counted."""
        cls.messages.clear()
        cls.collectives.clear()

    @classmethod
    def bytes_sent(cls) -> float:
        """Give all bytes since the last reset."""
        return sum(size for _, size in [*cls.messages, *cls.collectives])


def _counting_messages(name: str) -> Callable:
    method = getattr(MPI.Intracomm, name)

    def counted(self: Counted, *args: Any, **kwargs: Any) -> Any:
        done = method(self, *args, **kwargs)
        given = dict(zip(("buffer", "dest"), args, strict=False)) | kwargs
        buffer = next(given[key] for key in ("buffer", "buf", "sendbuf", "obj", "sendobj") if key in given)
        self.messages.append((int(given["dest"]), _size(buffer, pickled=name.islower())))
        return done

    return counted


def _counting_collective(name: str, kind: str) -> Callable:
    method = getattr(MPI.Intracomm, name)

    def counted(self: Counted, *args: Any, **kwargs: Any) -> Any:
        done = method(self, *args, **kwargs)
        buffers = [*args, *kwargs.values()]
        in_place = buffers[0] is MPI.IN_PLACE
        size = _size(buffers[1 if in_place else 0], pickled=name.islower())
        if in_place and kind == "allgather":
            size /= self.size
        self.collectives.append((name, COLLECTIVES[kind](self.size) * size))
        return done

    return counted


def _size(buffer: Any, pickled: bool) -> int:
    """Bytes of a message, given as mpi4py takes it: an object, an array, or [array, count, type]."""
    if pickled:
        return len(MPI.pickle.dumps(buffer))
    if isinstance(buffer, list | tuple):
        data, *rest = buffer
        count = next((part for part in rest if isinstance(part, int)), None)
        return memoryview(data).nbytes if count is None else count * memoryview(data).itemsize
    return 0 if buffer is None else memoryview(buffer).nbytes


for _name in (*SENDING, *EXCHANGING):
    for _form in (_name, _name.capitalize()):
        if hasattr(MPI.Intracomm, _form):
            setattr(Counted, _form, _counting_messages(_form))
for _kind in COLLECTIVES:
    for _form in (_kind, _kind.capitalize(), f"{_kind.capitalize()}v", f"I{_kind}", f"I{_kind}v"):
        if hasattr(MPI.Intracomm, _form):
            setattr(Counted, _form, _counting_collective(_form, _kind))
