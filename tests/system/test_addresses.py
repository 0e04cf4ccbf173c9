"""Addresses of this machine are found, and printed in their usual notation."""

import socket

import pytest

from labkit.system import addresses


def test_the_machine_address_is_one_of_this_machines_and_loopback_without_a_network(monkeypatch):
    addresses.listen(addresses.machine_address()).close()

    def unreachable(*_: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable, raising=False)
    assert addresses.machine_address() == addresses.LOOPBACK


@pytest.mark.parametrize("address", ["0", "0.0.0.0", "0x0", "00.0", "::", "0:0::0", "::0.0.0.0"])
def test_wildcard_addresses_are_recognised_in_any_notation(address):
    assert addresses.is_wildcard(address)
    assert addresses.url(address, 80, False) == f"http://{addresses.in_url(addresses.machine_address())}:80"


@pytest.mark.parametrize(
    ("address", "written"),
    [("127.1", "127.0.0.1"), ("2130706433", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]")],
)
def test_urls_have_addresses_in_usual_notation(address, written):
    assert not addresses.is_wildcard(address)
    assert addresses.url(address, 80, False) == f"http://{written}:80"
    assert addresses.url(address, 443, True) == f"https://{written}:443"


def test_free_ports_are_different_and_usable():
    ports = addresses.free_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        with addresses.listen(addresses.LOOPBACK, port), pytest.raises(OSError, match="in use"):
            addresses.listen(addresses.LOOPBACK, port)
