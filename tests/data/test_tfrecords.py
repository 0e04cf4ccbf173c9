"""Every rank gets its part of each global batch, each image once, also after a restart; damaged records are named."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from tfrecord_sets import example, jpeg, take, together, write_set

from labkit.data import tfrecords
from labkit.system.errors import LabError
from labkit.train import records

IMAGES = 23


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a set of images with random pixels, labelled with their numbers."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (20 + number, 24, 3)) for number in range(IMAGES)]
    examples = [example(jpeg(picture), number) for number, picture in enumerate(pictures)]
    folder = write_set(tmp_path_factory.mktemp("records"), examples)
    return write_set(folder, examples, "validation", files=3)


def global_batches(n, index, batch_size, ranks, **options):
    """Return n global batches, each the concatenated batches of all ranks."""
    of_ranks = [take(n, records.training(index, 16, batch_size, rank, ranks, **options)) for rank in range(ranks)]
    return [tuple(np.concatenate(parts) for parts in zip(*batch, strict=True)) for batch in zip(*of_ranks, strict=True)]


# --- Finding them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_rank_knows_every_record(folder, ranks):
    alone = tfrecords.index(folder, "train")
    assert len(alone) == IMAGES
    for index in together(ranks, lambda rank, allgather: tfrecords.index(folder, "train", rank, ranks, allgather)):
        assert index.files == alone.files
        for name in ("file", "offset", "length"):
            np.testing.assert_array_equal(getattr(index, name), getattr(alone, name))


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(size):
    def spoil(folder):
        path = folder / "train-00002-of-00004"
        path.write_bytes(path.read_bytes()[:size])

    return spoil


def flip(name, byte):
    """Alter one bit of a file."""

    def spoil(folder):
        data = bytearray((folder / name).read_bytes())
        data[byte] ^= 4
        (folder / name).write_bytes(data)

    return spoil


def empty(folder):
    for path in folder.glob("train-*"):
        path.write_bytes(b"")


SPOILT = {
    "no folder": (shutil.rmtree, "has no folder"),
    "no file": (lambda folder: [path.unlink() for path in folder.glob("train-*")], "no file named like train-00000-of"),
    "one is missing": (remove("train-00003-of-00004"), "lacks train-00003-of-00004: copy"),
    "several are": (remove("train-00000-of-00004", "train-00002-of-00004"), "train-00000-of-00004 and 1 more:"),
    "a damaged length": (
        flip("train-00001-of-00004", 1),
        "train-00001-of-00004, record 0 is damaged, or this is not a TFRecord file",
    ),
    "a text": (
        lambda folder: (folder / "train-00001-of-00004").write_text("no TFRecord file" * 9),
        "record 0 is damaged, or this is not a TFRecord file",
    ),
    "two sets": (lambda folder: (folder / "train-00000-of-00002").touch(), "more than one train set, of 2 and 4 files"),
    "cut in its data": (cut(-3), "train-00002-of-00004 is not a TFRecord file, or incomplete: record 5"),
    "cut in a head": (cut(7), "train-00002-of-00004 is not a TFRecord file, or incomplete: record 0"),
    "no record": (empty, "has a record"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILT.values(), ids=SPOILT.keys())
@pytest.mark.parametrize("ranks", [1, 2])
def test_problems_are_reported_on_every_rank(folder, tmp_path, ranks, spoil, message):
    copy = shutil.copytree(folder, tmp_path / "copy")
    spoil(copy)
    for error in together(ranks, lambda rank, allgather: tfrecords.index(copy, "train", rank, ranks, allgather)):
        assert isinstance(error, LabError)
        with pytest.raises(LabError, match=message):
            raise error
        assert "\n" not in str(error)


def test_different_files_on_nodes_are_reported(folder, tmp_path):
    other = write_set(tmp_path, [example(b"", 1)], files=1)
    folders = [folder, other]
    for error in together(2, lambda rank, allgather: tfrecords.index(folders[rank], "train", rank, 2, allgather)):
        assert "on different nodes" in str(error)


# --- Training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [4, 30])
def test_each_image_comes_exactly_once_per_epoch(folder, ranks, batch_size):
    index = tfrecords.index(folder, "train")
    epochs = 3
    batches = global_batches(-(-epochs * IMAGES // (batch_size * ranks)), index, batch_size, ranks)
    stream = np.concatenate([labels for _, labels in batches])
    orders = [tuple(stream[IMAGES * epoch : IMAGES * (epoch + 1)]) for epoch in range(epochs)]
    for order in orders:
        assert sorted(order) == list(range(IMAGES))
    assert len(set(orders)) == epochs


def test_global_batches_are_the_same_on_any_number_of_ranks(folder):
    index = tfrecords.index(folder, "train")
    expected = global_batches(5, index, 12, 1)
    for ranks in (2, 3, 4):
        for first, other in zip(expected, global_batches(5, index, 12 // ranks, ranks), strict=True):
            np.testing.assert_array_equal(first[0], other[0])
            np.testing.assert_array_equal(first[1], other[1])


def test_a_resumed_stream_continues_bit_for_bit(folder):
    index = tfrecords.index(folder, "train")
    whole = take(9, records.training(index, 16, 5, rank=1, ranks=2, seed=2**40))
    rest = take(4, records.training(index, 16, 5, rank=1, ranks=2, seed=2**40, start=5))
    for first, other in zip(whole[5:], rest, strict=True):
        np.testing.assert_array_equal(first[0], other[0])
        np.testing.assert_array_equal(first[1], other[1])


# --- Evaluating -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_each_image_is_evaluated_once(folder, ranks):
    index = tfrecords.index(folder, "validation")
    labels = []
    for rank in range(ranks):
        for images, batch_labels in records.evaluation(index, 16, 4, rank, ranks):
            assert images.shape == (len(batch_labels), 16, 16, 3)
            assert images.dtype == tf.float32
            assert batch_labels.dtype == tf.int32
            labels.extend(batch_labels.numpy())
    assert sorted(labels) == list(range(IMAGES))


# --- Reading ----------------------------------------------------------------------------------------------------------


GOOD = example(jpeg(np.full((40, 40, 3), 90)), 1)
PICTURE = jpeg(np.random.default_rng(0).integers(0, 256, (64, 64, 3)))
BAD = {
    "no label": (example(PICTURE, None), "no image/encoded or no image/class/label"),
    "no image": (example(None, 1), "no image/encoded or no image/class/label"),
    "no example": (b"\xff\xfe is none" * 9, "no image/encoded or no image/class/label"),
    "a PNG": (example(jpeg(np.zeros((40, 40, 3)), "PNG"), 1), "no JPEG"),
    "half a JPEG": (example(PICTURE[: len(PICTURE) // 2], 1), "no JPEG, or only part of one"),
    "a label below 0": (example(PICTURE, -5), "label -5, which is not a label"),
    "a label that would wrap": (example(PICTURE, 2**40 + 3), f"label {2**40 + 3}, which is not a label"),
}


@pytest.mark.parametrize(("bad", "message"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("make", [records.training, records.evaluation])
def test_a_bad_record_is_named(tmp_path, make, bad, message):
    index = tfrecords.index(write_set(tmp_path, [GOOD] * 8 + [bad] + [GOOD] * 3, files=2), "train")
    with pytest.raises(LabError, match=f"{tmp_path}/train-00000-of-00002, record 4 has {message}") as raised:
        take(9, make(index, 16, 2))
    assert "\n" not in str(raised.value)
    assert "{{" not in str(raised.value)


@pytest.mark.parametrize("label", [-1, 11, 2**40 + 3])
@pytest.mark.parametrize("make", [records.training, records.evaluation])
def test_labels_below_or_above_the_networks_are_rejected(tmp_path, make, label):
    index = tfrecords.index(write_set(tmp_path, [example(PICTURE, known) for known in (0, 10)] * 4, files=1), "train")
    assert {*np.concatenate([labels for _, labels in take(4, make(index, 16, 2, classes=11))])} == {0, 10}
    index = tfrecords.index(write_set(tmp_path, [GOOD, example(PICTURE, label)], files=1), "train")
    message = (
        f"train-00000-of-00001, record 1 has label {label}, but the network's labels are 0 to 10: name the --model"
    )
    with pytest.raises(LabError, match=message):
        take(1, make(index, 16, 2, classes=11))


@pytest.mark.parametrize("make", [records.training, records.evaluation])
def test_any_altered_bit_of_a_record_is_detected(tmp_path, make):
    """In its length, its data, and both checksums; the index is of the intact file."""
    folder = write_set(tmp_path, [GOOD] * 3, files=1)
    index = tfrecords.index(folder, "train")
    path, (start, length) = index.files[0], (int(index.offset[1]), int(index.length[1]))
    sound = path.read_bytes()
    for byte in (*range(start - 12, start), start, start + length // 2, *range(start + length - 1, start + length + 4)):
        flip(path.name, byte)(folder)
        with pytest.raises(LabError, match="train-00000-of-00001, record 1 does not match its checksum: copy the file"):
            take(1, make(index, 16, 3))
        path.write_bytes(sound)
    take(1, make(index, 16, 3))


def test_missing_and_truncated_files_are_reported(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    index = tfrecords.index(copy, "train")
    last = index.files[-1]
    last.write_bytes(last.read_bytes()[:-20])
    with pytest.raises(LabError, match="train-00003-of-00004, record 4 is truncated"):
        take(9, records.training(index, 16, 5))
    last.unlink()
    with pytest.raises(LabError, match=r"cannot read .*train-00003-of-00004, record \d: No such file"):
        take(9, records.training(index, 16, 5))
