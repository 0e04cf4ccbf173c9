"""A relay between network namespaces: what comes to a socket of one is passed on in the other.

A socket stays in the namespace where it was made, whoever has it. `python relay.py DESCRIPTOR=HOST:PORT …` inherits
sockets that listen, and connects whoever comes to one of them to the address beside it, in the namespace that this
process is in. `listen` has such sockets made in another namespace. Standard library only: it is up in a moment.
"""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

BLOCK_BYTES = 1 << 16
LISTEN = "listen"  # the word by which this is asked for sockets
LISTEN_TIMEOUT_S = 15.0
MAX_SOCKETS = 64


def listen(within: Sequence[str], host: str, ports: Iterable[int]) -> list[socket.socket]:
    """Return sockets that listen at some ports, 64 at most, made by a process that a command has enter a namespace.

    Raises
    ------
    OSError
        When they can't be made.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [*within, *command(LISTEN, theirs.fileno(), host, *ports)]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        ours.settimeout(LISTEN_TIMEOUT_S)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, MAX_SOCKETS)
        process.wait()
    if not descriptors:
        raise OSError(f"cannot listen on {host}")
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def command(*args: object) -> list[str]:
    """Return the command that runs this with some arguments."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), *map(str, args)]


def _hand_over(descriptor: str, host: str, *ports: str) -> None:
    """Make the sockets and send them to whoever has the other end."""
    sockets = [socket.create_server((host, int(port))) for port in ports]
    with socket.socket(fileno=int(descriptor)) as other:
        socket.send_fds(other, [b" "], [one.fileno() for one in sockets])


async def main(*pairs: str) -> None:
    """Relay until this process is ended."""
    servers = []
    for pair in pairs:
        descriptor, _, target = pair.partition("=")
        host, _, port = target.rpartition(":")
        servers.append(await _serve(socket.socket(fileno=int(descriptor)), host, int(port)))
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def _serve(listening: socket.socket, host: str, port: int) -> asyncio.Server:
    tasks: set[asyncio.Task] = set()  # the loop itself keeps none: asyncio.create_task

    async def connect(client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.closing(client), contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                await asyncio.gather(_pass_on(client_reader, writer), _pass_on(reader, client))

    def accept(reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(connect(reader, client))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return await asyncio.start_server(accept, sock=listening, backlog=socket.SOMAXCONN)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on one way until its end, no faster than the other side reads."""
    while data := await reader.read(BLOCK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


if __name__ == "__main__":
    if sys.argv[1] == LISTEN:
        _hand_over(*sys.argv[2:])
    else:
        asyncio.run(main(*sys.argv[1:]))
