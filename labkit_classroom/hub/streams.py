"""Connections of the hub's way in: no more is read than was sent on, each wait ends, and Unix sockets have owners."""

import asyncio
import contextlib
import os
import pwd
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from labkit_classroom.hub.settings import State

PIECE = 1 << 15  # bytes that are read at a time
TAKEN, GIVEN = 2 * PIECE, 8 * PIECE  # bytes from and to a browser that the system keeps, which would be megabytes
CONNECT_S, HANDSHAKE_S = 10.0, 20.0
STALL_S = 120.0  # seconds in which the other side takes the next piece
PEER = struct.Struct("3i")  # process, user and group at the other end: SO_PEERCRED of unix(7)


class Stream:
    """A connection's two directions."""

    def __init__(
        self, reader: asyncio.StreamReader, transport: asyncio.Transport, protocol: asyncio.StreamReaderProtocol
    ) -> None:
        self._reader, self._transport = reader, transport
        self._writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        transport.set_write_buffer_limits(1, 0)  # what was written has gone before the next piece is read; 0 hangs TLS

    @property
    def listener(self) -> int:
        """The account of whoever listens at the Unix socket that this is connected to."""
        raw = self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        _, account, _ = PEER.unpack(raw)
        return int(account)

    async def read(self) -> bytes:
        """Return the bytes that have come; none at the end."""
        return await self._reader.read(PIECE)

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait until they have gone."""
        if data:
            self._writer.write(data)
            async with asyncio.timeout(STALL_S):
                await self._writer.drain()

    async def pass_on(self, to: "Stream", first: bytes) -> None:
        """Send all that comes to another stream."""
        await to.write(first)
        while data := await self.read():
            await to.write(data)


@contextlib.asynccontextmanager
async def accepted(connected: socket.socket, context: ssl.SSLContext | None) -> AsyncIterator[Stream]:
    """Return the stream of a connection that was accepted."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKEN)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, GIVEN)
    loop, (reader, protocol) = asyncio.get_running_loop(), _ends()
    tls: dict[str, Any] = {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_S} if context else {}
    try:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connected, **tls)
    except BaseException:
        connected.close()
        raise
    with _closing(transport):
        yield Stream(reader, transport, protocol)


@contextlib.asynccontextmanager
async def to_server(target: str, hub: State, seat: str = "") -> AsyncIterator[Stream]:
    """Connect to a seat's server, or to the hub: at a Unix socket only if the right account listens there.

    Raises
    ------
    OSError
        When nobody listens, or another.
    """
    place, loop, (reader, protocol) = urlsplit(target), asyncio.get_running_loop(), _ends()
    async with asyncio.timeout(CONNECT_S):
        if is_unix := place.scheme == "http+unix":
            transport, _ = await loop.create_unix_connection(lambda: protocol, unquote(place.hostname or ""))
        else:
            transport, _ = await loop.create_connection(lambda: protocol, place.hostname or "", place.port or 80)
    with _closing(transport):
        stream = Stream(reader, transport, protocol)
        if is_unix and stream.listener != _account(hub, seat):
            raise ConnectionRefusedError(f"another account listens for {seat or 'the hub'}")
        yield stream


class Crowd:
    """Connections, by who has them: where somebody has too many, the oldest makes room for the newest."""

    def __init__(self) -> None:
        self._of: dict[str, dict[asyncio.Task[None], None]] = {}

    def enter(self, who: str, most: int) -> None:
        """Count this task's connection as somebody's."""
        own = self._of.setdefault(who, {})
        own[_this_task()] = None
        if len(own) > most:
            next(iter(own)).cancel()
            del own[next(iter(own))]

    def leave(self) -> None:
        """Count this task's connection no more."""
        for who, own in list(self._of.items()):
            own.pop(_this_task(), None)
            if not own:
                del self._of[who]


@contextlib.contextmanager
def _closing(transport: asyncio.Transport) -> Iterator[None]:
    """Close a connection after the block: at once after an error, whatever was not sent yet."""
    try:
        yield
    except BaseException:
        transport.abort()
        raise
    transport.close()


def _ends() -> tuple[asyncio.StreamReader, asyncio.StreamReaderProtocol]:
    reader = asyncio.StreamReader(PIECE)
    return reader, asyncio.StreamReaderProtocol(reader)


def _account(hub: State, seat: str) -> int:
    """Return the number of the account that listens for a seat, or for the hub."""
    try:
        return pwd.getpwnam(hub.account(seat)).pw_uid if seat and hub.request.has_accounts else os.geteuid()
    except KeyError as error:
        raise ConnectionRefusedError(f"{seat} has no account") from error


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task
    return task
