"""What does a run tell of itself? A JSON line for scripts in a file, and a readable line on the screen."""

import json
import math
from pathlib import Path
from typing import Any

from labkit.system import files

NAME = "log.jsonl"


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run's folder; a line that a kill or a power cut spoilt is left out."""
    path = folder / NAME
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # a whole line ends in a newline
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


class Log:
    """The log of one run, of its rank 0; on other ranks it says nothing.

    Parameters
    ----------
    folder : Path
        Where the file is.
    speaks : bool
        Whether this rank is the one to tell.
    """

    def __init__(self, folder: Path, speaks: bool):
        self.path, self.speaks = folder / NAME, speaks

    def resume(self, step: int) -> None:
        """Take back what a killed run logged after the checkpoint: those steps come again."""
        if self.speaks and self.path.exists():
            with files.writing(self.path):
                kept = [record for record in read(self.path.parent) if record["step"] <= step]
            files.write(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def say(self, text: str) -> None:
        """Tell in words alone."""
        if self.speaks:
            print(text, flush=True)

    def write(self, text: str, **record: Any) -> None:
        """Tell in words and as a JSON line. What is not a finite number becomes null, as JSON has no such."""
        if self.speaks:
            finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
            files.append(self.path, json.dumps(finite))
            print(text, flush=True)
