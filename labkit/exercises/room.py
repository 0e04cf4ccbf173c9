"""The door to a room: whoever has joined one has a process that sends verdicts, and a report with the room's figures.

What knows of rooms is another package (`labkit_classroom`), found by the entry point `labkit.room`. It reads the
verdicts in the labs' results.
"""

from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

MEMBERSHIP = ".room.json"  # in the student's folder, when somebody has joined from there


class Room(Protocol):
    """What is behind the entry point."""

    def start_sender(self, folder: Path) -> None:
        """Start the process that sends what the labs in a folder write, unless it runs."""

    def figures(self, folder: Path) -> tuple[dict[str, list[dict[str, Any]]], str]:
        """Return the room's figures by lab, as `report.page.render` takes them, and what is to be said of them."""


def open_lab(folder: Path) -> None:
    """Have the verdicts of a folder sent, if somebody has joined a room from there."""
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
