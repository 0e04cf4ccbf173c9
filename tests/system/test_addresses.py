"""This machine's addresses are its own, and are written as others type them."""

import socket

import pytest

from labkit.system import addresses


def test_its_own_address_is_one_of_this_machine():
    addresses.listen(addresses.own()).close()


def test_in_no_network_its_own_address_is_loopback(monkeypatch):
    def nowhere(*_: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", nowhere, raising=False)
    assert addresses.own() == addresses.LOOPBACK


@pytest.mark.parametrize("address", ["0", "0.0.0.0", "0x0", "00.0", "::", "0:0::0", "::0.0.0.0"])
def test_everywhere_is_everywhere_however_it_is_written(address):
    assert addresses.is_everywhere(address)
    assert addresses.url(address, 80, False) == f"http://{addresses.in_url(addresses.own())}:80"


@pytest.mark.parametrize(
    ("address", "written"),
    [("127.1", "127.0.0.1"), ("2130706433", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]")],
)
def test_an_address_is_printed_as_it_is_typed_by_others(address, written):
    assert not addresses.is_everywhere(address)
    assert addresses.url(address, 80, False) == f"http://{written}:80"
    assert addresses.url(address, 443, True) == f"https://{written}:443"


def test_free_ports_are_different_and_can_be_listened_at():
    ports = addresses.free_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        with addresses.listen(addresses.LOOPBACK, port), pytest.raises(OSError, match="in use"):
            addresses.listen(addresses.LOOPBACK, port)
