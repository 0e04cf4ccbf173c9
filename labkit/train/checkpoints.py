"""Atomic checkpoints, so that a run survives being killed."""

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

MAX_CHECKPOINTS = 2  # the newest, and one to fall back on
CONTENTS_FILE = "contents.json"  # the settings of a checkpoint, and the checksums of its other files


class Checkpoint(NamedTuple):
    """The newest intact checkpoint.

    Attributes
    ----------
    path : Path or None
        Its folder; None if there is no checkpoint.
    step : int
        Steps done when it was saved; 0 without one.
    settings : dict
        The settings that it was saved with.
    skipped : tuple of str
        Newer, damaged checkpoints, and the damage.
    """

    path: Path | None
    step: int
    settings: dict[str, Any]
    skipped: tuple[str, ...]

    def restore(self, state: tf.train.Checkpoint) -> None:
        """Restore the variables of `state`, which must be those that were saved."""
        if self.path is None:
            raise ValueError("there is no checkpoint to restore")
        folder = os.open(self.path, os.O_RDONLY)
        try:  # TensorFlow would treat the folder's name as a pattern
            state.read(f"/proc/self/fd/{folder}/state").assert_consumed()
        finally:
            os.close(folder)


def save(folder: Path, state: tf.train.Checkpoint, step: int, settings: dict[str, Any]) -> None:
    """Write a checkpoint, and remove all but the newest `MAX_CHECKPOINTS`.

    It is written to a hidden folder and flushed to disk before a single rename. So a killed process or a power cut
    leaves earlier checkpoints intact.

    Raises
    ------
    NotWritten
        When the disk is full, or the folder can't be written; earlier checkpoints are intact.
    """
    final, part = folder / f"step-{step:08d}", folder / f".step-{step:08d}.part"
    try:
        with files.writing(final):
            _save(folder, final, part, state, settings)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _save(folder: Path, final: Path, part: Path, state: tf.train.Checkpoint, settings: dict[str, Any]) -> None:
    for leftover in folder.glob(".step-*.part"):
        shutil.rmtree(leftover)
    part.mkdir(parents=True)
    try:
        state.write(str(part / "state"))
    except tf.errors.OpError as error:
        raise files.system_error(error) from error
    checksums = {file.name: _checksum(file) for file in part.iterdir()}
    (part / CONTENTS_FILE).write_bytes(json.dumps({"settings": settings, "crc32": checksums}, indent=1).encode())
    for file in part.iterdir():
        _flush(file)
    _flush(part)
    if final.exists():  # a damaged one
        shutil.rmtree(final)
    part.rename(final)
    _flush(folder)
    for old in _newest_first(folder)[MAX_CHECKPOINTS:]:
        shutil.rmtree(old)


def find(folder: Path) -> Checkpoint:
    """Return the newest checkpoint whose files match their checksums.

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
            return Checkpoint(path, int(path.name.removeprefix("step-")), settings, tuple(skipped))
        skipped.append(f"{path.name} (changed since it was written: {', '.join(damaged)})")
    if skipped:
        raise LabError(
            f"all checkpoints in {folder} are damaged, {'; '.join(skipped)}: move that folder away to start again, or "
            "name another --results_dir."
        )
    return Checkpoint(None, 0, {}, ())


def _newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), reverse=True)


def _checksum(path: Path) -> int:
    """Return a file's CRC-32, reading it in chunks."""
    checksum = 0
    with files.open_regular(path, math.inf) as file:
        while chunk := file.read(2**24):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
