"""Send a seat's state to the board from a separate process, so that no cell waits for it.

`python -m labkit_classroom.board.sender FOLDER` watches the labs' files and sends changes until the board has them. It
ends when the student leaves, when the board no longer knows the seat, and after a day; opening a lab restarts it.
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
HEARTBEAT_S = 60.0  # an unchanged state is sent again after this, as a sign of life
MAX_PAUSE_S = 120.0  # between two attempts to reach a board that does not answer
LIFETIME_S = 24 * 3600.0

Snapshot = tuple[tuple[str, int, int, int], ...]  # per file: name, inode, size, modification time


class Sender:
    """Sends the state of a student's folder to the board."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent: Snapshot | None = None  # the files when they were last sent
        self._sent_at = 0.0

    def step(self) -> bool:
        """Send changes; return False once the seat is gone."""
        member = seat.membership(self.folder)
        if not member:
            return False
        now, snapshot = time.monotonic(), self._look()
        if snapshot == self._sent and now - self._sent_at < HEARTBEAT_S:
            return True
        answer = seat.ask("PUT", member, "/api/seat", seat.state(self.folder, member))
        if answer.status == 403:  # the room was closed, or the instructor has removed the seat
            seat.forget(self.folder, member["token"])
            return False
        if answer.status not in (204, 400):  # 400: it would be refused again
            raise LabError(f"the board's response was {answer.status}.")
        self._sent, self._sent_at = snapshot, now
        return True

    def _look(self) -> Snapshot:
        """Return the files' metadata: reading the files, with their pictures, would disturb measurements."""
        files = (self.folder / OPENED, *sorted((self.folder / "work").glob(seat.RESULTS)))
        snapshot = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                snapshot.append((file.name, status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(snapshot)

    def run(self) -> None:
        """Send until the seat is gone."""
        deadline, pause = time.monotonic() + LIFETIME_S, LOOK_INTERVAL_S
        while time.monotonic() < deadline:
            try:
                if not self.step():
                    return
                pause = LOOK_INTERVAL_S
            except (LabError, OSError):
                pause = min(2 * pause, MAX_PAUSE_S)
            time.sleep(pause * random.uniform(0.7, 1))  # spread a room's senders out


def main(folder: str) -> None:
    """Run a sender, unless one is already running for this folder's seat."""
    path = Path(folder)
    with contextlib.suppress(LabError, OSError), socket.socket(socket.AF_UNIX) as lock:
        if member := seat.membership(path):
            # An abstract socket works in read-only folders, on full disks and on file servers without locks.
            lock.bind(f"\0labkit-room-{hashlib.sha256(member['token'].encode()).hexdigest()}")
            os.nice(5)  # give measurements priority
            Sender(path).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
