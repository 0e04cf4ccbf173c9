"""Where processes listen, from the kernel's table; and who has too many connections there."""

import contextlib
import os
import resource
import socket
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address

import psutil

Addresses = dict[tuple[str, int], set[str]]  # an address, and which programs have its socket


def listeners(is_wanted: Callable[[psutil.Process], bool]) -> Addresses:
    """Give where the wanted processes listen, and which programs do."""
    found: Addresses = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if is_wanted(process):
                for one in process.net_connections("inet"):
                    if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM:
                        found.setdefault(tuple(one.laddr), set()).add(process.name())
    return found


def listeners_marked(mark: str) -> Addresses:
    """Give those of all processes that have this mark, LABKIT_TEST, in their environment."""
    return listeners(lambda process: process.environ().get("LABKIT_TEST") == mark)


def beyond_loopback(found: Addresses) -> Addresses:
    return {address: programs for address, programs in found.items() if not ip_address(address[0]).is_loopback}


@contextlib.contextmanager
def connected(ports: Iterable[int], count: int, user: int | None = None, sent: bytes = b"") -> Iterator[None]:
    """Have a process with so many connections to each port of loopback, each of which has sent something.

    As root, it can be another user's.
    """
    (ready, told), (waiting, over) = os.pipe(), os.pipe()
    if not (child := os.fork()):
        with contextlib.suppress(OSError):
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            if user is not None:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            os.close(over)
            kept = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(count)]
            for one in kept:
                with contextlib.suppress(OSError):  # turned away
                    one.sendall(sent)
            os.write(told, b".")
            os.read(waiting, 1)
        os._exit(0)
    try:
        os.close(told)
        assert os.read(ready, 1)
        yield
    finally:
        for end in (over, ready, waiting):
            os.close(end)
        os.waitpid(child, 0)
