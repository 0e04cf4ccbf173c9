"""Which handwritten digits do the labs read, are their files intact, and where can they be had?"""

import gzip
import hashlib
import io
import math
import os
import struct
import tempfile
import time
import tomllib
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from labkit.system.errors import LabError
from labkit.system.paths import DATA, shown

# scikit-learn, SciPy, pooch and Rich are imported where they are used: every command and every rank imports this
# module, and few of them need any of the four.

REGISTRY = DATA / "registry.toml"
SILENCE = 10.0  # seconds a mirror may take to answer, or to send its next bytes
PATIENCE = 600.0  # seconds for one `fetch` in all: enough for mnist.npz at 20 kB/s


@dataclass(frozen=True, eq=False)
class Digits:
    """Handwritten digits, ready to train on.

    Attributes
    ----------
    x_train, x_test : (n, 28, 28, 1) float32 in 0..1, light strokes on black
    y_train, y_test : (n,) int64 in 0..9
    source : one sentence for the student: which set this is and, when it is not MNIST, why
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str


@dataclass(frozen=True)
class FileStatus:
    """One file the labs can read; `fix` says what to do about its state, and is empty when nothing need be done."""

    name: str
    state: Literal["intact", "missing", "damaged"]
    path: Path
    detail: str
    fix: str


# --- What the labs read -----------------------------------------------------------------------------------------------


def load_digits(
    n_train: int | None = None,
    n_test: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    registry: Path = REGISTRY,
) -> Digits:
    """Return the digits every MNIST lab uses, from this machine alone: the network is never asked.

    MNIST when it is in `folder` (as `mnist.npz`, else as the four IDX files) or in Keras' cache; otherwise
    scikit-learn's own 1,797 digits, enlarged to 28×28, turned, shifted, scaled and made noisy.
    The same arguments give the same bytes, on every rank. Nothing is written.

    Parameters
    ----------
    n_train, n_test : int, optional
        How many digits, as many of each class as can be had. By default all of MNIST, or 8,000 and 2,000 of the
        built-in digits. The one number does not change what the other selects.
    seed : int
        Of the selection, its order, and the variations of the built-in digits.
    folder : Path, optional
        Where files are looked for first: by default the environment variable `LAB_DATA`, else the checkout's `data/`.
    registry : Path
        The TOML file with each file's size and SHA-256.

    Raises
    ------
    LabError
        A file is damaged (it is named, and never passed over for another set), or a number is out of range.
    """
    folder, forms = _data_folder(folder), _forms(registry)
    found = _mnist(_places(folder, forms)) or _built_in(_absence(folder, forms))
    n_train = _number("n_train", n_train, found.usual[0], found.most[0])
    n_test = _number("n_test", n_test, found.usual[1], found.most[1])
    _number("seed", seed, 0, 2**63, least=0)
    # A random stream each, so that the test digits stay the same whatever the number of training digits.
    train = _drawn(found.train, n_train, np.random.default_rng([seed, 0]), found.render)
    test = _drawn(found.test, n_test, np.random.default_rng([seed, 1]), found.render)
    source = f"{found.title}: {n_train:,} training and {n_test:,} test digits, {found.origin}."
    return Digits(*train, *test, source)


class _Part(NamedTuple):
    """Training or test originals: images (n, height, width) and labels (n,)."""

    images: np.ndarray
    labels: np.ndarray


_Render = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass(frozen=True, eq=False)
class _Set:
    title: str
    origin: str
    train: _Part
    test: _Part
    usual: tuple[int, int]  # how many digits when the lab names no number
    most: tuple[int, int]
    render: _Render  # originals to (n, 28, 28) uint8


def _number(name: str, given: int | None, usual: int, most: int, least: int = 1) -> int:
    number = usual if given is None else given
    if not isinstance(number, int | np.integer) or not least <= number <= most:
        raise LabError(f"{name}={given!r} is not possible here: give a whole number from {least:,} to {most:,}.")
    return int(number)


def _drawn(part: _Part, n: int, rng: np.random.Generator, render: _Render) -> _Part:
    """Return `n` images (n, 28, 28, 1) float32 in 0..1 and their labels (n,) int64."""
    chosen = _balanced(part.labels, n, rng)
    images = render(part.images[chosen], rng)
    return _Part(images[..., np.newaxis] / np.float32(255), part.labels[chosen].astype(np.int64))


def _balanced(labels: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return `n` indices in random order, taken from each class in turn; all are used once before one is used again."""
    rounds = np.tile(np.arange(len(labels)), (math.ceil(n / len(labels)), 1))
    pool = rng.permuted(rounds, axis=1).ravel()
    turn = np.empty(len(pool), dtype=np.int64)
    for label in np.unique(labels):
        members = labels[pool] == label
        turn[members] = np.arange(members.sum())
    return rng.permutation(pool[np.argsort(turn, kind="stable")[:n]])


