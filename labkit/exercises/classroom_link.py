"""The link to a classroom, for students who have joined a room: a sender process and the room's results.

The classroom is a separate package (`labkit_classroom`), loaded through the entry point `labkit.room`.
"""

import contextlib
import json
import time
from importlib import metadata
from pathlib import Path
from typing import Protocol

from labkit.system import files

MEMBERSHIP = ".room.json"  # in the student's folder once they have joined
OPENED = Path("work", "opened.json")  # in that folder: the last lab opened, and when


class Room(Protocol):
    """The interface of the entry point."""

    def start_sender(self, folder: Path) -> None:
        """Start the process that sends the results in a folder, unless it is running."""

    def results(self, folder: Path) -> tuple[dict[tuple[str, str], str], str]:
        """Return the room's results by lab and question, and a sentence if there are none."""


def open_lab(folder: Path, lab: str) -> None:
    """Record which lab was opened, and start the sender if the student has joined a room.

    The record is written even before joining: a student who joins during a lab is in that lab. A failure to write it
    doesn't stop the lab.
    """
    with contextlib.suppress(files.NotWritten):
        files.write(folder / OPENED, json.dumps({"lab": lab, "minute": time.strftime("%Y-%m-%dT%H:%M")}))
    if room := _room_of(folder):
        room.start_sender(folder)


def results(folder: Path) -> tuple[dict[tuple[str, str], str], str]:
    """Return the results of the student's room by lab and question, and a sentence if there are none."""
    room = _room_of(folder)
    return room.results(folder) if room else ({}, "")


def _room_of(folder: Path) -> Room | None:
    if not (folder / MEMBERSHIP).exists():
        return None
    return next((entry.load() for entry in metadata.entry_points(group="labkit.room")), None)
