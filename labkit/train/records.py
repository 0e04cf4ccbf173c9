"""Which images does a rank read, in which order? From TFRecords in ImageNet's standard layout.

The layout: files `train-00000-of-01024` and `validation-00000-of-00128`, with records as `labkit.data.tfrecords` tells.

Ranks share images, not files. An epoch is one shuffle of all of them, the same on every rank, and the epochs follow
one another in one endless stream, of which global batch g is the g-th piece and rank r has the r-th part of that. So
no image comes twice in an epoch and none is left out, whatever the batch size, and the global batches of 1 rank × 64
images are those of 2 × 32.
"""

import contextlib
import functools
import os
import platform
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import tensorflow as tf

from labkit.data.tfrecords import FAILURES, LABELS, fault, parsed
from labkit.system.errors import LabError, reason

# Of ImageNet's pixels, red, green and blue in 0..255: torchvision's 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225
# (https://docs.pytorch.org/vision/stable/models.html), times 255.
MEAN = 123.675, 116.28, 103.53
DEVIATION = 58.395, 57.12, 57.375
# A TFRecord is its length (uint64, little-endian), a checksum of that (uint32), the data, and a checksum of those
# (https://www.tensorflow.org/tutorials/load_data/tfrecord).
_LENGTH, _CHECKSUM = 8, 4
_HEAD = _LENGTH + _CHECKSUM
_NAME = re.compile(r"(?P<kind>.+)-(?P<number>\d{5})-of-(?P<files>\d{5})")
_OPEN = 256  # files of a set that stay open; a process may have 1,024, unless told otherwise
_READS = 4  # batches read at the same time: reading waits for a disk or a file server, not for a core


@dataclass(frozen=True, eq=False)
class Records:
    """Where each record is.

    Attributes
    ----------
    files : tuple of Path
    file : (n,) int64, the record's file, as an index into `files`; ascending
    offset : (n,) int64, where its data begin in there, in bytes
    length : (n,) int64, of its data, in bytes
    """

    files: tuple[Path, ...]
    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.file)

    def name(self, number: int) -> str:
        """Return a record's file and its number in there, counted from 0."""
        file = self.file[number]
        return f"{self.files[file]}, record {number - np.searchsorted(self.file, file)}"