# --- scikit-learn's digits --------------------------------------------------------------------------------------------


def _built_in(why: str) -> _Set:
    train, test = _originals()
    return _Set(
        title="scikit-learn's 1,797 handwritten digits, enlarged and varied",
        origin=f"because {why} (`./lab data fetch` brings it)",
        train=train,
        test=test,
        usual=(8_000, 2_000),
        most=(60_000, 10_000),  # as MNIST, so that no lab works with the one set and fails with the other
        render=_varied,
    )


def _originals() -> tuple[_Part, _Part]:
    """Return scikit-learn's digits, (n, 8, 8) float64 in 0..16, always split alike: 36 test digits of each class."""
    from sklearn.datasets import load_digits

    everything = load_digits()
    test = _balanced(everything.target, 360, np.random.default_rng(0))
    train = np.setdiff1d(np.arange(len(everything.target)), test)
    return tuple(_Part(everything.images[rows], everything.target[rows]) for rows in (train, test))


def _varied(originals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn each of (n, 8, 8) float64 in 0..16 into a (n, 28, 28) uint8 variant of its own.

    As in MNIST the digit fills a box of about 20×20 pixels. With these ranges a CNN of two convolutions and two dense
    layers (8,000 digits, batch 64) came to 92–94% in one epoch, 97% in three and 98% in five.
    """
    from scipy import ndimage

    n = len(originals)
    angle = np.deg2rad(rng.uniform(-10, 10, n))
    step = 8 / 20 * rng.uniform(1 / 1.1, 1.1, n)  # original pixels per new pixel
    shift = rng.uniform(-1.5, 1.5, (n, 2))  # new pixels
    noise = rng.normal(0, 0.1, (n, 28, 28))
    cos, sin = step * np.cos(angle), step * np.sin(angle)
    to_original = np.stack([np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)], axis=-2)

    # A border of background keeps the spline from smearing strokes that touch the edge over the new margin.
    splines = np.pad(originals / 16, ((0, 0), (1, 1), (1, 1)))
    for axis in (1, 2):
        splines = ndimage.spline_filter1d(splines, axis=axis)
    old_centre, new_centre = 4.5, 13.5
    images = np.empty((n, 28, 28))
    for spline, matrix, moved, image in zip(splines, to_original, shift, images, strict=True):
        offset = old_centre - matrix @ (new_centre + moved)
        ndimage.affine_transform(spline, matrix, offset, image.shape, image, prefilter=False)
    # 256 grey values, as MNIST has: what two CPUs round differently in the last bit ends in the same value.
    return np.rint(255 * np.clip(images + noise, 0, 1)).astype(np.uint8)


# --- MNIST's files ----------------------------------------------------------------------------------------------------


class _File(NamedTuple):
    name: str
    size: int  # bytes
    sha256: str


class _Form(NamedTuple):
    """One form in which MNIST is published: the files that make it up, and the addresses they are under."""

    name: Literal["npz", "idx"]
    files: tuple[_File, ...]
    mirrors: tuple[str, ...]


class _Place(NamedTuple):
    """A folder that may hold MNIST, in which forms, and what to do about a damaged file there."""

    folder: Path
    forms: tuple[_Form, ...]
    fix: str


class _Damaged(Exception):
    """Says of the file `name` what is wrong with it."""

    def __init__(self, name: str, fault: str):
        super().__init__(fault)
        self.name = name


def _forms(registry: Path) -> tuple[_Form, ...]:
    tables = tomllib.loads(registry.read_text())["mnist"]
    return tuple(
        _Form(
            table["form"],
            tuple(_File(file["name"], file["size"], file["sha256"]) for file in table["files"]),
            tuple(table["mirrors"]),
        )
        for table in tables
    )


def _data_folder(given: Path | None) -> Path:
    folder = Path(given or os.environ.get("LAB_DATA") or DATA).expanduser()
    if not folder.is_dir():
        raise LabError(f"There is no data folder {folder}: make it, or set LAB_DATA to the one that holds the data.")
    return folder


def _places(folder: Path, forms: tuple[_Form, ...]) -> tuple[_Place, ...]:
    keras = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "datasets"
    return (
        _Place(folder, forms, "`./lab data fetch` replaces it, or delete it"),
        _Place(
            keras,
            tuple(form for form in forms if form.name == "npz"),  # the one that Keras keeps
            f"`./lab data fetch` puts an intact one into {shown(folder)}/, which is read first, or delete it",
        ),
    )


def _mnist(places: tuple[_Place, ...]) -> _Set | None:
    """Return MNIST from the first place that has it whole, None when none has; a damaged file on the way is refused."""
    for place in places:
        for form in place.forms:
            try:
                contents = {file.name: _content(place.folder, file) for file in form.files}
                if None in contents.values():
                    continue
                train, test = _READERS[form.name](contents)
            except _Damaged as damage:
                path = shown(place.folder / damage.name)
                raise LabError(f"{path} is damaged: {damage}. {place.fix}.") from damage
            numbers = len(train.labels), len(test.labels)
            more = len(form.files) - 1
            where = shown(place.folder / form.files[0].name) + (f" and the {more} files with it" if more else "")
            return _Set("MNIST", f"read from {where}", train, test, numbers, numbers, lambda images, rng: images)
    return None


def _absence(folder: Path, forms: tuple[_Form, ...]) -> str:
    """Say why MNIST cannot be read: it is not there, or only in part."""
    for form in forms:
        missing = [file.name for file in form.files if not (folder / file.name).exists()]
        if 0 < len(missing) < len(form.files):
            return f"MNIST in {shown(folder)}/ lacks {', '.join(missing)}"
    return f"MNIST is not in {shown(folder)}/"


def _content(folder: Path, file: _File) -> bytes | None:
    """Return the file's bytes when it is intact and None when it is missing; raise `_Damaged` otherwise."""
    path = folder / file.name
    try:
        size = path.stat().st_size
        if size != file.size:
            raise _Damaged(file.name, f"{size:,} bytes instead of {file.size:,}")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _Damaged(file.name, f"it cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        raise _Damaged(file.name, f"its SHA-256 starts with {digest[:12]} instead of {file.sha256[:12]}")
    return content


def _read_npz(contents: dict[str, bytes]) -> tuple[_Part, _Part]:
    [(name, content)] = contents.items()
    try:
        archive = np.load(io.BytesIO(content), allow_pickle=False)
        arrays = [archive[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    except (ValueError, LookupError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _Damaged(name, "it is not an .npz archive of x_train, y_train, x_test and y_test") from error
    return _part(name, *arrays[:2]), _part(name, *arrays[2:])


def _read_idx(contents: dict[str, bytes]) -> tuple[_Part, _Part]:
    parts = []
    for prefix in ("train", "t10k"):
        images, labels = f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"
        parts.append(_part(images, _idx_array(images, contents[images], 3), _idx_array(labels, contents[labels], 1)))
    return tuple(parts)


def _idx_array(name: str, content: bytes, dimensions: int) -> np.ndarray:
    """Read a gzipped IDX file: magic number, a 32-bit size for each dimension, the values; all big-endian.

    The magic number is two zero bytes, the type (8 is unsigned byte) and the number of dimensions:
    http://yann.lecun.com/exdb/mnist/, "The IDX file format".
    """
    try:
        raw = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise _Damaged(name, f"it is not a whole gzip file ({error})") from error
    start = 4 + 4 * dimensions
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) < start:
        raise _Damaged(
            name, f"it starts with {raw[:4].hex()}, not as an IDX file of bytes in {dimensions} dimension(s)"
        )
    shape = struct.unpack_from(f">{dimensions}I", raw, 4)
    if len(raw) - start != math.prod(shape):
        raise _Damaged(name, f"its header promises {math.prod(shape):,} values and it holds {len(raw) - start:,}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _part(name: str, images: np.ndarray, labels: np.ndarray) -> _Part:
    if images.shape != (len(images), 28, 28) or images.dtype != np.uint8 or not len(images):
        raise _Damaged(name, f"its images are {images.dtype} {images.shape}, not uint8 (n, 28, 28)")
    if labels.shape != (len(images),) or labels.dtype != np.uint8 or labels.max() > 9:
        raise _Damaged(name, f"its labels are not {len(images):,} uint8 numbers from 0 to 9")
    return _Part(images, labels)


_READERS = {"npz": _read_npz, "idx": _read_idx}


# --- What is here, and how to get it ----------------------------------------------------------------------------------


def status(folder: Path | None = None, registry: Path = REGISTRY) -> list[FileStatus]:
    """Return the state of every registered file in the data folder, and of Keras' copy when the labs would look at it.

    A missing file is no fault: the labs go on with another form of MNIST, or with the built-in digits.

    Raises
    ------
    LabError
        There is no such data folder.
    """
    folder, forms = _data_folder(folder), _forms(registry)
    ours, keras = _places(folder, forms)
    here = any(_is_whole(ours.folder, form) for form in ours.forms)
    readable = here or any(_is_whole(keras.folder, form) for form in keras.forms)
    states = [_file_status(ours, file, readable) for form in ours.forms for file in form.files]
    cached = [] if here else [_file_status(keras, file, readable) for form in keras.forms for file in form.files]
    return states + [file for file in cached if file.state != "missing"]


def _file_status(place: _Place, file: _File, readable: bool) -> FileStatus:
    path = place.folder / file.name
    try:
        content = _content(place.folder, file)
    except _Damaged as damage:
        return FileStatus(file.name, "damaged", path, str(damage), place.fix)
    if content is not None:
        return FileStatus(file.name, "intact", path, f"{file.size:,} bytes, SHA-256 as registered", "")
    if readable:
        return FileStatus(file.name, "missing", path, "not needed: MNIST is here without it", "")
    return FileStatus(
        file.name, "missing", path, "the labs use built-in digits instead", "`./lab data fetch` brings it"
    )


def _is_whole(folder: Path, form: _Form) -> bool:
    return all(_is_intact(folder, file) for file in form.files)


def _is_intact(folder: Path, file: _File) -> bool:
    try:
        return _content(folder, file) is not None
    except _Damaged:
        return False


def fetch(
    folder: Path | None = None,
    registry: Path = REGISTRY,
    silence: float = SILENCE,
    patience: float = PATIENCE,
    show: bool = True,
) -> list[str]:
    """Bring MNIST into the data folder, and give one line for each thing done.

    The first form that the mirrors give (`mnist.npz`, else the four IDX files) is enough. A file appears under its
    name whole and checked, or not at all. Damaged files are replaced, or deleted when another form made them needless.

    Parameters
    ----------
    folder, registry : Path
        As for `digits`.
    silence, patience : float
        Seconds: how long a mirror may say nothing, and how long all of it may take.
    show : bool
        Draw a progress bar for each file on stderr.

    Raises
    ------
    LabError
        No mirror gave MNIST, or the folder cannot be written.
    """
    folder, forms = _data_folder(folder), _forms(registry)
    whole = any(_is_whole(folder, form) for form in forms)
    try:
        done = (
            [] if whole else _fetch_first(forms, folder, registry, _Bounds(silence, time.monotonic() + patience), show)
        )
        done += _delete_damaged(folder, forms)
    except OSError as error:
        raise LabError(
            f"{shown(folder)} cannot be written ({error.strerror or error}): "
            "ask whoever keeps that folder, or set LAB_DATA to one of your own."
        ) from error
    return done or [f"MNIST is in {shown(folder)}/, whole and intact."]


class _Bounds(NamedTuple):
    silence: float  # seconds
    deadline: float  # on the monotonic clock


class _NotServed(Exception):
    """Says why a mirror did not give a file, or why none of a file's mirrors did."""


def _fetch_first(forms: tuple[_Form, ...], folder: Path, registry: Path, bounds: _Bounds, show: bool) -> list[str]:
    failures = []
    for form in forms:
        wanted = [file for file in form.files if not _is_intact(folder, file)]
        try:
            return [_fetch_file(file, form.mirrors, folder, bounds, show) for file in wanted]
        except _NotServed as failure:
            failures.append(str(failure))
    raise LabError(
        f"No mirror gave MNIST ({'; '.join(failures)}). No network? Copy {forms[0].files[0].name} to {shown(folder)}/ "
        f"by hand: its addresses, size and SHA-256 are in {shown(registry)}."
    )


def _fetch_file(file: _File, mirrors: tuple[str, ...], folder: Path, bounds: _Bounds, show: bool) -> str:
    """Bring one file from the first mirror that gives it intact; nothing under its name changes before."""
    import pooch
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    pooch.get_logger().setLevel("WARNING")  # the progress bar says it already
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    refusals = []
    with (
        # Whatever a killed download leaves behind is in a folder that git ignores and no lab reads.
        tempfile.TemporaryDirectory(prefix="mnist-unfinished-", dir=folder) as staging,
        Progress(*columns, console=Console(stderr=True), disable=not show) as progress,
    ):
        for mirror in mirrors:
            host = urlsplit(mirror).netloc
            task = progress.add_task(file.name, total=file.size)
            download = _Download(file.size, bounds, lambda n, task=task: progress.advance(task, n))
            try:
                pooch.retrieve(mirror + file.name, f"sha256:{file.sha256}", file.name, staging, downloader=download)
            except (_NotServed, ValueError) as refusal:
                progress.remove_task(task)
                # ValueError is pooch's word for another SHA-256.
                refusals.append(f"{host} {refusal if isinstance(refusal, _NotServed) else 'sent an altered file'}")
                continue
            whole = Path(staging, file.name)
            whole.chmod(0o644)  # a temporary file is its owner's alone; this one may be for a class
            whole.replace(folder / file.name)
            return f"{file.name}: {file.size:,} bytes from {host}, SHA-256 as registered."
    raise _NotServed(f"{file.name}: {', '.join(refusals)}")


@dataclass(frozen=True)
class _Download:
    """What pooch calls to download one file: within bounds of silence, time and size.

    pooch's own downloader bounds silence alone, and unpacks a .gz that the server declares to be an encoding.
    """

    size: int
    bounds: _Bounds
    advance: Callable[[int], None]

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Write what is at `url` to `output_file`, or raise `_NotServed`."""
        import requests
        from urllib3.exceptions import HTTPError, TimeoutError

        if time.monotonic() > self.bounds.deadline:
            raise _NotServed("was not asked: no time left")
        try:
            with requests.get(url, stream=True, timeout=self.bounds.silence) as response:
                response.raise_for_status()
                with Path(output_file).open("wb") as output:
                    received = self._copy(response.raw, output)
        except requests.HTTPError as error:
            raise _NotServed(f"answered {error.response.status_code}") from error
        except (requests.Timeout, TimeoutError) as error:
            raise _NotServed(f"said nothing for {self.bounds.silence:g} s") from error
        except requests.RequestException as error:
            raise _NotServed("cannot be reached") from error
        except HTTPError as error:
            raise _NotServed("broke off") from error
        if received != self.size:
            raise _NotServed(f"sent {received:,} bytes instead of {self.size:,}")

    def _copy(self, source, output) -> int:
        received = 0
        # read1 gives whatever has come: the deadline holds against a mirror that sends byte by byte, too.
        while chunk := source.read1(2**16, decode_content=False):
            received += len(chunk)
            if received > self.size:
                raise _NotServed(f"sent more than {self.size:,} bytes")
            if time.monotonic() > self.bounds.deadline:
                raise _NotServed("was too slow")
            output.write(chunk)
            self.advance(len(chunk))
        return received


def _delete_damaged(folder: Path, forms: tuple[_Form, ...]) -> list[str]:
    done = []
    for file in (file for form in forms for file in form.files):
        try:
            _content(folder, file)
        except _Damaged as damage:
            (folder / file.name).unlink()
            done.append(f"{file.name}: deleted, it was damaged ({damage}) and is not needed.")
    return done
