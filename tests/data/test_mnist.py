"""MNIST's files: read when they are intact, refused by name when they are damaged."""

import gzip
import hashlib
import importlib.util
import io
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from mnist_files import (
    DAMAGE,
    IDX,
    NPZ,
    fingerprint,
    idx_bytes,
    idx_files,
    mnist_arrays,
    npz_bytes,
    one_line,
    put,
    register,
)

from labkit.data.digits import load_digits
from labkit.data.download import fetch
from labkit.data.mnist import REGISTRY, status
from labkit.system.errors import LabError

# --- MNIST from files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [(NPZ,), IDX], ids=["npz", "idx"])
def test_reads_every_mnist_digit_once(folder, registry, truth, names):
    put(folder, truth, *names)
    given = load_digits(folder=folder, registry=registry)
    arrays = mnist_arrays()
    for part in ("train", "test"):
        images, labels = getattr(given, f"x_{part}"), getattr(given, f"y_{part}")
        assert (images.dtype, labels.dtype) == (np.float32, np.int64)
        assert images.shape == (len(labels), 28, 28, 1)
        expected = {
            (image.tobytes(), label)
            for image, label in zip(arrays[f"x_{part}"], arrays[f"y_{part}"].tolist(), strict=True)
        }
        back = np.rint(images[..., 0] * 255).astype(np.uint8)
        assert {(i.tobytes(), y) for i, y in zip(back, labels.tolist(), strict=True)} == expected
        assert len(labels) == len(expected)
    assert given.x_train.max() == 1.0
    assert given.x_train.min() == 0.0
    assert given.source.startswith("MNIST: 60 training and 30 test digits")
    assert names[0] in given.source


def test_both_forms_give_the_same_bytes(folder, registry, truth, tmp_path):
    put(folder, truth, NPZ)
    (tmp_path / "other").mkdir()
    put(tmp_path / "other", truth, *IDX)
    given = [load_digits(40, 20, folder=where, registry=registry) for where in (folder, tmp_path / "other")]
    assert fingerprint(given[0]) == fingerprint(given[1])


def test_order_of_places(folder, keras, registry, truth):
    put(keras, truth, NPZ)
    assert "keras" in load_digits(folder=folder, registry=registry).source
    put(folder, truth, *IDX)
    assert IDX[0] in load_digits(folder=folder, registry=registry).source
    put(folder, truth, NPZ)
    source = load_digits(folder=folder, registry=registry).source
    assert NPZ in source
    assert "keras" not in source


def test_subset_is_balanced_and_deterministic(folder, tmp_path):
    arrays = mnist_arrays(n_train=100)
    arrays["y_train"] = np.repeat([0, 1, 2], [80, 15, 5]).astype(np.uint8)
    contents = {NPZ: npz_bytes(arrays), **idx_files(arrays)}
    put(folder, contents, NPZ)
    place = {"folder": folder, "registry": register(tmp_path / "registry.toml", contents)}
    given = load_digits(30, 10, **place)
    assert np.bincount(given.y_train).tolist() == [13, 12, 5] or np.bincount(given.y_train).tolist() == [12, 13, 5]
    assert len(np.unique(given.x_train, axis=0)) == 30
    assert 2 in given.y_train[15:], "in random order: the scarce class must not all be in the first rank's share"
    assert fingerprint(given) == fingerprint(load_digits(30, 10, **place))
    assert fingerprint(given) != fingerprint(load_digits(30, 10, seed=1, **place))
    assert np.array_equal(given.x_test, load_digits(50, 10, **place).x_test)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"n_train": 0}, "n_train=0"),
        ({"n_train": -3}, "n_train=-3"),
        ({"n_train": 61}, "1 to 60"),
        ({"n_test": 31}, "1 to 30"),
        ({"n_test": 2.5}, "n_test=2.5"),
        ({"n_test": "all"}, "n_test='all'"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_impossible_numbers_are_one_line(folder, registry, truth, arguments, named):
    put(folder, truth, NPZ)
    with pytest.raises(LabError) as error:
        load_digits(folder=folder, registry=registry, **arguments)
    assert named in one_line(error)


def test_lab_data_names_the_folder(folder, registry, truth, tmp_path, monkeypatch):
    put(folder, truth, NPZ)
    monkeypatch.setenv("LAB_DATA", str(folder))
    assert load_digits(registry=registry).source.startswith("MNIST")
    assert status(registry=registry)[0].path == folder / NPZ
    assert "intact" in fetch(registry=registry, show=False)[0]
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "nowhere"))
    for question in (load_digits, status, fetch):
        with pytest.raises(LabError, match=r"nowhere.*LAB_DATA"):
            question(registry=registry)


