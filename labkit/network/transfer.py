"""How much gets through a network in a short while: each node sends to the next, all at once.

Run on each node as `python transfer.py OWN_ADDRESS NEXT_ADDRESS SECONDS SKIPPED_BYTES`, this prints the rate at which
payload came in, in bit/s, once SKIPPED_BYTES had come: what a wire sends at once after a pause. Standard library only,
as it starts on every node at once.
"""

import os
import socket
import sys
import time

PORT = 7077
BLOCK = 1 << 18
CONNECT_TIMEOUT_S = 10.0


def main(own: str, following: str, seconds: str, skipped: str) -> None:
    """Send to the following node in a child process, and receive meanwhile."""
    with socket.create_server((own, PORT)) as server:
        server.settimeout(CONNECT_TIMEOUT_S)
        if not os.fork():
            _send(own, following, float(seconds))
            os._exit(0)
        connection, _ = server.accept()
    print(_receive(connection, int(skipped)))
    os.wait()


def _send(own: str, following: str, seconds: float) -> None:
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection((following, PORT), CONNECT_TIMEOUT_S, (own, 0))
            break
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    block, end = bytes(BLOCK), time.monotonic() + seconds
    with connection:
        while time.monotonic() < end:
            connection.send(block)


def _receive(connection: socket.socket, skipped: int) -> float:
    """Return the bit/s that came after the skipped bytes."""
    total, began, counted, unused = 0, 0.0, 0, bytearray(BLOCK)
    # Of a stream, MSG_TRUNC throws the bytes away, and saves copying them (tcp(7)).
    while count := connection.recv_into(unused, BLOCK, socket.MSG_TRUNC):
        total += count
        last = time.monotonic()
        if began:
            counted += count
        elif total >= skipped:
            began = last
    return 8 * counted / (last - began) if counted else 0.0


if __name__ == "__main__":
    main(*sys.argv[1:])
