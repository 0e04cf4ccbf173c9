"""The relay passes bytes on, whole and both ways, for many at once, and one who reads slowly holds up nobody."""

import contextlib
import os
import resource
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest
from listening import connected

from labkit.slurm import relay, supervisor
from labkit.system import processes

NOBODY = 65534
DESCRIPTORS, TOO_MANY = 256, 400  # that a relay may have, and connections
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
def relayed(*ports: int, descriptors: int | None = None):
    """Yield the ports of a relay to these ports, with so many descriptors at most, and its process."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in ports]
    pairs = [f"{one.fileno()}=127.0.0.1:{port}" for one, port in zip(sockets, ports, strict=True)]
    accounts = relay.accounts()
    passed = [one.fileno() for one in (*sockets, accounts)]
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (descriptors,) * 2) if descriptors else None
    process = subprocess.Popen(relay.command(accounts.fileno(), *pairs), pass_fds=passed, preexec_fn=limit)
    try:
        yield [one.getsockname()[1] for one in sockets], psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()
        for one in (*sockets, accounts):
            one.close()


def ask(port: int, text: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    client.sendall(text)
    client.shutdown(socket.SHUT_WR)
    return client


def read(client: socket.socket) -> bytes:
    with client:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


@pytest.mark.slow
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


def test_whoever_reads_late_gets_all_though_the_server_has_closed(server):
    sizes = range(0, 6_000_000, 50_000)  # some of them what the kernel keeps, and a little
    with relayed(server) as ([port], _):
        clients = [ask(port, str(size).encode()) for size in sizes]
        time.sleep(0.5)  # for the relay to end what it can
        assert [len(read(client)) for client in clients] == list(sizes)


def test_each_socket_leads_to_its_own_place_and_where_nobody_listens_the_connection_ends(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        nobody = other.getsockname()[1]
    with relayed(server, nobody, server) as ([first, second, third], _):
        assert read(ask(first, b"abc")) == b"cba"
        with contextlib.suppress(OSError):  # it may have ended before all was sent
            assert read(ask(second, b"abc")) == b""
        assert read(ask(third, b"abc")) == b"cba"


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\0" * 100])
def test_others_take_no_descriptor_and_its_user_is_served_meanwhile(server, two_users_can_be_made, sent):
    with relayed(server, descriptors=DESCRIPTORS) as ([port], process), connected([port], TOO_MANY, NOBODY, sent):
        assert read(ask(port, b"abc")) == b"cba"
        assert process.num_fds() < 20


def test_it_goes_on_after_its_own_user_had_too_many_connections(server):
    with relayed(server, descriptors=DESCRIPTORS) as ([port], process):
        with connected([port], TOO_MANY):
            assert process.num_fds() > DESCRIPTORS - 10
        assert read(ask(port, b"abc")) == b"cba"
        assert processes.wait_until(lambda: process.num_fds() < 20, TIMEOUT_S)


def test_whose_a_connection_is():
    with socket.create_server(("127.0.0.1", 0)) as listening, relay.accounts() as kernel:
        with socket.create_connection(listening.getsockname()):
            there, address = listening.accept()
            assert relay.account(kernel, address, listening.getsockname()) == os.getuid()
        assert relay.account(kernel, address, listening.getsockname()) is None  # it is closed
        there.close()
        assert relay.account(kernel, address, listening.getsockname()) is None


def test_sockets_are_made_by_a_process_that_is_elsewhere():
    ports = supervisor._port_range()
    with contextlib.ExitStack() as until_seen:
        sockets = [until_seen.enter_context(one) for one in relay.listen(["env"], supervisor.address(), ports)]
        assert [one.getsockname() for one in sockets] == [(supervisor.address(), port) for port in ports]
        socket.create_connection(sockets[-1].getsockname()).close()
        assert sockets[-1].accept()
    with pytest.raises(OSError, match="cannot listen on 127"):
        relay.listen(["false"], "127.0.0.1", [1])
