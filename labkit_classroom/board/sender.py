"""Sends a seat's state to the board, beside the notebooks: no cell waits for it or fails by it.

`python -m labkit_classroom.board.sender FOLDER` looks at what the labs write, sends what has changed, and sends it
again until the board has it. It ends when its student leaves, when the board knows the seat no more, and after a day;
opening a lab starts it again.
"""

import contextlib
import hashlib
import os
import random
import socket
import sys
import time
from pathlib import Path
from typing import Any

from labkit.exercises.room import OPENED
from labkit.system.errors import LabError
from labkit_classroom.board import protocol, seat

LOOK_INTERVAL_S = 0.5
HEARTBEAT_S = 60.0  # seconds after which a state is sent again, so that the instructor sees who is there
MAX_PAUSE_S = 120.0  # seconds between two tries at a board that has not answered for as long
LIFETIME_S = 24 * 3600.0


Seen = tuple[tuple[str, int, int, int], ...]  # of each file its name, inode, size and time of change


class Sender:
    """Sends a folder's state and figures, and keeps in mind what of them has been sent.

    Parameters
    ----------
    folder : Path
        The student's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sent: Seen | None = None  # the files as they were when all of them was sent
        self._sent_at = 0.0
        self._figures_sent: set[str] = set()  # labs, for a folder in which that can't be kept
        self._pause = LOOK_INTERVAL_S

    def step(self) -> bool:
        """Send what has changed; return False when there is nobody to send for any more."""
        membership = seat.membership(self.folder)
        if not membership:
            return False
        if membership["leaving"]:
            if not seat.try_to_leave(self.folder):
                raise LabError("the board does not answer.")
            return False
        now, seen = time.monotonic(), self._look()
        if seen == self._sent and now - self._sent_at < HEARTBEAT_S:
            return True
        state = seat.state(self.folder, membership)
        answer = seat.ask("PUT", membership, "/api/seat", state)
        if protocol.fits(answer.content, protocol.HELPED) and seat.lower(self.folder, state):
            return self.step()  # at once: a hand that is raised next is another one
        if answer.status == 403:  # the room was closed, or the instructor has removed the seat
            seat.forget(self.folder, membership["token"])
            return False
        if answer.status not in (*seat.TAKEN, 400):  # what is refused would be refused again
            raise LabError(f"the board says {answer.status}.")
        self._sent, self._sent_at = seen, now
        self._send_figures(membership)
        return True

    def _look(self) -> Seen:
        """Return the files' marks of change: reading them all, with pictures, would disturb measurements."""
        files = (self.folder / seat.HAND, self.folder / OPENED, *sorted((self.folder / "work").glob(seat.RESULTS)))
        seen = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                stat = file.stat()
                seen.append((file.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
        return tuple(seen)

    def _send_figures(self, membership: dict[str, Any]) -> None:
        """Send each lab's closing figures once, if the student has agreed."""
        if not membership["figures"]:
            return
        without_seat = {key: value for key, value in membership.items() if key != "token"}
        for figures in seat.closing_figures(self.folder):
            lab = figures["lab"]
            if lab in membership["sent"] or lab in self._figures_sent:
                continue
            message = {"ticket": protocol.ticket(membership["token"], lab), **figures}
            status = seat.ask("POST", without_seat, "/api/figures", message).status
            if status in (204, 400, 403):  # 403: the ticket is used, and only the answer did not come
                self._figures_sent.add(lab)
                membership = membership | {"sent": [*membership["sent"], lab]}
                seat.change(self.folder, sent=membership["sent"])

    def run(self) -> None:
        """Send until there is nothing to send for."""
        deadline = time.monotonic() + LIFETIME_S
        while time.monotonic() < deadline:
            try:
                if not self.step():
                    return
                self._pause = LOOK_INTERVAL_S
            except (LabError, OSError):
                self._pause = min(2 * self._pause, MAX_PAUSE_S)
            time.sleep(self._pause * random.uniform(0.7, 1))  # a room's senders do not come all at once


def main(folder: str) -> None:
    """Run a sender, unless one runs for this folder's seat."""
    path = Path(folder)
    with contextlib.suppress(LabError, OSError), socket.socket(socket.AF_UNIX) as lock:
        if membership := seat.membership(path):
            # A name without a file: read-only folders, full disks and file servers without locks don't matter.
            lock.bind(f"\0labkit-room-{hashlib.sha256(membership['token'].encode()).hexdigest()}")
            os.nice(5)  # it measures nothing, and must not disturb what does
            Sender(path).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
