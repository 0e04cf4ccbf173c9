"""A relay between network namespaces: connections to a socket of one are passed on in the other.

A socket stays in the namespace where it was made, whoever has it. `python relay.py ACCOUNTS DESCRIPTOR=HOST:PORT …`
inherits sockets that listen, and connects whoever comes to one of them to the address beside it, in the namespace that
this process is in. ACCOUNTS is the descriptor of `accounts`, where other users can come to the sockets, who are turned
away at once: however many connections they have, none takes a descriptor; or a -. `listen` has sockets made in another
namespace. Standard library only: it is up in a moment.
"""

import asyncio
import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

BLOCK_BYTES = 1 << 16
LISTEN = "listen"  # the argument by which this program is asked for sockets
LISTEN_TIMEOUT_S = 15.0
RETRY_S = 0.1  # the pause before it accepts again, when there was no descriptor for one more connection
MAX_SOCKETS = 64

# sock_diag(7), linux/inet_diag.h
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
HEADER = struct.Struct("=IHHII")  # nlmsghdr
SOCKET_ID = struct.Struct("!HH4s12x4s12xIQ")  # inet_diag_sockid of IPv4: ports, addresses, any interface and cookie
REQUEST = struct.Struct("=BBxxI")  # inet_diag_req_v2: family, protocol, states; then the socket's
ANSWER = struct.Struct("=xB2x48x12xII")  # inet_diag_msg: state; the socket's; …, account, inode
NO_COOKIE, ALL_STATES = 2**64 - 1, 2**32 - 1
TCP_TIME_WAIT, TCP_LISTEN = 6, 10


def listen(within: Sequence[str], host: str, ports: Iterable[int]) -> list[socket.socket]:
    """Return sockets that listen at some ports, 64 at most, in the namespace that the command `within` enters.

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
    """Return the command that runs this module with some arguments."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), *map(str, args)]


def accounts() -> socket.socket:
    """Return a socket by which the kernel tells the owners of connections in this process's namespaces."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    netlink.settimeout(1.0)
    return netlink


def account(netlink: socket.socket, own: tuple[str, int], other: tuple[str, int]) -> int | None:
    """Return the user who has the end `own` of an IPv4 connection; None when nobody has it any more, or can tell."""
    socket_id = SOCKET_ID.pack(own[1], other[1], socket.inet_aton(own[0]), socket.inet_aton(other[0]), 0, NO_COOKIE)
    request = REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, ALL_STATES) + socket_id
    header = HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    try:
        netlink.send(header + request)
        answer = netlink.recv(BLOCK_BYTES)
    except OSError:  # a kernel without sock_diag
        return None
    if HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:  # no such connection
        return None
    state, user, inode = ANSWER.unpack_from(answer, HEADER.size)
    # A closed connection is nobody's, which the kernel tells as root's.
    return user if inode and state not in (TCP_TIME_WAIT, TCP_LISTEN) else None


def _hand_over(descriptor: str, host: str, *ports: str) -> None:
    """Make listening sockets, and send them to the process at the other end of a socket pair."""
    sockets = [socket.create_server((host, int(port))) for port in ports]
    with socket.socket(fileno=int(descriptor)) as other:
        socket.send_fds(other, [b" "], [each.fileno() for each in sockets])


async def main(accounts_descriptor: str, *pairs: str) -> None:
    """Relay until this process is ended."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kernel = None if accounts_descriptor == "-" else socket.socket(fileno=int(accounts_descriptor))
    async with asyncio.TaskGroup() as group:
        for pair in pairs:
            descriptor, _, target = pair.partition("=")
            host, _, port = target.rpartition(":")
            group.create_task(_serve(socket.socket(fileno=int(descriptor)), (host, int(port)), kernel))


async def _serve(listening: socket.socket, target: tuple[str, int], kernel: socket.socket | None) -> None:
    """Accept clients for ever, and connect each to the target, but for other users."""
    tasks: set[asyncio.Task[None]] = set()  # references, as the loop itself keeps none: asyncio.create_task
    listening.listen(socket.SOMAXCONN)
    listening.setblocking(False)
    while True:
        try:
            client, address = await asyncio.get_running_loop().sock_accept(listening)
        except OSError:  # no descriptor, or the client has gone
            await asyncio.sleep(RETRY_S)
            continue
        # A client that has gone meanwhile is let through: it waits for nothing, and has left no more than a message.
        if kernel and account(kernel, address, listening.getsockname()) not in (None, 0, os.getuid()):
            client.close()
            continue
        task = asyncio.create_task(_connect(client, target))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _connect(client: socket.socket, target: tuple[str, int]) -> None:
    """Pass on bytes in both directions; where one of them breaks, give up the other."""
    async with contextlib.AsyncExitStack() as opened:
        opened.enter_context(contextlib.suppress(OSError))
        opened.enter_context(contextlib.closing(client))
        client_reader, client_writer = await asyncio.open_connection(sock=client)
        opened.enter_context(contextlib.closing(client_writer))
        reader, writer = await asyncio.open_connection(*target)
        opened.enter_context(contextlib.closing(writer))
        ways = [asyncio.create_task(_pass_on(*way)) for way in ((client_reader, writer), (reader, client_writer))]
        try:
            await asyncio.gather(*ways)
        finally:
            for way in ways:
                way.cancel()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on bytes in one direction until its end, no faster than the other side reads."""
    writer.transport.set_write_buffer_limits(0)  # so `drain` waits for all: a socket that is closed sends no more
    while data := await reader.read(BLOCK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


if __name__ == "__main__":
    if sys.argv[1] == LISTEN:
        _hand_over(*sys.argv[2:])
    else:
        asyncio.run(main(*sys.argv[1:]))
