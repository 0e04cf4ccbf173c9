"""Measure the rates of a testbed's wires: a short transfer from each node to the next, on all wires at once.

Run on each node as `python transfer.py OWN_ADDRESS NEXT_ADDRESS SECONDS SKIPPED_BYTES`, this prints `got RATE at
OWN_ADDRESS`: the rate, in bit/s, of the payload received after SKIPPED_BYTES, which a wire sends in one burst after a
pause. A node that gets no core for SECONDS keeps sending until the rate can be measured. Standard library only, as it
starts on every node at once.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

PORT = 7077
BLOCK = 1 << 18
MIN_SENT = 4  # the minimum to send, however long it takes, in multiples of the skipped bytes
CONNECT_TIMEOUT_S = 30.0  # for all nodes to start Python, on a busy machine


def main(own: str, following: str, seconds: str, skipped: str) -> None:
    """Send to the following node in a child process, and receive meanwhile."""
    with socket.create_server((own, PORT)) as server:
        server.settimeout(CONNECT_TIMEOUT_S)
        if not os.fork():
            _end_with(lambda: _send(own, following, float(seconds), MIN_SENT * int(skipped)))
        _end_with(lambda: print(f"got {_receive(server.accept()[0], int(skipped))} at {own}", flush=True))


def _end_with(part: Callable[[], None]) -> NoReturn:
    """Run this process's part of the transfer, then end the process; a failure prints one line."""
    try:
        part()
    except OSError as error:
        print(f"on {sys.argv[1]}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _send(own: str, following: str, seconds: float, min_bytes: int) -> None:
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection((following, PORT), CONNECT_TIMEOUT_S, (own, 0))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    block, end, sent = bytes(BLOCK), time.monotonic() + seconds, 0
    with connection:
        while time.monotonic() < end or sent < min_bytes:
            sent += connection.send(block)


def _receive(connection: socket.socket, skipped: int) -> float:
    """Return the rate, in bit/s, of the bytes after the skipped ones."""
    total, began, counted, unused = 0, 0.0, 0, bytearray(BLOCK)
    # On a stream, MSG_TRUNC discards the bytes without copying them (tcp(7)).
    while count := connection.recv_into(unused, BLOCK, socket.MSG_TRUNC):
        total += count
        last = time.monotonic()
        if began:
            counted += count
        elif total >= skipped:
            began = last
    if not counted:
        raise OSError("nothing was received")
    return 8 * counted / (last - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
