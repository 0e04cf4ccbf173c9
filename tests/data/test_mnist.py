"""MNIST's file: read if intact, rejected by name if damaged."""

import hashlib
import importlib.util
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from lab_error import error_of
from mnist_files import DAMAGE, NPZ, fingerprint, mnist_arrays, npz_bytes, put, register

from labkit.data.digits import load_digits
from labkit.data.mnist import REGISTRY, fetch, read_registry, status
from labkit.system.errors import LabError

# --- MNIST from files -------------------------------------------------------------------------------------------------


def test_reads_every_mnist_digit_once(folder, registry, truth):
    put(folder, truth)
    digits = load_digits(folder=folder, registry=registry)
    arrays = mnist_arrays()
    for part in ("train", "test"):
        images, labels = getattr(digits, f"x_{part}"), getattr(digits, f"y_{part}")
        assert (images.dtype, labels.dtype) == (np.float32, np.int64)
        assert images.shape == (len(labels), 28, 28, 1)
        expected = {
            (image.tobytes(), label)
            for image, label in zip(arrays[f"x_{part}"], arrays[f"y_{part}"].tolist(), strict=True)
        }
        back = np.rint(images[..., 0] * 255).astype(np.uint8)
        assert {(i.tobytes(), y) for i, y in zip(back, labels.tolist(), strict=True)} == expected
        assert len(labels) == len(expected)
    assert digits.x_train.max() == 1.0
    assert digits.x_train.min() == 0.0
    assert digits.source.startswith("MNIST: 60 training and 30 test digits")
    assert NPZ in digits.source


def test_subset_is_balanced_and_deterministic(folder, tmp_path):
    arrays = mnist_arrays(n_train=100)
    arrays["y_train"] = np.repeat([0, 1, 2], [80, 15, 5]).astype(np.uint8)
    content = npz_bytes(arrays)
    put(folder, content)
    place = {"folder": folder, "registry": register(tmp_path / "registry.toml", content)}
    digits = load_digits(30, 10, **place)
    assert np.bincount(digits.y_train).tolist() == [13, 12, 5] or np.bincount(digits.y_train).tolist() == [12, 13, 5]
    assert len(np.unique(digits.x_train, axis=0)) == 30
    assert 2 in digits.y_train[15:], "in random order: the rare class must not all be in the first rank's share"
    assert fingerprint(digits) == fingerprint(load_digits(30, 10, **place))
    assert np.array_equal(digits.x_test, load_digits(50, 10, **place).x_test)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_train": 0}, "n_train=0"),
        ({"n_train": -3}, "n_train=-3"),
        ({"n_train": 61}, "1 to 60"),
        ({"n_test": 31}, "1 to 30"),
        ({"n_test": 2.5}, "n_test=2.5"),
        ({"n_test": "all"}, "n_test='all'"),
    ],
)
def test_impossible_numbers_give_a_one_line_error(folder, registry, truth, arguments, message):
    put(folder, truth)
    assert message in error_of(load_digits, folder=folder, registry=registry, **arguments)


def test_lab_data_names_the_folder(folder, registry, truth, tmp_path, monkeypatch):
    put(folder, truth)
    monkeypatch.setenv("LAB_DATA", str(folder))
    assert load_digits(registry=registry).source.startswith("MNIST")
    assert status(registry=registry)[0].path == folder / NPZ
    assert "intact" in fetch(registry=registry)
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "nowhere"))
    for function in (load_digits, status, fetch):
        with pytest.raises(LabError, match=r"nowhere.*LAB_DATA"):
            function(registry=registry)


# --- Damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_file_is_refused_by_name(folder, registry, truth, damage):
    put(folder, damage(truth))
    message = error_of(load_digits, folder=folder, registry=registry)
    assert NPZ in message
    assert "./lab data fetch" in message
    assert f"{len(damage(truth)):,} bytes with SHA-256 {hashlib.sha256(damage(truth)).hexdigest()[:12]}" in message
    [state] = status(folder, registry)
    assert (state.state, state.path) == ("damaged", folder / NPZ)
    assert state.detail in message
    assert "./lab data fetch" in state.fix


def test_unreadable_file_is_refused_by_name(folder, registry):
    (folder / NPZ).mkdir()
    assert "mnist.npz is damaged" in error_of(load_digits, folder=folder, registry=registry)


def test_status_of_what_is_missing(folder, registry, truth):
    [missing] = status(folder, registry)
    assert (missing.name, missing.state) == (NPZ, "missing")
    assert "./lab data fetch" in missing.fix
    (folder / "train-images-idx3-ubyte.gz").touch()
    assert status(folder, registry)[0].detail.startswith("train-images-idx3-ubyte.gz can't be read; ")
    put(folder, truth)
    assert [(file.state, file.path) for file in status(folder, registry)] == [("intact", folder / NPZ)]


# --- The registry of the checkout -------------------------------------------------------------------------------------


def test_registry_is_complete():
    table = tomllib.loads(REGISTRY.read_text())["mnist"]
    assert table["name"] == NPZ
    assert table["licence"]
    assert table["provenance"]
    assert len(table["mirrors"]) > 1
    assert all(re.fullmatch(r"https://.+/", mirror) for mirror in table["mirrors"])
    assert re.fullmatch("[0-9a-f]{64}", table["sha256"])
    assert table["size"] > 0


def test_registered_file_is_the_one_that_the_installed_keras_expects():
    keras = Path(importlib.util.find_spec("keras").origin).parent
    assert read_registry(REGISTRY).sha256 in (keras / "src/datasets/mnist.py").read_text()
