"""The relay passes bytes on, whole and both ways, for many at once, and one who reads slowly holds up nobody."""

import contextlib
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from labkit.slurm import relay, supervisor

BIG = 50_000_000  # bytes, more than the kernel keeps for a connection
TIMEOUT_S = 30.0


def answer(connection: socket.socket) -> None:
    """Read to the end; then send so many bytes, when that is a number, else what came."""
    with connection, contextlib.suppress(OSError):  # whoever asked has gone
        asked = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        connection.sendall(bytes(int(asked)) if asked.isdigit() else asked[::-1])


@pytest.fixture
def server():
    """Yield the port of a server that answers, each connection in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed
                while True:
                    threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def relayed(*ports: int):
    """Yield the ports of a relay to these ports, and its process."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
    pairs = [f"{one.fileno()}=127.0.0.1:{port}" for one, port in zip(sockets, ports, strict=True)]
    process = subprocess.Popen(relay.command(*pairs), pass_fds=[one.fileno() for one in sockets])
    try:
        yield [one.getsockname()[1] for one in sockets], psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()
        for one in sockets:
            one.close()


def ask(port: int, text: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    client.sendall(text)
    client.shutdown(socket.SHUT_WR)
    return client


def read(client: socket.socket) -> bytes:
    with client:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_many_at_once_are_served_though_one_does_not_read_and_one_has_gone(server):
    with relayed(server) as ([port], process):
        assert read(ask(port, b"once")) == b"ecno"
        before = process.memory_info().rss
        slow = ask(port, str(BIG).encode())
        ask(port, str(BIG).encode()).close()
        texts = [f"client {number}".encode() * number for number in range(200)]
        with ThreadPoolExecutor(40) as at_once:
            assert list(at_once.map(lambda text: read(ask(port, text)), texts)) == [text[::-1] for text in texts]
        assert process.memory_info().rss - before < BIG / 2  # what the slow one does not read waits at the server
        assert len(read(slow)) == BIG


def test_each_socket_leads_to_its_own_place_and_where_nobody_listens_the_connection_ends(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        nobody = other.getsockname()[1]
    with relayed(server, nobody, server) as ([first, second, third], _):
        assert read(ask(first, b"abc")) == b"cba"
        with contextlib.suppress(OSError):  # it may have ended before all was sent
            assert read(ask(second, b"abc")) == b""
        assert read(ask(third, b"abc")) == b"cba"


def test_sockets_are_made_by_a_process_that_is_elsewhere():
    ports = supervisor._port_range()
    with contextlib.ExitStack() as until_seen:
        sockets = [until_seen.enter_context(one) for one in relay.listen(["env"], supervisor.address(), ports)]
        assert [one.getsockname() for one in sockets] == [(supervisor.address(), port) for port in ports]
        socket.create_connection(sockets[-1].getsockname()).close()
        assert sockets[-1].accept()
    with pytest.raises(OSError, match="cannot listen on 127"):
        relay.listen(["false"], "127.0.0.1", [1])