# --- Damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [NPZ, *IDX])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_refused_by_name(folder, registry, truth, name, damage):
    put(folder, truth, *([NPZ] if name == NPZ else IDX))
    (folder / name).write_bytes(damage(truth[name]))
    with pytest.raises(LabError) as error:
        load_digits(folder=folder, registry=registry)
    said = one_line(error)
    assert name in said
    assert "./lab data fetch" in said
    if len(damage(truth[name])) != len(truth[name]):
        assert f"{len(damage(truth[name])):,} bytes instead of {len(truth[name]):,}" in said
    else:
        assert f"SHA-256 starts with {hashlib.sha256(damage(truth[name])).hexdigest()[:12]} instead of" in said
    state = next(file for file in status(folder, registry) if file.name == name)
    assert (state.state, state.path) == ("damaged", folder / name)
    assert state.detail in said
    assert "./lab data fetch" in state.fix


def changed(**arrays: np.ndarray) -> dict[str, np.ndarray]:
    return mnist_arrays() | arrays


MISSHAPEN_NPZ = {
    "27 columns": npz_bytes(changed(x_train=np.zeros((60, 28, 27), np.uint8))),
    "flat": npz_bytes(changed(x_test=np.zeros((30, 784), np.uint8))),
    "floats": npz_bytes(changed(x_train=np.zeros((60, 28, 28)))),
    "no digit": npz_bytes(changed(x_train=np.zeros((0, 28, 28), np.uint8), y_train=np.zeros(0, np.uint8))),
    "a label of 10": npz_bytes(changed(y_test=np.full(30, 10, np.uint8))),
    "a label too few": npz_bytes(changed(y_train=np.zeros(59, np.uint8))),
    "an array missing": npz_bytes({key: array for key, array in mnist_arrays().items() if key != "y_test"}),
    "pickled": npz_bytes(changed(y_test=np.array([{}] * 30))),
    "not a zip": b"PK is all that is right here",
    "one bare array": (lambda file: (np.save(file, np.zeros(3)), file.getvalue())[1])(io.BytesIO()),
    "empty": b"",
}


@pytest.mark.parametrize("content", MISSHAPEN_NPZ.values(), ids=MISSHAPEN_NPZ)
def test_misshapen_npz_is_refused_though_its_checksum_is_registered(folder, tmp_path, truth, content):
    contents = truth | {NPZ: content}
    put(folder, contents, NPZ)
    with pytest.raises(LabError, match=r"mnist\.npz is damaged: .*\./lab data fetch"):
        load_digits(folder=folder, registry=register(tmp_path / "registry.toml", contents))


IMAGES, LABELS = mnist_arrays()["x_train"], mnist_arrays()["y_train"]
MISSHAPEN_IDX = {
    "labels' magic": (IDX[0], idx_bytes(IMAGES, magic=bytes([0, 0, 8, 1])), "00000801"),
    "floats' magic": (IDX[0], idx_bytes(IMAGES, magic=bytes([0, 0, 13, 3])), "00000d03"),
    "images as labels": (IDX[1], idx_bytes(IMAGES), "00000803"),
    "trailing bytes": (IDX[0], idx_bytes(IMAGES, tail=b"x"), "47,040 values and it holds 47,041"),
    "too short": (IDX[1], idx_bytes(LABELS, shape=(61,)), "61 values and it holds 60"),
    "header cut": (IDX[0], gzip.compress(bytes([0, 0, 8, 3, 0, 0])), "IDX"),
    "other dimensions": (IDX[0], idx_bytes(IMAGES, shape=(60, 14, 56)), "(60, 14, 56)"),
    "a label too few": (IDX[1], idx_bytes(LABELS[:-1]), "labels"),
    "not gzip": (IDX[1], b"not gzip", "gzip"),
    "gzip cut": (IDX[0], idx_bytes(IMAGES)[:-9], "gzip"),
}


