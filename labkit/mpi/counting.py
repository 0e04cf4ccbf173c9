"""A communicator that counts the messages and bytes that a rank sends, and records when they travel."""

import functools
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from mpi4py import MPI

SENDING = ("send", "bsend", "rsend", "ssend", "isend", "ibsend", "irsend", "issend")
EXCHANGING = ("sendrecv", "isendrecv", "sendrecv_replace", "isendrecv_replace")
# The minimum that one of n ranks sends, in multiples of its send buffer, for any algorithm (Chan et al. 2007,
# https://doi.org/10.1002/cpe.1206).
COLLECTIVES: dict[str, Callable[[int], float]] = {
    "allgather": lambda n: n - 1,
    "allreduce": lambda n: 2 * (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "reduce_scatter_block": lambda n: (n - 1) / n,
}
# The same for operations with a root: the minimum of the root and of each other rank, and the position of `root` among
# the arguments of the array form. All bytes of a broadcast count as the root's, even if other ranks forward them.
ROOTED: dict[str, tuple[Callable[[int], float], Callable[[int], float], int]] = {
    "bcast": (lambda n: n - 1, lambda n: 0, 1),
    "gather": (lambda n: 0, lambda n: 1, 2),
    "reduce": (lambda n: 0, lambda n: 1, 3),
    "scatter": (lambda n: (n - 1) / n, lambda n: 0, 2),
}
MESSAGE = re.compile("|".join([*SENDING, *EXCHANGING]))
COLLECTIVE = re.compile(rf"i?({'|'.join([*COLLECTIVES, *ROOTED])})v?")
BUFFERS = ("buf", "sendbuf", "obj", "sendobj", "sendobjs", "buffer")  # mpi4py's names for what is sent
STATUS = {"recv": 3, "sendrecv": 6, "sendrecv_replace": 5}  # receiving methods, and the position of `status`
ANY = {"source": MPI.ANY_SOURCE, "tag": MPI.ANY_TAG}  # what a receive takes by default


class Message(NamedTuple):
    """A message, from the sender's call to the receiver's return, in seconds on the machine's monotonic clock."""

    source: int
    dest: int
    size: int  # bytes
    tag: int
    offset: int  # its position in the sender's array, in bytes
    began: float
    ended: float


class CountingComm:
    """A communicator that counts what this rank sends, and otherwise behaves like the one it is made from.

    Communicators made from it, such as a ring with `Create_cart`, add to the same counts.

    Attributes
    ----------
    comm : MPI.Comm
        The communicator that does the work.
    messages : list of (destination, bytes)
        The messages to other ranks.
    collectives : list of (name, bytes)
        The collective operations; bytes are the minimum that a rank must send.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.messages: list[tuple[int, int]] = []
        self.collectives: list[tuple[str, float]] = []
        self._sent: list[Message] = []  # `ended` isn't known yet
        self._received: list[tuple[int, int, float]] = []  # sources, tags and times
        self._awaited: list[tuple[MPI.Request, int, int]] = []  # receives that may not be complete, with source and tag

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the communicator; its methods count."""
        value = getattr(self.comm, name)
        return functools.partial(self.call, name) if callable(value) else value

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the communicator, and count what it sends; subclasses extend this."""
        position = STATUS.get(name.lower())
        if position is not None and (args[position:] or [kwargs.get("status")])[0] is None:
            args, kwargs = args[:position], {**kwargs, "status": MPI.Status()}
        self._complete()
        began = time.monotonic()
        result = getattr(self.comm, name)(*args, **kwargs)
        if isinstance(result, MPI.Comm) and result != MPI.COMM_NULL:
            return self._over(result)
        if position is not None:
            status = args[position] if len(args) > position else kwargs["status"]
            self._received.append((status.source, status.tag, time.monotonic()))
        elif name.lower() == "irecv":
            given = kwargs | dict(zip(ANY, args[1:], strict=False))
            self._awaited.append((result, *(given.get(key, default) for key, default in ANY.items())))
        self._count(name, args, kwargs, began)
        return result

    def timeline(self) -> list[Message]:
        """Return the messages between all ranks, in the order of their calls; every rank must call it.

        A message ends when its receive returns; if that is an `Irecv`, when the rank next calls the communicator after
        it is complete.
        """
        self._complete()
        everyone = self.comm.allgather((self._sent, self._received))
        messages = []
        for dest, (_, received) in enumerate(everyone):
            for message in (sent for others, _ in everyone for sent in others if sent.dest == dest):
                keys = {
                    (source, tag) for source in (message.source, MPI.ANY_SOURCE) for tag in (message.tag, MPI.ANY_TAG)
                }
                at = next((at for at, (*key, _) in enumerate(received) if tuple(key) in keys), None)
                if at is not None:
                    messages.append(message._replace(ended=received.pop(at)[-1]))
        return sorted(messages, key=lambda message: message.began)

    def _complete(self) -> None:
        """Note the receives that have completed since the last call."""
        now = time.monotonic()
        done = [request == MPI.REQUEST_NULL or request.Get_status() for request, *_ in self._awaited]
        self._received += [(a, b, now) for (_, a, b), is_done in zip(self._awaited, done, strict=True) if is_done]
        self._awaited[:] = [awaited for awaited, is_done in zip(self._awaited, done, strict=True) if not is_done]

    def reset(self) -> None:
        """Set the counts to 0."""
        for record in (self.messages, self.collectives, self._sent, self._received, self._awaited):
            record.clear()

    def _over(self, comm: MPI.Comm) -> Self:
        """Return the same for another communicator, with these counts."""
        other = type(self).__new__(type(self))
        other.__dict__ |= self.__dict__ | {"comm": comm}
        return other

    def _count(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], began: float) -> None:
        message, collective = MESSAGE.fullmatch(name.lower()), COLLECTIVE.fullmatch(name.lower())
        if not message and not collective:
            return
        buffer = args[0] if args else next(kwargs[key] for key in BUFFERS if key in kwargs)
        if message:
            dest = args[1] if len(args) > 1 else kwargs["dest"]
            if dest not in (self.rank, MPI.PROC_NULL):
                self.messages.append((int(dest), _size(buffer, pickled=name.islower())))
                tag = args[2] if len(args) > 2 else kwargs.get("sendtag", kwargs.get("tag", 0))
                self._sent.append(Message(self.rank, *self.messages[-1], int(tag), _offset(buffer), began, began))
        elif collective:
            kind, in_place = collective[1], buffer is MPI.IN_PLACE
            buffer = (args[1] if len(args) > 1 else kwargs["recvbuf"]) if in_place else buffer
            size: float = _size(buffer, pickled=name.islower())
            if in_place and kind == "allgather":
                size /= self.size
            self.collectives.append((name, self._factor(kind, name.islower(), args, kwargs) * size))

    def _factor(self, kind: str, pickled: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """Return the minimum that this rank sends in a collective operation, in multiples of its send buffer."""
        if kind in COLLECTIVES:
            return COLLECTIVES[kind](self.size)
        of_root, of_others, position = ROOTED[kind]
        position -= pickled and kind != "bcast"  # without a receive buffer
        root = args[position] if len(args) > position else kwargs.get("root", 0)
        return (of_root if self.rank == root else of_others)(self.size)


def _offset(buffer: Any) -> int:
    """Return the position of an array in the one that it is a view of, in bytes."""
    buffer = buffer[0] if isinstance(buffer, list | tuple) else buffer
    base = buffer.base if isinstance(buffer, np.ndarray) else None
    return int(buffer.ctypes.data - base.ctypes.data) if isinstance(base, np.ndarray) else 0


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
