"""Read images in the layout of ImageNet's TFRecords, and split them over ranks.

A set consists of files `train-00000-of-01024` or `validation-00000-of-00128`. A record is a `tf.train.Example` with
`image/encoded`, a JPEG, and `image/class/label`, from 1 (tensorflow/models, research/inception/inception/data,
build_imagenet_data.py).

Ranks split images, not files. An epoch is one shuffle of all images, the same on every rank, and the epochs form one
endless stream. Global batch g is the g-th piece of the stream, and rank r has the r-th part of that. So each image
comes exactly once per epoch, whatever the batch size, and the global batches of 1 rank × 64 images equal those of
2 × 32.
"""

import functools
import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import tensorflow as tf

from labkit.system.errors import LabError, reason
from labkit.system.files import open_regular

LABELS = 2**31  # the number of labels in int32

_FIELDS = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}
_FAILURES = tf.errors.OpError, UnicodeDecodeError  # errors of damaged files; the latter: TensorFlow quotes a record
# A TFRecord is its length (uint64, little-endian), a checksum of that (uint32), the data, and a checksum of these
# (https://www.tensorflow.org/tutorials/load_data/tfrecord).
_LENGTH_BYTES, _CHECKSUM_BYTES = 8, 4
_HEAD_BYTES = _LENGTH_BYTES + _CHECKSUM_BYTES
_FILE_NAME = re.compile(r"(?P<kind>.+)-(?P<number>\d{5})-of-(?P<files>\d{5})")
_MAX_OPEN_FILES = 256  # open files per set; a process may have 1,024 by default
_PARALLEL_READS = 4  # batches read concurrently: reading waits for a disk or a file server, not for a core

Kind = Literal["train", "validation"]
Batch = tuple[tf.Tensor, tf.Tensor]  # images and labels
# A function from a JPEG and the image's position in the stream, both scalars, to the image.
Decode = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True, eq=False)
class Records:
    """The locations of a set's records.

    Attributes
    ----------
    files : tuple of Path
    file : (n,) int64, the record's file, as an index into `files`; ascending
    offset : (n,) int64, where its data begin in the file, in bytes
    length : (n,) int64, of its data, in bytes
    """

    files: tuple[Path, ...]
    file: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.file)

    def name(self, number: int) -> str:
        """Return a record's file and its number in it, counted from 0."""
        file = self.file[number]
        return f"{self.files[file]}, record {number - np.searchsorted(self.file, file)}"


