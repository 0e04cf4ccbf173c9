"""A communicator that counts the messages and bytes that a rank sends."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

SENDING = ("send", "bsend", "rsend", "ssend", "isend", "ibsend", "irsend", "issend")
# A persistent request counts once, when it is created: its buffer is known then.
PERSISTENT = ("Send_init", "Bsend_init", "Rsend_init", "Ssend_init")
EXCHANGING = ("sendrecv", "isendrecv", "sendrecv_replace", "isendrecv_replace")
# The minimum that one of n ranks sends, in multiples of its send buffer, for any algorithm (Chan et al. 2007,
# https://doi.org/10.1002/cpe.1206).
COLLECTIVES: dict[str, Callable[[int], float]] = {
    "allgather": lambda n: n - 1,
    "allreduce": lambda n: 2 * (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "exscan": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "reduce_scatter_block": lambda n: (n - 1) / n,
    "scan": lambda n: (n - 1) / n,
}
# The same for operations with a root: the minimum of the root and of each other rank, and the position of `root` among
# the arguments of the array form. All bytes of a broadcast count as the root's, even if other ranks forward them.
ROOTED: dict[str, tuple[Callable[[int], float], Callable[[int], float], int]] = {
    "bcast": (lambda n: n - 1, lambda n: 0, 1),
    "gather": (lambda n: 0, lambda n: 1, 2),
    "reduce": (lambda n: 0, lambda n: 1, 3),
    "scatter": (lambda n: (n - 1) / n, lambda n: 0, 2),
}


class CountingComm(MPI.Intracomm):
    """A communicator that counts what this rank sends, and otherwise behaves like the one it is made from.

    Communicators made from it, such as a ring with `Create_cart`, count too.

    Attributes
    ----------
    messages : list of (destination, bytes)
        The messages to other ranks.
    collectives : list of (name, bytes)
        The collective operations; bytes are the minimum that a rank must send.
    """

    messages: ClassVar[list[tuple[int, int]]] = []
    collectives: ClassVar[list[tuple[str, float]]] = []

    def __new__(cls, comm: MPI.Comm | None = None) -> "CountingComm":
        """Create it from a communicator; mpi4py itself creates empty ones, as for `Dup`."""
        return super().__new__(cls, comm)

    @classmethod
    def reset(cls) -> None:
        """Set the counts to 0."""
        cls.messages.clear()
        cls.collectives.clear()

    @classmethod
    def bytes_sent(cls) -> float:
        """Return the number of bytes sent since the last reset."""
        return sum(size for _, size in [*cls.messages, *cls.collectives])


class CountingCartcomm(MPI.Cartcomm):
    """A Cartesian communicator that counts, from `CountingComm.Create_cart`."""

    messages, collectives = CountingComm.messages, CountingComm.collectives

    def __new__(cls, comm: MPI.Comm | None = None) -> "CountingCartcomm":
        """Create it from a communicator, like `CountingComm`."""
        return super().__new__(cls, comm)


def _counting_messages(name: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    def counting(self: CountingComm, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        arguments = dict(zip(("buffer", "dest"), args, strict=False)) | kwargs
        buffer = next(arguments[key] for key in ("buffer", "buf", "sendbuf", "obj", "sendobj") if key in arguments)
        if arguments["dest"] not in (self.rank, MPI.PROC_NULL):
            self.messages.append((int(arguments["dest"]), _size(buffer, pickled=name.islower())))
        return result

    return counting


def _counting_collective(name: str, kind: str) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    def factor(self: CountingComm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """Return the minimum that this rank sends, in multiples of its send buffer."""
        if kind in COLLECTIVES:
            return COLLECTIVES[kind](self.size)
        of_root, of_others, position = ROOTED[kind]
        position -= name.islower() and kind != "bcast"  # without a receive buffer
        root = args[position] if len(args) > position else kwargs.get("root", 0)
        return (of_root if self.rank == root else of_others)(self.size)

    def counting(self: CountingComm, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        arguments = dict(zip(("sent", "recvbuf"), args, strict=False)) | kwargs
        buffer = next(
            arguments[key] for key in ("sent", "buf", "sendbuf", "obj", "sendobj", "sendobjs") if key in arguments
        )
        in_place = buffer is MPI.IN_PLACE
        size: float = _size(arguments["recvbuf"] if in_place else buffer, pickled=name.islower())
        if in_place and kind == "allgather":
            size /= self.size
        self.collectives.append((name, factor(self, args, kwargs) * size))
        return result

    return counting


def _counting_factory(name: str, class_: type[MPI.Intracomm]) -> Callable[..., Any]:
    method = getattr(MPI.Intracomm, name)

    def create(self: CountingComm, *args: Any, **kwargs: Any) -> MPI.Comm:
        comm = method(self, *args, **kwargs)
        return comm if comm == MPI.COMM_NULL else class_(comm)

    return create


def _size(buffer: Any, pickled: bool) -> int:
    """Return the size in bytes of a message for mpi4py: an object, an array, or [array, count or counts, …, type]."""
    if pickled:
        return len(MPI.pickle.dumps(buffer))
    if isinstance(buffer, list | tuple):
        data, *rest = buffer
        count = rest[0] if rest and not isinstance(rest[0], str | MPI.Datatype) else None
        if isinstance(count, tuple):  # with displacements
            count = count[0]
        if count is None:
            return memoryview(data).nbytes
        datatype = MPI.Datatype.fromcode(rest[-1]) if isinstance(rest[-1], str) else rest[-1]
        item_size = datatype.Get_size() if isinstance(datatype, MPI.Datatype) else memoryview(data).itemsize
        return int(np.sum(count)) * item_size
    return 0 if buffer is None else memoryview(buffer).nbytes


for _class in (CountingComm, CountingCartcomm):
    for _name in (*SENDING, *PERSISTENT, *EXCHANGING):
        for _form in {_name, _name.capitalize()}:
            if hasattr(MPI.Intracomm, _form):
                setattr(_class, _form, _counting_messages(_form))
    for _kind in (*COLLECTIVES, *ROOTED):
        _name = _kind.capitalize()
        for _form in (_kind, _name, f"{_name}v", f"I{_kind}", f"I{_kind}v", f"{_name}_init", f"{_name}v_init"):
            if hasattr(MPI.Intracomm, _form):
                setattr(_class, _form, _counting_collective(_form, _kind))
    for _name in ("Create", "Create_group", "Split", "Split_type"):
        setattr(_class, _name, _counting_factory(_name, CountingComm))
    setattr(_class, "Create_cart", _counting_factory("Create_cart", CountingCartcomm))  # noqa: B010