@pytest.mark.parametrize(("name", "content", "said"), MISSHAPEN_IDX.values(), ids=MISSHAPEN_IDX)
def test_misshapen_idx_is_refused_though_its_checksum_is_registered(folder, tmp_path, truth, name, content, said):
    contents = truth | {name: content}
    put(folder, contents, *IDX)
    with pytest.raises(LabError) as error:
        load_digits(folder=folder, registry=register(tmp_path / "registry.toml", contents))
    assert said in one_line(error)
    assert "-ubyte.gz is damaged" in one_line(error)


def test_damaged_npz_is_not_skipped_for_intact_idx_files_or_cache(folder, keras, registry, truth):
    put(folder, truth, *IDX)
    put(keras, truth, NPZ)
    (folder / NPZ).write_bytes(b"damaged")
    with pytest.raises(LabError, match=r"data/mnist\.npz is damaged"):
        load_digits(folder=folder, registry=registry)


def test_unreadable_file_is_refused_by_name(folder, registry):
    (folder / NPZ).mkdir()
    with pytest.raises(LabError, match=r"mnist\.npz is damaged"):
        load_digits(folder=folder, registry=registry)


def test_damaged_file_of_keras_is_refused_and_left_alone(folder, keras, registry, truth):
    (keras / NPZ).write_bytes(truth[NPZ][:-1])
    with pytest.raises(LabError) as error:
        load_digits(folder=folder, registry=registry)
    said = one_line(error)
    assert str(keras / NPZ) in said
    assert "./lab data fetch" in said
    assert [file.path for file in status(folder, registry) if file.state == "damaged"] == [keras / NPZ]
    put(folder, truth, NPZ)  # what fetch does
    assert load_digits(folder=folder, registry=registry).source.startswith("MNIST")
    assert all(file.state != "damaged" for file in status(folder, registry))
    assert (keras / NPZ).read_bytes() == truth[NPZ][:-1]


def test_incomplete_idx_files_are_named_in_the_source(folder, registry, truth):
    put(folder, truth, *IDX[:3])
    source = load_digits(100, 20, folder=folder, registry=registry).source
    assert "scikit-learn" in source
    assert f"lacks {IDX[3]}" in source
    (folder / IDX[1]).write_bytes(b"damaged")
    with pytest.raises(LabError, match=IDX[1]):
        load_digits(100, 20, folder=folder, registry=registry)


def test_status_of_what_is_missing(folder, registry, truth):
    assert {(file.name, file.state) for file in status(folder, registry)} == {(n, "missing") for n in (NPZ, *IDX)}
    assert all("./lab data fetch" in file.fix for file in status(folder, registry))
    put(folder, truth, NPZ)
    states = {file.name: file for file in status(folder, registry)}
    assert states[NPZ].state == "intact"
    assert all((states[name].state, states[name].fix) == ("missing", "") for name in IDX)


# --- The registry of the checkout -------------------------------------------------------------------------------------


def test_registry_is_complete():
    forms = tomllib.loads(REGISTRY.read_text())["mnist"]
    assert [form["form"] for form in forms] == ["npz", "idx"]
    assert tuple(file["name"] for form in forms for file in form["files"]) == (NPZ, *IDX)
    for form in forms:
        assert form["licence"]
        assert form["provenance"]
        assert form["mirrors"]
        assert all(re.fullmatch(r"https://.+/", mirror) for mirror in form["mirrors"])
        assert all(re.fullmatch("[0-9a-f]{64}", file["sha256"]) and file["size"] > 0 for file in form["files"])


def test_registered_npz_is_the_one_that_the_installed_keras_expects():
    keras = Path(importlib.util.find_spec("keras").origin).parent
    [form, _] = tomllib.loads(REGISTRY.read_text())["mnist"]
    assert form["files"][0]["sha256"] in (keras / "src/datasets/mnist.py").read_text()