def index(
    folder: Path,
    kind: Kind,
    rank: int = 0,
    ranks: int = 1,
    allgather: Callable[[Any], list] = lambda mine: [mine],
) -> Records:
    """Find all records of a set; each rank scans its share of the files, by the records' lengths only.

    Parameters
    ----------
    folder : Path
        The folder of the files, the same for every rank.
    kind : {"train", "validation"}
        The set.
    rank, ranks : int
        This process's rank, and the number of ranks.
    allgather : callable
        The function that returns the list of every rank's object, as `hvd.allgather_object` does.

    Raises
    ------
    LabError
        On all ranks, if on any of them there is no such folder or set, a file is missing or incomplete, or no file has
        a record.
    """
    files: tuple[Path, ...] = ()
    mine: list[np.ndarray] = []
    fault = ""
    try:
        files = _files(Path(folder), kind)
        with ThreadPoolExecutor() as pool:  # threads, which wait for the disk, not for a core
            mine = list(pool.map(_scan, files[rank::ranks]))
    except LabError as error:
        fault = str(error)
    gathered = allgather((len(files), mine, fault))  # the fault too, or the other ranks would wait forever
    for _, _, fault in gathered:
        if fault:
            raise LabError(fault)
    if len({count for count, _, _ in gathered}) > 1:
        raise LabError(
            f"{folder} has different {kind} files on different nodes: name a folder that is the same for all ranks."
        )
    places = [gathered[number % ranks][1][number // ranks] for number in range(len(files))]
    offset, length = np.concatenate(places, axis=1)
    if not len(offset):
        raise LabError(f"no {kind} file in {folder} has a record: copy them again.")
    return Records(files, np.repeat(np.arange(len(files)), [part.shape[1] for part in places]), offset, length)


def _files(folder: Path, kind: str) -> tuple[Path, ...]:
    """Return the set's files in order."""
    if not folder.is_dir():
        raise LabError(
            f"{platform.node()} has no folder {folder}: name the one with the TFRecords, shared by all nodes."
        )
    named = {path: _FILE_NAME.fullmatch(path.name) for path in sorted(folder.iterdir())}
    matches = {path: match for path, match in named.items() if match and match["kind"] == kind}
    sizes = {int(match["files"]) for match in matches.values()}
    if not matches:
        raise LabError(
            f"{folder} has no file named like {kind}-00000-of-00008: ImageNet's TFRecords have that layout, and "
            "./lab data tfrecords writes a small set in it."
        )
    if len(sizes) > 1:
        counts = " and ".join(map(str, sorted(sizes)))
        raise LabError(f"{folder} holds more than one {kind} set, of {counts} files: keep each in its own folder.")
    missing = sorted(set(range(*sizes)) - {int(match["number"]) for match in matches.values()})
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise LabError(f"{folder} lacks {kind}-{missing[0]:05}-of-{max(sizes):05}{more}: copy the whole set again.")
    return tuple(matches)


def _scan(path: Path) -> np.ndarray:
    """Return the offsets and lengths of a file's records, (2, n) int64; lengths are verified, data are not read."""
    records: list[tuple[int, int]] = []
    offset = _HEAD_BYTES
    try:
        with open_regular(path, math.inf) as file:
            size = os.fstat(file.fileno()).st_size
            while offset - _HEAD_BYTES < size:
                head = os.pread(file.fileno(), _HEAD_BYTES, offset - _HEAD_BYTES)
                length = int.from_bytes(head[:_LENGTH_BYTES], "little")
                if len(head) == _HEAD_BYTES and not _matches(head[:_LENGTH_BYTES], head[_LENGTH_BYTES:]):
                    raise LabError(
                        f"{path}, record {len(records)} is damaged, or this is not a TFRecord file: the length does "
                        "not match its checksum. Copy the file again."
                    )
                if len(head) < _HEAD_BYTES or offset + length + _CHECKSUM_BYTES > size:
                    raise LabError(
                        f"{path} is not a TFRecord file, or incomplete: record {len(records)} would end after it. "
                        "Copy it again."
                    )
                records.append((offset, length))
                offset += length + _CHECKSUM_BYTES + _HEAD_BYTES
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}.") from error
    return np.array(records, dtype=np.int64).reshape(-1, 2).T


def _matches(data: bytes, checksum: bytes) -> bool:
    """Return whether data have this checksum: CRC-32C, rotated, plus a constant, as it is data itself."""
    crc = google_crc32c.value(data)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32  # tensorflow/core/lib/hash/crc32c.h
    return masked == int.from_bytes(checksum, "little")


# --- Batches ----------------------------------------------------------------------------------------------------------


def shuffled_batches(
    records: Records,
    decode: Decode,
    batch_size: int,
    *,
    rank: int = 0,
    ranks: int = 1,
    seed: int = 0,
    start: int = 0,
    classes: int = LABELS,
) -> "Batches":
    """Return a rank's endless batches: its part of global batch `start`, of the next one, and so on.

    An image's position in the stream is the same for any number of ranks and any `start`; random choices of `decode`
    should depend on that position only.

    Parameters
    ----------
    records : Records
        The whole set.
    decode : callable
        The function from a JPEG and its position in the stream to the image.
    batch_size : int
        Images in a batch of one rank; a global batch is `ranks` times as many.
    rank, ranks : int
        This process's rank, and the number of ranks.
    seed : int
        The seed of the order, the same on every rank.
    start : int
        The first global batch: the number of those already read.
    classes : int
        Labels must be from 0 to `classes` - 1.
    """

    def positions(batch: tf.Tensor) -> tf.Tensor:
        return (batch * ranks + rank) * batch_size + tf.range(batch_size, dtype=tf.int64)

    reader = _Reader(records, functools.partial(_numbers, len(records), seed), classes)
    return Batches(reader, tf.data.Dataset.counter(start).map(positions), decode, batch_size)


def ordered_batches(
    records: Records, decode: Decode, batch_size: int, *, rank: int = 0, ranks: int = 1, classes: int = LABELS
) -> "Batches":
    """Return a rank's share of a set, each image once; the last batch has the remainder.

    Together, the shares are the set; they differ by one image at most. The parameters are those of `shuffled_batches`.
    """
    positions = tf.data.Dataset.range(rank, len(records), ranks).batch(batch_size)
    return Batches(_Reader(records, lambda positions: positions, classes), positions, decode, batch_size)


class Batches:
    """A rank's batches: iterate over it for pairs of images and labels, (n,) int32.

    A record that cannot be read, is damaged, or has no JPEG or no known label, raises a LabError that names it. This is
    not a `tf.data.Dataset` because its errors do not name the record.
    """

    def __init__(self, reader: "_Reader", positions: tf.data.Dataset, decode: Decode, batch_size: int):
        self._reader, self._positions, self._decode = reader, positions, decode

        def read(positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            raw = tf.numpy_function(reader, [positions], tf.string)
            raw.set_shape(positions.shape)
            return positions, *_parse(raw, reader.classes)

        data = positions.map(read, num_parallel_calls=_PARALLEL_READS, deterministic=True).unbatch()
        data = data.map(
            lambda position, jpeg, label: (decode(jpeg, position), label),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        self._data = data.batch(batch_size).prefetch(tf.data.AUTOTUNE)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from the first."""
        count, iterator = 0, iter(self._data)
        try:
            for batch in iterator:
                yield batch
                count += 1
        except _FAILURES as error:
            # tf.data keeps the order, so the bad record is in the next batch.
            for positions in self._positions.skip(count).take(1):
                self._reader.examine(positions.numpy(), self._decode)
            raise LabError(f"cannot continue reading: {reason(error)}") from error
        finally:
            del iterator  # which stops prefetching
            self._reader.close()


def _parse(records: tf.Tensor, classes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return JPEGs, (n,) string, and labels, (n,) int32 from 0 to `classes` - 1, of records, (n,) string."""
    example = tf.io.parse_example(records, _FIELDS)
    labels = example["image/class/label"]
    # The labels are checked before they become int32: 2**40 + 3 would become 3.
    labels_in_range = tf.debugging.Assert(
        tf.reduce_all((labels >= 0) & (labels < classes)), ["label out of range", labels]
    )
    with tf.control_dependencies([labels_in_range]):
        return tf.identity(example["image/encoded"]), tf.cast(labels, tf.int32)


def _problem(record: bytes, decode: Decode, position: int, classes: int) -> str:
    """Return the fault of a record, and the remedy; an empty string if there is none."""
    try:
        example = tf.io.parse_single_example(record, _FIELDS)
    except _FAILURES:
        return "has no image/encoded or no image/class/label: write the set again, in ImageNet's layout."
    label = int(example["image/class/label"])
    if not 0 <= label < classes:
        remedy = f"but the network's labels are 0 to {classes - 1}: name the --model for these images, or other images."
        return f"has label {label}, {remedy if classes < LABELS else 'which is not a label: write the set again.'}"
    try:
        decode(example["image/encoded"], tf.constant(position, tf.int64))
    except tf.errors.OpError as error:
        return f"has no JPEG, or only part of one ({reason(error).rstrip('.')}): write the set again."
    return ""


class _Reader:
    """Thread-safe reader of the records at given positions.

    Parameters
    ----------
    records : Records
        The records' locations.
    numbers : callable
        The function from positions in the stream to record numbers, both (n,) int64.
    classes : int
        Labels must be from 0 to `classes` - 1.
    """

    def __init__(self, records: Records, numbers: Callable[[np.ndarray], np.ndarray], classes: int):
        self._records, self._numbers, self.classes = records, numbers, classes
        self._file = functools.lru_cache(_MAX_OPEN_FILES)(FileIO)  # an evicted file is closed after its reads

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        return np.array([self._read(number) for number in self._numbers(positions)], dtype=object)

    def examine(self, positions: np.ndarray, decode: Decode) -> None:
        """Raise LabError if a record at one of these positions cannot be used."""
        for position, number in zip(positions, self._numbers(positions), strict=True):
            name = self._records.name(number)
            try:
                record = self._read(number)
            except OSError as error:
                raise LabError(f"cannot read {name}: {error.strerror}.") from error
            if problem := _problem(record, decode, position, self.classes):
                raise LabError(f"{name} {problem}")

    def close(self) -> None:
        """Close the files; the reader itself lives until the process ends, as a TensorFlow dataset calls it."""
        self._file.cache_clear()

    def _read(self, number: int) -> bytes:
        """Return a record's data, with both checksums verified."""
        length = self._records.length[number]
        file = self._file(self._records.files[self._records.file[number]])
        read = os.pread(
            file.fileno(), _HEAD_BYTES + length + _CHECKSUM_BYTES, self._records.offset[number] - _HEAD_BYTES
        )
        if len(read) < _HEAD_BYTES + length + _CHECKSUM_BYTES:
            raise LabError(f"{self._records.name(number)} is truncated: copy the file again.")
        data = read[_HEAD_BYTES:-_CHECKSUM_BYTES]
        if not (
            _matches(read[:_LENGTH_BYTES], read[_LENGTH_BYTES:_HEAD_BYTES]) and _matches(data, read[-_CHECKSUM_BYTES:])
        ):
            raise LabError(f"{self._records.name(number)} does not match its checksum: copy the file again.")
        return data


def _numbers(count: int, seed: int, positions: np.ndarray) -> np.ndarray:
    """Return the numbers of the records at these positions of the stream."""
    epochs, places = np.divmod(positions, count)
    return np.array([_order(count, seed, epoch)[place] for epoch, place in zip(epochs, places, strict=True)])


@functools.lru_cache(maxsize=2)  # a batch may straddle two epochs
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the numbers of the records in an epoch's order, (count,) int64."""
    return np.random.default_rng((seed, epoch)).permutation(count)
