"""Sends a seat's state to the board from a process of its own, so that no cell waits for it.

`python -m labkit_classroom.board.sender FOLDER` watches what the labs write and sends changes until the board has them.
It ends when the student leaves, when the board no longer knows the seat, and after a day; opening a lab starts it
again.
"""

import contextlib
import hashlib
import os
import random
import socket
import sys
import time
from pathlib import Path

from labkit.exercises.classroom_link import OPENED
from labkit.system.errors import LabError
from labkit_classroom.board import seat

LOOK_INTERVAL_S = 0.5
HEARTBEAT_S = 60.0  # after which an unchanged state is sent again, so that the instructor sees who is there
MAX_PAUSE_S = 120.0  # between two tries at a board that does not answer
LIFETIME_S = 24 * 3600.0

Seen = tuple[tuple[str, int, int, int], ...]  # of each file: name, inode, size, time of change


class Sender:
    """Sends the state of a student's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent: Seen | None = None  # the files as they were sent last
        self._sent_at = 0.0

    def step(self) -> bool:
        """Send what has changed; return False when there is no seat to send for any more."""
        member = seat.membership(self.folder)
        if not member:
            return False
        now, seen = time.monotonic(), self._look()
        if seen == self._sent and now - self._sent_at < HEARTBEAT_S:
            return True
        answer = seat.ask("PUT", member, "/api/seat", seat.state(self.folder, member))
        if answer.status == 403:  # the room was closed, or the instructor has removed the seat
            seat.forget(self.folder, member["token"])
            return False
        if answer.status not in (204, 400):  # what is refused would be refused again
            raise LabError(f"the board says {answer.status}.")
        self._sent, self._sent_at = seen, now
        return True

    def _look(self) -> Seen:
        """Return the files' marks of change: reading all of them, with pictures, would disturb measurements."""
        files = (self.folder / OPENED, *sorted((self.folder / "work").glob(seat.RESULTS)))
        seen = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                seen.append((file.name, status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(seen)

    def run(self) -> None:
        """Send until there is no seat to send for."""
        deadline, pause = time.monotonic() + LIFETIME_S, LOOK_INTERVAL_S
        while time.monotonic() < deadline:
            try:
                if not self.step():
                    return
                pause = LOOK_INTERVAL_S
            except (LabError, OSError):
                pause = min(2 * pause, MAX_PAUSE_S)
            time.sleep(pause * random.uniform(0.7, 1))  # a room's senders do not come all at once


def main(folder: str) -> None:
    """Run a sender, unless one runs for this folder's seat."""
    path = Path(folder)
    with contextlib.suppress(LabError, OSError), socket.socket(socket.AF_UNIX) as lock:
        if member := seat.membership(path):
            # An abstract socket: works on read-only folders, full disks and file servers without locks.
            lock.bind(f"\0labkit-room-{hashlib.sha256(member['token'].encode()).hexdigest()}")
            os.nice(5)  # measurements have priority
            Sender(path).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
