"""The entry point `labkit.room`, which the labs call for students who have joined a room."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from labkit.exercises.classroom_link import MEMBERSHIP
from labkit.system.errors import LabError


def start_sender(folder: Path) -> None:
    """Start the sender for a folder if its student has joined a room; a second sender exits by itself.

    It outlives this process. If it cannot be started, the next lab to be opened tries again.
    """
    with contextlib.suppress(OSError):
        folder = folder.resolve()
        if not (folder / MEMBERSHIP).exists():
            return
        subprocess.Popen(
            [sys.executable, "-m", "labkit_classroom.board.sender", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "LABKIT_"))},
        )


def results(folder: Path) -> tuple[dict[tuple[str, str], str], str]:
    """Return the room's results by lab and question, and the reason if there are none."""
    from labkit_classroom.board import seat

    try:
        summaries = seat.room_results(folder)
    except LabError as error:
        return {}, f"The room's results are missing: {error}"
    return summaries, "" if summaries else "The room has no results yet: they appear once five machines have measured."
