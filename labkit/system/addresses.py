"""Addresses and ports of this machine: its address on the network, the URLs that others open, free ports."""

import contextlib
import ipaddress
import socket

LOOPBACK = "127.0.0.1"
# Addresses reserved for documentation: the route to them is the one to any other network.
EXAMPLE_HOSTS = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
DISCARD = 9  # the discard port; nothing is sent to it


def machine_address() -> str:
    """Return the address at which other machines on the network reach this one; loopback without a network."""
    for family, host in EXAMPLE_HOSTS:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, DISCARD))  # sends nothing; picks the source address
            return str(probe.getsockname()[0])
    return LOOPBACK


def numeric(address: str) -> str:
    """Return an address in its usual notation, such as 0.0.0.0 for 0; names are unchanged."""
    with contextlib.suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)[0][4][0])
    return address


def is_wildcard(address: str) -> bool:
    """Return whether an address means all of this machine's addresses."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(numeric(address)).is_unspecified
    return False


def url(address: str, port: int, tls: bool) -> str:
    """Return the URL that students open; a board on all addresses is at this machine's address."""
    host = machine_address() if is_wildcard(address) else numeric(address)
    return f"http{'s' if tls else ''}://{in_url(host)}:{port}"


def in_url(address: str) -> str:
    """Return an address as a URL needs it, before a port."""
    return f"[{address}]" if ":" in address else address


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a listening socket, by default on a free port.

    Raises
    ------
    OSError
        If the address is not this machine's, or the port is taken.
    """
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)


def free_ports(count: int, address: str = LOOPBACK) -> list[int]:
    """Return free ports of an address."""
    with contextlib.ExitStack() as all_at_once:
        return [all_at_once.enter_context(listen(address)).getsockname()[1] for _ in range(count)]
