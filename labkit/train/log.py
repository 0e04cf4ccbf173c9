"""The training log: JSON lines in a file for scripts, and readable lines on the screen."""

import json
import math
from pathlib import Path
from typing import Any

from labkit.system import files

FILE_NAME = "log.jsonl"


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records in a run's folder, without lines damaged by a kill or a power cut."""
    path = folder / FILE_NAME
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []  # complete lines end in a newline
    return [record for line in lines if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


class Log:
    """The log of a run, written by rank 0.

    Parameters
    ----------
    folder : Path
        The file's folder.
    enabled : bool
        Whether this rank writes the log; other ranks write and print nothing.
    """

    def __init__(self, folder: Path, enabled: bool):
        self.path, self.enabled = folder / FILE_NAME, enabled

    def resume(self, step: int) -> None:
        """Remove the records after the checkpoint, whose steps are repeated."""
        if self.enabled and self.path.exists():
            with files.writing(self.path):
                records = [record for record in read(self.path.parent) if record["step"] <= step]
            files.write(self.path, "".join(json.dumps(record) + "\n" for record in records))

    def print(self, text: str) -> None:
        """Print a line that is not in the file."""
        if self.enabled:
            print(text, flush=True)

    def write(self, text: str, **record: Any) -> None:
        """Print a line, and write a record as JSON, with null for numbers that are not finite."""
        if self.enabled:
            finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
            files.append(self.path, json.dumps(finite))
            print(text, flush=True)
