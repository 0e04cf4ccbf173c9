"""MNIST's files: where they may be, whether they are intact, and the digits in them."""

import gzip
import hashlib
import io
import math
import os
import struct
import tomllib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from labkit.system.errors import LabError
from labkit.system.paths import DATA, shown

REGISTRY = DATA / "registry.toml"


@dataclass(frozen=True)
class FileStatus:
    """One file the labs can read; `fix` says what to do about its state, and is empty when nothing need be done."""

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
    """A registered file."""

    name: str
    size: int  # bytes
    sha256: str


class Form(NamedTuple):
    """One form in which MNIST is published: the files that make it up, and the addresses they are under."""

    name: Literal["npz", "idx"]
    files: tuple[File, ...]
    mirrors: tuple[str, ...]


class Place(NamedTuple):
    """A folder that may hold MNIST, in which forms, and what to do about a damaged file there."""

    folder: Path
    forms: tuple[Form, ...]
    fix: str


class Damaged(Exception):
    """Says of the file `name` what is wrong with it."""

    def __init__(self, name: str, fault: str):
        super().__init__(fault)
        self.name = name


def read_registry(registry: Path) -> tuple[Form, ...]:
    """Return the forms in which MNIST is published, in the order in which they are looked for."""
    tables = tomllib.loads(registry.read_text())["mnist"]
    return tuple(
        Form(
            table["form"],
            tuple(File(file["name"], file["size"], file["sha256"]) for file in table["files"]),
            tuple(table["mirrors"]),
        )
        for table in tables
    )


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


def places(folder: Path, forms: tuple[Form, ...]) -> tuple[Place, ...]:
    """Return where MNIST may be: the data folder, then Keras' cache."""
    keras = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "datasets"
    return (
        Place(folder, forms, "`./lab data fetch` replaces it, or delete it"),
        Place(
            keras,
            tuple(form for form in forms if form.name == "npz"),  # the one that Keras keeps
            f"`./lab data fetch` puts an intact one into {shown(folder)}/, which is read first, or delete it",
        ),
    )


def read_mnist(places: tuple[Place, ...]) -> tuple[Part, Part, str] | None:
    """Return MNIST's training and test digits, and where they were read, from the first place that has it whole.

    None when no place has it.

    Raises
    ------
    LabError
        A file on the way is damaged.
    """
    for place in places:
        for form in place.forms:
            try:
                found = {file.name: read_intact(place.folder, file) for file in form.files}
                contents = {name: content for name, content in found.items() if content is not None}
                if len(contents) < len(form.files):
                    continue
                train, test = _READERS[form.name](contents)
            except Damaged as damage:
                path = shown(place.folder / damage.name)
                raise LabError(f"{path} is damaged: {damage}. {place.fix}.") from damage
            more = len(form.files) - 1
            where = shown(place.folder / form.files[0].name) + (f" and the {more} files with it" if more else "")
            return train, test, where
    return None


def why_absent(folder: Path, forms: tuple[Form, ...]) -> str:
    """Say why MNIST cannot be read: it is not there, or only in part."""
    for form in forms:
        missing = [file.name for file in form.files if not (folder / file.name).exists()]
        if 0 < len(missing) < len(form.files):
            return f"MNIST in {shown(folder)}/ lacks {', '.join(missing)}"
    return f"MNIST is not in {shown(folder)}/"


def read_intact(folder: Path, file: File) -> bytes | None:
    """Return the file's bytes when it is intact and None when it is missing; raise `Damaged` otherwise."""
    path = folder / file.name
    try:
        size = path.stat().st_size
        if size != file.size:
            raise Damaged(file.name, f"{size:,} bytes instead of {file.size:,}")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(file.name, f"it cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise Damaged(file.name, f"its SHA-256 starts with {digest[:12]} instead of {file.sha256[:12]}")
    return content


def _read_npz(contents: dict[str, bytes]) -> tuple[Part, Part]:
    [(name, content)] = contents.items()
    try:
        archive = np.load(io.BytesIO(content), allow_pickle=False)
        arrays = [archive[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    except (ValueError, LookupError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise Damaged(name, "it is not an .npz archive of x_train, y_train, x_test and y_test") from error
    return _part(name, *arrays[:2]), _part(name, *arrays[2:])


def _read_idx(contents: dict[str, bytes]) -> tuple[Part, Part]:
    def read(prefix: str) -> Part:
        images, labels = f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"
        return _part(images, _idx_array(images, contents[images], 3), _idx_array(labels, contents[labels], 1))

    return read("train"), read("t10k")


def _idx_array(name: str, content: bytes, dimensions: int) -> np.ndarray:
    """Read a gzipped IDX file: magic number, a 32-bit size for each dimension, the values; all big-endian.

    The magic number is two zero bytes, the type (8 is unsigned byte) and the number of dimensions:
    http://yann.lecun.com/exdb/mnist/, "The IDX file format".
    """
    try:
        raw = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise Damaged(name, f"it is not a whole gzip file ({error})") from error
    start = 4 + 4 * dimensions
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) < start:
        raise Damaged(name, f"it starts with {raw[:4].hex()}, not as an IDX file of bytes in {dimensions} dimension(s)")
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    if len(raw) - start != math.prod(shape):
        raise Damaged(name, f"its header promises {math.prod(shape):,} values and it holds {len(raw) - start:,}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _part(name: str, images: np.ndarray, labels: np.ndarray) -> Part:
    if images.shape != (len(images), 28, 28) or images.dtype != np.uint8 or not len(images):
        raise Damaged(name, f"its images are {images.dtype} {images.shape}, not uint8 (n, 28, 28)")
    if labels.shape != (len(images),) or labels.dtype != np.uint8 or labels.max() > 9:
        raise Damaged(name, f"its labels are not {len(images):,} uint8 numbers from 0 to 9")
    return Part(images, labels)


_READERS = {"npz": _read_npz, "idx": _read_idx}


def status(folder: Path | None = None, registry: Path = REGISTRY) -> list[FileStatus]:
    """Return the state of every registered file in the data folder, and of Keras' copy when the labs would look at it.

    A missing file is no fault: the labs go on with another form of MNIST, or with the built-in digits.

    Raises
    ------
    LabError
        There is no such data folder.
    """
    folder, forms = data_folder(folder), read_registry(registry)
    ours, keras = places(folder, forms)
    here = any(is_whole(ours.folder, form) for form in ours.forms)
    readable = here or any(is_whole(keras.folder, form) for form in keras.forms)
    states = [_file_status(ours, file, readable) for form in ours.forms for file in form.files]
    cached = [] if here else [_file_status(keras, file, readable) for form in keras.forms for file in form.files]
    return states + [file for file in cached if file.state != "missing"]


def _file_status(place: Place, file: File, readable: bool) -> FileStatus:
    path = place.folder / file.name
    try:
        content = read_intact(place.folder, file)
    except Damaged as damage:
        return FileStatus(file.name, "damaged", path, str(damage), place.fix)
    if content is not None:
        return FileStatus(file.name, "intact", path, f"{file.size:,} bytes, SHA-256 as registered", "")
    if readable:
        return FileStatus(file.name, "missing", path, "not needed: MNIST is here without it", "")
    return FileStatus(
        file.name, "missing", path, "the labs use built-in digits instead", "`./lab data fetch` brings it"
    )


def is_whole(folder: Path, form: Form) -> bool:
    """Whether a folder has all files of a form, intact."""
    return all(is_intact(folder, file) for file in form.files)


def is_intact(folder: Path, file: File) -> bool:
    """Whether a folder has a file, intact."""
    try:
        return read_intact(folder, file) is not None
    except Damaged:
        return False
