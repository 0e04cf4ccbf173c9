"""The entry point `labkit.room`, which the labs call for students who have joined a room."""

from pathlib import Path

from labkit.system.errors import LabError
from labkit_classroom.board import seat


def start_sender(folder: Path) -> None:
    """Start the sender for a folder if its student has joined a room."""
    seat.start_sender(folder)


def results(folder: Path) -> tuple[dict[tuple[str, str], str], str]:
    """Return the room's results by lab and question, and the reason if there are none."""
    try:
        summaries = seat.room_results(folder)
    except LabError as error:
        return {}, f"The room's results are missing: {error}"
    return summaries, "" if summaries else "The room has no results yet: they appear once five machines have measured."
