"""Checkpoints that are there whole or not at all, so that a run survives being killed."""

import json
import math
import os
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from labkit.system import files
from labkit.system.errors import LabError

MAX_KEPT = 2  # the checkpoints that are kept: the newest, and one to fall back on
CONTENTS_FILE = "contents.json"  # the file of what was saved with it, and of the checksums of its other files


class Found(NamedTuple):
    """The newest checkpoint that is intact.

    Attributes
    ----------
    path : Path or None
        Its folder; None when there is no checkpoint.
    step : int
        Steps done when it was saved; 0 without one.
    settings : dict
        The settings that it was saved with.
    skipped : tuple of str
        The newer checkpoints that are damaged, and how.
    """

    path: Path | None
    step: int
    settings: dict[str, Any]
    skipped: tuple[str, ...]

    def restore(self, state: tf.train.Checkpoint) -> None:
        """Set the variables of `state` to the saved values; they must be the same variables as when it was saved."""
        if self.path is None:
            raise ValueError("there is no checkpoint to restore")
        folder = os.open(self.path, os.O_RDONLY)
        try:  # TensorFlow would take the folder's name for a pattern
            state.read(f"/proc/self/fd/{folder}/state").assert_consumed()
        finally:
            os.close(folder)


def save(folder: Path, state: tf.train.Checkpoint, step: int, settings: dict[str, Any]) -> None:
    """Write a checkpoint, and remove all but the newest `MAX_KEPT`.

    It is written in a hidden folder, brought to the disk, and only then gets its name, all at once. So a process
    killed here, or a power cut, leaves the checkpoints as they were.

    Raises
    ------
    NotWritten
        When there is no room for it, or the folder can't be written; the checkpoints are as they were.
    """
    final, part = folder / f"step-{step:08d}", folder / f".step-{step:08d}.part"
    try:
        with files.writing(final):
            _save(folder, final, part, state, settings)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _save(folder: Path, final: Path, part: Path, state: tf.train.Checkpoint, settings: dict[str, Any]) -> None:
    for left_over in folder.glob(".step-*.part"):
        shutil.rmtree(left_over)
    part.mkdir(parents=True)
    try:
        state.write(str(part / "state"))
    except tf.errors.OpError as error:
        raise files.system_error(error) from error
    checksums = {file.name: _checksum(file) for file in part.iterdir()}
    (part / CONTENTS_FILE).write_bytes(json.dumps({"settings": settings, "crc32": checksums}, indent=1).encode())
    for file in part.iterdir():
        _to_disk(file)
    _to_disk(part)
    if final.exists():  # a damaged one
        shutil.rmtree(final)
    part.rename(final)
    _to_disk(folder)
    for old in _newest_first(folder)[MAX_KEPT:]:
        shutil.rmtree(old)


def find(folder: Path) -> Found:
    """Return the newest checkpoint that is intact, by its files' checksums.

    Raises
    ------
    LabError
        When there are checkpoints, but all are damaged.
    """
    skipped: list[str] = []
    for path in _newest_first(folder):
        try:
            contents = files.read_json(path / CONTENTS_FILE)
            damaged = [name for name, checksum in contents["crc32"].items() if _checksum(path / name) != checksum]
            settings = contents["settings"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            skipped.append(f"{path.name} ({error!r})")
            continue
        if not damaged:
            return Found(path, int(path.name.removeprefix("step-")), settings, tuple(skipped))
        skipped.append(f"{path.name} (altered since it was written: {', '.join(damaged)})")
    if skipped:
        raise LabError(
            f"none of the checkpoints in {folder} is intact, {'; '.join(skipped)}: move that folder away to start "
            "again, or name another --results_dir."
        )
    return Found(None, 0, {}, ())


def _newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), reverse=True)


def _checksum(path: Path) -> int:
    """Return a file's CRC-32, read a piece at a time."""
    checksum = 0
    with files.open_regular(path, math.inf) as file:
        while piece := file.read(2**24):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
