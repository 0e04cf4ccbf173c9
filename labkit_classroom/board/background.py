"""The sender, started as a process beside the notebooks."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from labkit.exercises.room import MEMBERSHIP


def start_sender(folder: Path) -> None:
    """Start the sender of a folder from which somebody has joined; it outlives this process, and a second one ends.

    Nothing waits for it, and nothing fails when it can't be started: it is started again with the next lab.
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
