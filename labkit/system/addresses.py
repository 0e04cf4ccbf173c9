"""Addresses and ports of this machine: its own in the network, what others open, which ports are free."""

import contextlib
import ipaddress
import socket

LOOPBACK = "127.0.0.1"
# Documentation's addresses: the route to them leads to any other network.
ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
DISCARD = 9  # a port at which nobody listens


def own() -> str:
    """Return the address by which others in this machine's network reach it; loopback when it is in none."""
    for family, host in ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, DISCARD))  # sends nothing: it asks which address would be used
            return str(probe.getsockname()[0])
    return LOOPBACK


def numeric(address: str) -> str:
    """Return an address as it is usually written, such as 0.0.0.0 for 0; a name as it is."""
    with contextlib.suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)[0][4][0])
    return address


def is_everywhere(address: str) -> bool:
    """Whether an address stands for all that this machine has."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(numeric(address)).is_unspecified
    return False


def url(address: str, port: int, tls: bool) -> str:
    """Return the URL that students open: of a board on all addresses, by this machine's own."""
    host = own() if is_everywhere(address) else numeric(address)
    return f"http{'s' if tls else ''}://{in_url(host)}:{port}"


def in_url(address: str) -> str:
    """Return an address as it is written in front of a port."""
    return f"[{address}]" if ":" in address else address


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a socket that listens, by default at a port that is free.

    Raises
    ------
    OSError
        When the address is not this machine's, or somebody listens there.
    """
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def free_ports(count: int, address: str = LOOPBACK) -> list[int]:
    """Return ports of an address that nobody listens at."""
    with contextlib.ExitStack() as all_at_once:
        return [all_at_once.enter_context(listen(address)).getsockname()[1] for _ in range(count)]