def index(
    folder: Path,
    kind: Literal["train", "validation"],
    rank: int = 0,
    ranks: int = 1,
    allgather: Callable[[Any], list] = lambda mine: [mine],
) -> Records:
    """Find all records of a set; each rank looks through its share of the files, by the records' lengths alone.

    Parameters
    ----------
    folder : Path
        Where the files are, the same for every rank.
    kind : {"train", "validation"}
        Which set.
    rank, ranks : int
        This process, and how many there are.
    allgather : callable
        Gives the list of every rank's object, as `hvd.allgather_object` does.

    Raises
    ------
    LabError
        On all ranks, when on any of them there is no such folder or set, a file is missing or not whole, or no file has
        a record.
    """
    files, mine, fault = (), [], ""
    try:
        files = _files(Path(folder), kind)
        with ThreadPoolExecutor() as pool:  # which waits for the disk, not for a core
            mine = list(pool.map(_scan, files[rank::ranks]))
    except LabError as error:
        fault = str(error)
    told = allgather((len(files), mine, fault))  # what is wrong too, or the other ranks would wait for ever
    for _, _, fault in told:
        if fault:
            raise LabError(fault)
    if len({count for count, _, _ in told}) > 1:
        raise LabError(f"{folder} has other {kind} files on other nodes: name a folder that is the same for all ranks.")
    found = [told[number % ranks][1][number // ranks] for number in range(len(files))]
    offset, length = np.concatenate(found, axis=1)
    if not len(offset):
        raise LabError(f"no {kind} file in {folder} has a record: copy them anew.")
    return Records(files, np.repeat(np.arange(len(files)), [part.shape[1] for part in found]), offset, length)


def _files(folder: Path, kind: str) -> tuple[Path, ...]:
    """Return the set's files in their order."""
    if not folder.is_dir():
        raise LabError(f"{platform.node()} has no folder {folder}: name the one with the TFRecords, seen by all nodes.")
    named = {path: _NAME.fullmatch(path.name) for path in sorted(folder.iterdir())}
    found = {path: match for path, match in named.items() if match and match["kind"] == kind}
    sizes = {int(match["files"]) for match in found.values()}
    if not found:
        raise LabError(
            f"{folder} has no file named like {kind}-00000-of-00008: ImageNet's TFRecords have that layout, and "
            "./lab data tfrecords writes a small set in it."
        )
    if len(sizes) > 1:
        counts = " and ".join(map(str, sorted(sizes)))
        raise LabError(f"{folder} holds more than one {kind} set, of {counts} files: keep each in a folder of its own.")
    missing = sorted(set(range(*sizes)) - {int(match["number"]) for match in found.values()})
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise LabError(f"{folder} lacks {kind}-{missing[0]:05}-of-{max(sizes):05}{more}: copy the set anew, whole.")
    return tuple(found)


def _scan(path: Path) -> np.ndarray:
    """Return the offsets and lengths of a file's records, (2, n) int64; the lengths are sound, their data not read."""
    found, offset = [], _HEAD
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            while offset - _HEAD < size:
                head = os.pread(file.fileno(), _HEAD, offset - _HEAD)
                length = int.from_bytes(head[:_LENGTH], "little")
                if len(head) == _HEAD and not _sound(head[:_LENGTH], head[_LENGTH:]):
                    raise LabError(
                        f"{path}, record {len(found)} is damaged, or this is no TFRecord file: the length does not "
                        "match its checksum. Copy the file anew."
                    )
                if len(head) < _HEAD or offset + length + _CHECKSUM > size:
                    raise LabError(
                        f"{path} is no TFRecord file, or not whole: record {len(found)} would end after it. "
                        "Copy it anew."
                    )
                found.append((offset, length))
                offset += length + _CHECKSUM + _HEAD
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}.") from error
    return np.array(found, dtype=np.int64).reshape(-1, 2).T


def _sound(data: bytes, checksum: bytes) -> bool:
    """Whether data have that checksum: CRC-32C, turned and with a number added, as it is data itself."""
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32  # tensorflow/core/lib/hash/crc32c.h
    return masked == int.from_bytes(checksum, "little")


# --- Batches ----------------------------------------------------------------------------------------------------------


def training(
    records: Records,
    image_size: int,
    batch_size: int,
    rank: int = 0,
    ranks: int = 1,
    seed: int = 0,
    start: int = 0,
    least_area: float = 0.08,
    classes: int = LABELS,
) -> "Batches":
    """Return a rank's batches without end: its part of global batch `start`, of the next one, and so on.

    Each image is a random crop, mirrored or not, which depends on `seed` and on its place in the stream alone. So what
    begins at `start` has the same images, to the bit, as what began at 0 and went on.

    Parameters
    ----------
    records : Records
        All of the set.
    image_size : int
        Height and width of an image, in pixels.
    batch_size : int
        Images in a batch of one rank; a global batch is `ranks` times as many.
    rank, ranks : int
        This process, and how many there are.
    seed : int
        Of the order, the crops and the mirroring; the same on every rank.
    start : int
        The global batch to begin with: how many steps have been trained.
    least_area : float
        The smallest share of a picture that a crop has; its width is 3/4 to 4/3 of its height. 0.08 is what
        ImageNet's pictures are usually given (Szegedy et al. 2014, arXiv 1409.4842); small ones need more.
    classes : int
        Labels are from 0 to one less; another one is refused.

    Returns
    -------
    Batches
        Images (batch_size, image_size, image_size, 3) float32, less `MEAN` and divided by `DEVIATION`, and labels
        (batch_size,) int32 as in the files.
    """

    def positions(batch: tf.Tensor) -> tf.Tensor:
        return (batch * ranks + rank) * batch_size + tf.range(batch_size, dtype=tf.int64)

    def crop(shape: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            seed=(seed, 2 * position),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(least_area, 1.0),
        )
        return tf.concat((begin[:2], size[:2]), 0)

    def mirror(image: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        return tf.image.stateless_random_flip_left_right(image, seed=(seed, 2 * position + 1))

    stream = tf.data.Dataset.counter(start).map(positions)
    reader = _Reader(records, functools.partial(_numbers, len(records), seed), classes)
    return _batches(reader, stream, crop, mirror, image_size, batch_size)


def evaluation(
    records: Records, image_size: int, batch_size: int, rank: int = 0, ranks: int = 1, classes: int = LABELS
) -> "Batches":
    """Return a rank's share of a set, each image once: the middle of it, seven eighths of its shorter side.

    That is 224 pixels of 256, the usual for ImageNet. The shares together are the set; they differ by an image at most.

    Returns
    -------
    Batches
        As from `training`; the last one has what is left.
    """

    def crop(shape: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        side = tf.cast(tf.round(tf.cast(tf.reduce_min(shape[:2]), tf.float32) * (224 / 256)), tf.int32)
        return tf.stack(((shape[0] - side) // 2, (shape[1] - side) // 2, side, side))

    positions = tf.data.Dataset.range(rank, len(records), ranks).batch(batch_size)
    reader = _Reader(records, lambda positions: positions, classes)
    return _batches(reader, positions, crop, lambda image, position: image, image_size, batch_size)


class Batches:
    """A rank's batches: iterate over it for pairs of images and labels.

    A record that cannot be read, is damaged, or has no JPEG or no label that is known, is a LabError that names it. It
    is no `tf.data.Dataset` because the errors of that do not tell which record it was.
    """

    def __init__(self, data: tf.data.Dataset, positions: tf.data.Dataset, reader: "_Reader"):
        self._data, self._positions, self._reader = data, positions, reader

    def __iter__(self) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yield the batches from the first."""
        given, iterator = 0, iter(self._data)
        try:
            for batch in iterator:
                yield batch
                given += 1
        except FAILURES as error:
            # tf.data keeps the order, so it is a record of the batch that is due.
            for positions in self._positions.skip(given).take(1):
                self._reader.examine(positions.numpy())
            raise LabError(f"cannot go on reading: {reason(error)}") from error
        finally:
            del iterator  # which ends the reading ahead
            self._reader.let_go()


def _batches(
    reader: "_Reader",
    positions: tf.data.Dataset,
    crop: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    mirror: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    image_size: int,
    batch_size: int,
) -> Batches:
    """Read and decode in parallel, and give in order, what is at `positions`: a dataset of those of each batch."""

    def read(positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        raw = tf.numpy_function(reader, [positions], tf.string)
        raw.set_shape(positions.shape)
        return positions, *parsed(raw, reader.classes)

    def decode(position: tf.Tensor, jpeg: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        window = crop(tf.io.extract_jpeg_shape(jpeg), position)
        image = tf.io.decode_and_crop_jpeg(jpeg, window, channels=3)  # no more of it than is needed
        return mirror(tf.image.resize(image, (image_size, image_size)), position), label

    def scale(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return (images - tf.constant(MEAN)) / tf.constant(DEVIATION), labels

    data = positions.map(read, num_parallel_calls=_READS, deterministic=True).unbatch()
    data = data.map(decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return Batches(data.batch(batch_size).map(scale).prefetch(tf.data.AUTOTUNE), positions, reader)


class _Reader:
    """Reads the records at some positions; in several threads at once.

    Parameters
    ----------
    records : Records
        Where they are.
    numbers : callable
        Which of them are at these positions, (n,) int64 of both.
    classes : int
        Labels are from 0 to one less.
    """

    def __init__(self, records: Records, numbers: Callable[[np.ndarray], np.ndarray], classes: int):
        self._records, self._numbers, self.classes = records, numbers, classes
        self._kept: dict[int, FileIO] = {}
        self._lock = threading.Lock()

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        return np.array([self._read(number) for number in self._numbers(positions)], dtype=object)

    def examine(self, positions: np.ndarray) -> None:
        """Raise LabError when one of the records there cannot be used."""
        for number in self._numbers(positions):
            name = self._records.name(number)
            try:
                record = self._read(number)
            except OSError as error:
                raise LabError(f"cannot read {name}: {error.strerror}.") from error
            if wrong := fault(record, _decoded, self.classes):
                raise LabError(f"{name} {wrong}")

    def let_go(self) -> None:
        """Close the files; TensorFlow keeps what a dataset calls, this too, to the end of the process."""
        with self._lock:
            self._kept = {}  # a file that is being read is closed after that

    def _read(self, number: int) -> bytes:
        """Return a record's data, both its checksums verified."""
        length = self._records.length[number]
        with self._opened(self._records.file[number]) as file:
            read = os.pread(file.fileno(), _HEAD + length + _CHECKSUM, self._records.offset[number] - _HEAD)
        if len(read) < _HEAD + length + _CHECKSUM:
            raise LabError(f"{self._records.name(number)} is no longer whole: copy the file anew.")
        data = read[_HEAD:-_CHECKSUM]
        if not (_sound(read[:_LENGTH], read[_LENGTH:_HEAD]) and _sound(data, read[-_CHECKSUM:])):
            raise LabError(f"{self._records.name(number)} does not match its checksum: copy the file anew.")
        return data

    def _opened(self, file: int) -> contextlib.AbstractContextManager[FileIO]:
        """Return an open file: one that stays open or, when those are many already, one for this read alone."""
        with self._lock:
            if file not in self._kept and len(self._kept) < _OPEN:
                self._kept[file] = FileIO(self._records.files[file])
            kept = self._kept.get(file)
        return contextlib.nullcontext(kept) if kept else FileIO(self._records.files[file])


def _decoded(jpeg: tf.Tensor) -> tf.Tensor:
    """Decode all of a JPEG as the batches' parts of it are decoded."""
    height, width, _ = tf.io.extract_jpeg_shape(jpeg)
    return tf.io.decode_and_crop_jpeg(jpeg, (0, 0, height, width), channels=3)


def _numbers(count: int, seed: int, positions: np.ndarray) -> np.ndarray:
    """Return the numbers of the records at these positions of the stream."""
    epochs, places = np.divmod(positions, count)
    return np.array([_order(count, seed, epoch)[place] for epoch, place in zip(epochs, places, strict=True)])


@functools.lru_cache(maxsize=2)  # a batch may straddle two epochs
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the numbers of the records in an epoch's order, (count,) int64."""
    return np.random.default_rng((seed, epoch)).permutation(count)
