"""Atomic checkpoints, so that a run survives being killed."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from labkit.system import files
from labkit.system.errors import LabError, reason

MAX_CHECKPOINTS = 2  # the newest, and one to fall back on
CONTENTS_FILE = "contents.json"  # the settings of a checkpoint
DAMAGE = (tf.errors.OpError, OSError, ValueError, TypeError, LookupError)  # errors from reading a damaged checkpoint


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
    (part / CONTENTS_FILE).write_text(json.dumps({"settings": settings}, indent=1), encoding="utf-8")
    for file in part.iterdir():
        _flush(file)
    _flush(part)
    if final.exists():  # a damaged one
        shutil.rmtree(final)
    part.rename(final)
    _flush(folder)
    for old in _newest_first(folder)[MAX_CHECKPOINTS:]:
        shutil.rmtree(old)


def restore(
    folder: Path, state: tf.train.Checkpoint, check: Callable[[dict[str, Any]], None]
) -> tuple[int, tuple[str, ...]]:
    """Restore the newest intact checkpoint; TensorFlow verifies its checksums.

    Parameters
    ----------
    folder : Path
        The folder of the checkpoints.
    state : tf.train.Checkpoint
        The variables to restore, which must be those that were saved.
    check : callable
        Takes the settings of a checkpoint before it is restored, and raises LabError if they don't suit this run.

    Returns
    -------
    step : int
        The steps done when it was saved; 0 if there is no checkpoint.
    skipped : tuple of str
        Newer, damaged checkpoints, and the damage.

    Raises
    ------
    LabError
        When there are checkpoints, but all are damaged.
    """
    skipped: list[str] = []
    for path in _newest_first(folder):
        try:
            settings = dict(files.read_json(path / CONTENTS_FILE)["settings"])
            check(settings)
            _read(path, state)
        except DAMAGE as error:
            skipped.append(f"{path.name} ({type(error).__name__}: {reason(error)})")
        else:
            return int(path.name.removeprefix("step-")), tuple(skipped)
    if skipped:
        raise LabError(
            f"all checkpoints in {folder} are damaged, {'; '.join(skipped)}: move that folder away to start again, or "
            "name another --results_dir."
        )
    return 0, ()


def _read(path: Path, state: tf.train.Checkpoint) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:  # TensorFlow would treat the folder's name as a pattern
        state.read(f"/proc/self/fd/{folder}/state").assert_consumed()
    finally:
        os.close(folder)


def _newest_first(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal()), reverse=True)


def _flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
