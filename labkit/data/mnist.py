"""MNIST's file: where it may be, whether it is intact, and the digits in it."""

import hashlib
import io
import os
import tomllib
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from labkit.system.errors import LabError
from labkit.system.paths import DATA, shown

REGISTRY = DATA / "registry.toml"


@dataclass(frozen=True)
class FileStatus:
    """The status of MNIST's file in one place; `fix` is the remedy, empty when none is needed."""

    name: str
    state: Literal["intact", "missing", "damaged"]
    path: Path
    detail: str
    fix: str


class Part(NamedTuple):
    """Training or test originals: images (n, height, width) and labels (n,)."""

    images: np.ndarray
    labels: np.ndarray


class File(NamedTuple):
    """MNIST's file as it is registered: its name, size and checksum, and its addresses."""

    name: str
    size: int  # bytes
    sha256: str
    mirrors: tuple[str, ...]


class Place(NamedTuple):
    """A folder that may hold MNIST, and the remedy for a damaged file there."""

    folder: Path
    fix: str


class Damaged(Exception):
    """A file is damaged; the message says how."""


def read_registry(registry: Path) -> File:
    """Return MNIST's file as it is registered."""
    table = tomllib.loads(registry.read_text())["mnist"]
    return File(table["name"], table["size"], table["sha256"], tuple(table["mirrors"]))


def data_folder(given: Path | None) -> Path:
    """Return the data folder: `given`, else that of the variable LAB_DATA, else the checkout's.

    Raises
    ------
    LabError
        There is no such folder.
    """
    folder = Path(given or os.environ.get("LAB_DATA") or DATA).expanduser()
    if not folder.is_dir():
        raise LabError(f"There is no data folder {folder}: make it, or set LAB_DATA to the one that holds the data.")
    return folder


def places(folder: Path) -> tuple[Place, Place]:
    """Return the places where MNIST may be: the data folder, then Keras' cache."""
    keras = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "datasets"
    return (
        Place(folder, "`./lab data fetch` replaces it, or delete it"),
        Place(keras, f"`./lab data fetch` puts an intact one into {shown(folder)}/, which is read first, or delete it"),
    )


def read_mnist(folder: Path, file: File) -> tuple[Part, Part, str] | None:
    """Return MNIST's training and test digits, and where they were read, from the first place that has it.

    None when no place has it.

    Raises
    ------
    LabError
        A file on the way is damaged.
    """
    for place in places(folder):
        path = shown(place.folder / file.name)
        try:
            if (content := read_intact(place.folder, file)) is not None:
                return *_read_npz(content), path
        except Damaged as damage:
            raise LabError(f"{path} is damaged: {damage}. {place.fix}.") from damage
    return None


def read_intact(folder: Path, file: File) -> bytes | None:
    """Return the file's bytes when it is intact and None when it is missing; raise `Damaged` otherwise."""
    path = folder / file.name
    try:
        size = path.stat().st_size
        if size != file.size:
            raise Damaged(f"{size:,} bytes instead of {file.size:,}")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"it cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise Damaged(f"its SHA-256 starts with {digest[:12]} instead of {file.sha256[:12]}")
    return content


def _read_npz(content: bytes) -> tuple[Part, Part]:
    try:
        archive = np.load(io.BytesIO(content), allow_pickle=False)
        arrays = [archive[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    except (ValueError, LookupError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise Damaged("it is not an .npz archive of x_train, y_train, x_test and y_test") from error
    return _part(*arrays[:2]), _part(*arrays[2:])


def _part(images: np.ndarray, labels: np.ndarray) -> Part:
    if images.shape != (len(images), 28, 28) or images.dtype != np.uint8 or not len(images):
        raise Damaged(f"its images are {images.dtype} {images.shape}, not uint8 (n, 28, 28)")
    if labels.shape != (len(images),) or labels.dtype != np.uint8 or labels.max() > 9:
        raise Damaged(f"its labels are not {len(images):,} uint8 numbers from 0 to 9")
    return Part(images, labels)


def status(folder: Path | None = None, registry: Path = REGISTRY) -> list[FileStatus]:
    """Return the state of MNIST's file in the data folder, and of Keras' copy when the labs would look at it.

    A missing file is no fault: the labs go on with Keras' copy, or with the built-in digits.

    Raises
    ------
    LabError
        There is no such data folder.
    """
    folder, file = data_folder(folder), read_registry(registry)
    ours, keras = (_file_status(place, file) for place in places(folder))
    if ours.state == "intact" or keras.state == "missing":
        return [ours]
    if (ours.state, keras.state) == ("missing", "intact"):
        ours = replace(ours, detail="not needed: MNIST is in Keras' cache", fix="")
    return [ours, keras]


def _file_status(place: Place, file: File) -> FileStatus:
    path = place.folder / file.name
    try:
        content = read_intact(place.folder, file)
    except Damaged as damage:
        return FileStatus(file.name, "damaged", path, str(damage), place.fix)
    if content is not None:
        return FileStatus(file.name, "intact", path, f"{file.size:,} bytes, SHA-256 as registered", "")
    return FileStatus(
        file.name, "missing", path, "the labs use built-in digits instead", "`./lab data fetch` brings it"
    )


def is_intact(folder: Path, file: File) -> bool:
    """Whether a folder has the file, intact."""
    try:
        return read_intact(folder, file) is not None
    except Damaged:
        return False
