"""A short transfer over all wires of a testbed at once, which measures their rates: each node sends to the next.

Run on each node as `python transfer.py OWN_ADDRESS NEXT_ADDRESS SECONDS SKIPPED_BYTES`, this prints `got RATE at
OWN_ADDRESS`: the rate, in bit/s, of the payload that came in after SKIPPED_BYTES, which a wire sends at once after a
pause. A node that gets no core for so many seconds sends on until there is something to tell. Standard library only, as
it starts on every node at once.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

PORT = 7077
BLOCK = 1 << 18
LEAST = 4  # the least that is sent however long it takes, in multiples of the skipped bytes
CONNECT_TIMEOUT_S = 30.0  # the time that all nodes have to start Python, on a machine that has other work


def main(own: str, following: str, seconds: str, skipped: str) -> None:
    """Send to the following node in a child process, and receive meanwhile."""
    with socket.create_server((own, PORT)) as server:
        server.settimeout(CONNECT_TIMEOUT_S)
        if not os.fork():
            _end_with(lambda: _send(own, following, float(seconds), LEAST * int(skipped)))
        _end_with(lambda: print(f"got {_receive(server.accept()[0], int(skipped))} at {own}", flush=True))


def _end_with(part: Callable[[], None]) -> NoReturn:
    """Run this process's part of the transfer, and end the process; a failure is one line."""
    try:
        part()
    except OSError as error:
        print(f"on {sys.argv[1]}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def _send(own: str, following: str, seconds: float, least: int) -> None:
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
        while time.monotonic() < end or sent < least:
            sent += connection.send(block)


def _receive(connection: socket.socket, skipped: int) -> float:
    """Return the rate, in bit/s, of the bytes after the skipped ones."""
    total, began, counted, unused = 0, 0.0, 0, bytearray(BLOCK)
    # Of a stream, MSG_TRUNC throws the bytes away, and saves copying them (tcp(7)).
    while count := connection.recv_into(unused, BLOCK, socket.MSG_TRUNC):
        total += count
        last = time.monotonic()
        if began:
            counted += count
        elif total >= skipped:
            began = last
    if not counted:
        raise OSError("no transfer came in")
    return 8 * counted / (last - began)


if __name__ == "__main__":
    main(*sys.argv[1:])
