"""Synthetic images have ImageNet's layout, are reproducible, and are neither too easy nor half written."""

import io
import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from sklearn.linear_model import LogisticRegression

from labkit.data import synthetic
from labkit.system.errors import LabError

SMALL = {"train": 43, "validation": 20, "size": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic") / "set"
    assert synthetic.write(folder, **SMALL)
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def examples(folder, kind):
    """Return the features of a set's records, as TensorFlow's own reader reads them."""
    records = []
    for record in tf.data.TFRecordDataset(sorted(map(str, folder.glob(f"{kind}-*")))):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        records.append(
            {name: (value.int64_list.value or value.bytes_list.value)[0] for name, value in features.items()}
        )
    return records


# --- The files --------------------------------------------------------------------------------------------------------


def test_the_files_have_the_standard_names(folder):
    train = [f"train-{number:05}-of-00008" for number in range(8)]
    validation = [f"validation-{number:05}-of-00004" for number in range(4)]
    assert sorted(contents(folder)) == train + validation


@pytest.mark.parametrize(("kind", "count"), [("train", 43), ("validation", 20)])
def test_every_record_has_the_standard_fields(folder, kind, count):
    records = examples(folder, kind)
    assert len(records) == count
    assert len({record["image/filename"] for record in records}) == count
    for record in records:
        assert (record["image/height"], record["image/width"], record["image/channels"]) == (32, 32, 3)
        assert (record["image/colorspace"], record["image/format"], record["image/class/synset"]) == (
            b"RGB",
            b"JPEG",
            b"",
        )
        assert record["image/class/text"].decode() == synthetic.CLASSES[record["image/class/label"] - 1]
        picture = Image.open(io.BytesIO(record["image/encoded"]))
        assert (picture.format, picture.mode, picture.size) == ("JPEG", "RGB", (32, 32))


def test_classes_are_balanced_from_1_to_10_and_shuffled(folder):
    labels = [record["image/class/label"] for record in examples(folder, "train")]
    assert sorted(Counter(labels).items()) == [(label, 5 if label <= 3 else 4) for label in range(1, 11)]
    assert len(set(labels[:10])) < 10  # unshuffled, the first ten would be of ten classes


def test_the_same_arguments_give_the_same_bytes_and_another_seed_different_ones(folder, tmp_path):
    synthetic.write(tmp_path / "same", **SMALL)
    synthetic.write(tmp_path / "other", **SMALL, seed=1)
    assert contents(tmp_path / "same") == contents(folder)
    assert not set(contents(tmp_path / "other").values()) & set(contents(folder).values())


def test_a_larger_set_begins_with_the_smaller_one_and_the_parts_are_disjoint(folder, tmp_path):
    synthetic.write(tmp_path / "larger", **SMALL | {"train": 60})
    smaller, larger = (
        {record["image/filename"]: record["image/encoded"] for record in examples(path, "train")}
        for path in (folder, tmp_path / "larger")
    )
    assert smaller.items() <= larger.items()
    assert not set(larger.values()) & {record["image/encoded"] for record in examples(folder, "validation")}


# --- The pictures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 100])
def test_every_class_can_be_drawn_in_every_size(size):
    for label in range(1, 11):
        picture = synthetic.image(label, size, np.random.default_rng(0))
        assert (picture.mode, picture.size) == ("RGB", (size, size))
        assert np.asarray(picture).std() > 15


def test_pixels_alone_do_not_reveal_the_class(folder):
    """A linear model on pixels does not learn the classes, so a network has to learn shapes."""

    def part(which, count):
        labels = np.arange(count) % 10
        pictures = [synthetic.image(label + 1, 32, np.random.default_rng((which, n))) for n, label in enumerate(labels)]
        return np.array(pictures, dtype=np.float32).reshape(count, -1) / 127.5 - 1, labels

    model = LogisticRegression(C=1e-3, max_iter=200).fit(*part(0, 500))
    assert model.score(*part(1, 200)) < 0.6


# --- Complete or not at all -------------------------------------------------------------------------------------------


def test_an_identical_set_is_left_untouched(folder):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert not synthetic.write(folder, **SMALL)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def spoil(folder):
    (folder / "train-00003-of-00008").write_bytes(b"damaged")


@pytest.mark.parametrize(
    "prepare",
    [
        lambda folder: synthetic.write(folder, **SMALL, seed=1),
        lambda folder: synthetic.write(folder, **SMALL, shards=(4, 4)),
        lambda folder: (synthetic.write(folder, **SMALL), spoil(folder)),
        lambda folder: (synthetic.write(folder, **SMALL), (folder / "mine.txt").touch()),
    ],
    ids=["seed", "shards", "damaged", "one more file"],
)
def test_existing_files_are_never_overwritten(tmp_path, prepare):
    folder = tmp_path / "set"
    prepare(folder)
    before = contents(folder)
    with pytest.raises(LabError, match=r"set exists and does not contain exactly this set: name another folder, or"):
        synthetic.write(folder, **SMALL)
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_file_above_the_folder_is_reported(tmp_path):
    (tmp_path / "set").write_text("mine")
    with pytest.raises(LabError, match=r"cannot write .*below: File exists"):
        synthetic.write(tmp_path / "set" / "below", **SMALL)


def test_an_empty_folder_and_missing_parents_are_accepted(tmp_path):
    (tmp_path / "empty" / "set").mkdir(parents=True)
    for folder in (tmp_path / "empty" / "set", tmp_path / "new" / "set"):
        assert synthetic.write(folder, train=8, validation=4, size=16)
        assert len(contents(folder)) == 12
        (folder.parent / "beside").mkdir()
        assert (
            folder.stat().st_mode == (folder.parent / "beside").stat().st_mode
        )  # others may read it, if the umask says so


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (KeyboardInterrupt("Ctrl-C"), "Ctrl-C"),
        (tf.errors.ResourceExhaustedError(None, None, "no space left"), r"cannot write .*set: no space left\. Name"),
    ],
    ids=["Ctrl-C", "a full disk"],
)
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, stop, message):
    calls = itertools.count()
    draw = synthetic.image

    def image(*args):
        if next(calls) == 30:
            raise stop
        return draw(*args)

    monkeypatch.setattr(synthetic, "image", image)
    with pytest.raises((KeyboardInterrupt, LabError), match=message):
        synthetic.write(tmp_path / "set", **SMALL)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 7}, "train images: 7 is not possible; give an integer from 8 to "),
        ({"validation": 0}, "validation images: 0 is not possible"),
        ({"size": 8}, "size: 8 is not possible; give an integer from 16 to 1,024"),
        ({"seed": -1}, "seed: -1 is not possible"),
        ({"train": 10.5}, "train images: 10.5 is not possible"),
    ],
)
def test_impossible_numbers_are_reported_before_anything_is_written(tmp_path, arguments, message):
    with pytest.raises(LabError, match=message):
        synthetic.write(tmp_path / "set", **SMALL | arguments)
    assert not list(tmp_path.iterdir())
