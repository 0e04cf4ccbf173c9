"""The addresses at which processes listen, from the kernel's table."""

import contextlib
import socket
from collections.abc import Callable
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
                    if one.status == psutil.CONN_LISTEN or (one.type == socket.SOCK_DGRAM and not one.raddr):
                        found.setdefault(tuple(one.laddr), set()).add(process.name())
    return found


def listeners_marked(mark: str) -> Addresses:
    """Give those of all processes that have this mark, LABKIT_TEST, in their environment."""
    return listeners(lambda process: process.environ().get("LABKIT_TEST") == mark)


def beyond_loopback(found: Addresses) -> Addresses:
    return {address: programs for address, programs in found.items() if not ip_address(address[0]).is_loopback}
