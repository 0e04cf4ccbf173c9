"""The door to a room: whoever has joined one has a process that sends verdicts, and a report with the room's figures.

What knows of rooms is another package (`labkit_classroom`), found by the entry point `labkit.room`. It reads the
verdicts in the labs' results, and in `OPENED` which lab was opened last.
"""

import contextlib
import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from labkit.system import files

MEMBERSHIP = ".room.json"  # in the student's folder, when somebody has joined from there
OPENED = Path("work", "opened.json")  # in that folder: the lab that was opened last, and when


class Room(Protocol):
    """What is behind the entry point."""

    def start_sender(self, folder: Path) -> None:
        """Start the process that sends what the labs in a folder write, unless it runs."""

    def figures(self, folder: Path) -> tuple[dict[str, list[dict[str, Any]]], str]:
        """Return the room's figures by lab, as `report.page.render` takes them, and what is to be said of them."""


def open_lab(folder: Path, lab: str) -> None:
    """Keep which lab was opened, and have what is in its folder sent, if somebody has joined a room from there.

    It is kept before somebody joins, too: whoever joins in a lab is in that lab. The lab goes on where it can't be.
    """
    with contextlib.suppress(files.NotWritten):
        files.write(folder / OPENED, json.dumps({"lab": lab, "minute": time.strftime("%Y-%m-%dT%H:%M")}))
    if room := _room_of(folder):
        room.start_sender(folder)


def figures(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Return the figures of the room that somebody has joined from a folder, and what is to be said of them."""
    room = _room_of(folder)
    return room.figures(folder) if room else ({}, "")


def _room_of(folder: Path) -> Room | None:
    if not (folder / MEMBERSHIP).exists():
        return None
    return next((entry.load() for entry in metadata.entry_points(group="labkit.room")), None)
