"""The digits of the labs: the same on every rank, whatever is on this machine."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from mnist_files import fingerprint, put, register

from labkit.data import digits, mnist
from labkit.data.digits import load_digits
from labkit.data.mnist import fetch, status
from labkit.system.errors import LabError
from labkit.system.paths import ROOT

# --- The built-in digits ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_built_in_digits(folder, registry):
    data = load_digits(folder=folder, registry=registry)
    assert data.x_train.shape == (8000, 28, 28, 1)
    assert data.x_test.shape == (2000, 28, 28, 1)
    assert np.bincount(data.y_train).tolist() == [800] * 10
    assert np.bincount(data.y_test).tolist() == [200] * 10
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert data.x_train.min() == 0.0
    assert data.x_train.max() == 1.0
    assert len(np.unique(data.x_train, axis=0)) == 8000, "no two variants are the same"
    assert "scikit-learn's 1,797" in data.source
    assert "./lab data fetch" in data.source


def test_built_in_originals_are_in_one_part_only():
    train, test = digits._originals()
    assert len(train.labels) + len(test.labels) == 1797
    everything = np.concatenate([train.images, test.images]).reshape(1797, -1)
    assert len(np.unique(everything, axis=0)) == 1797


@pytest.mark.parametrize("blank", ["train", "test"])
def test_no_test_digit_is_a_variant_of_a_training_digit(folder, registry, monkeypatch, blank):
    """Blanking one part's originals leaves the other part identical, as it uses only its own."""
    arguments = {"n_train": 600, "n_test": 200, "folder": folder, "registry": registry}
    before = load_digits(**arguments)
    parts = dict(zip(("train", "test"), digits._originals(), strict=True))
    parts[blank] = parts[blank]._replace(images=np.zeros_like(parts[blank].images))
    monkeypatch.setattr(digits, "_originals", lambda: tuple(parts.values()))
    after = load_digits(**arguments)
    other = "test" if blank == "train" else "train"
    assert np.array_equal(getattr(after, f"x_{other}"), getattr(before, f"x_{other}"))
    assert getattr(after, f"x_{blank}").mean() < getattr(before, f"x_{blank}").mean() / 2


@pytest.mark.slow
def test_built_in_digits_are_the_same_in_another_process(folder, registry):
    code = (
        "import hashlib, sys; from pathlib import Path; from labkit.data.digits import load_digits;"
        "d = load_digits(500, 100, seed=3, folder=Path(sys.argv[1]), registry=Path(sys.argv[2]));"
        "print(hashlib.sha256(b''.join(a.tobytes() for a in (d.x_train, d.y_train, d.x_test, d.y_test))).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(registry)],
        cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    place = {"folder": folder, "registry": registry}
    assert other.stdout.strip() == fingerprint(load_digits(500, 100, seed=3, **place))
    assert other.stdout.strip() != fingerprint(load_digits(500, 100, seed=4, **place))


def test_built_in_test_digits_do_not_depend_on_the_training_digits(folder, registry):
    place = {"folder": folder, "registry": registry}
    assert np.array_equal(load_digits(100, 50, **place).x_test, load_digits(900, 50, **place).x_test)


@pytest.mark.slow
def test_built_in_digits_can_be_learnt_but_not_by_looking_at_single_pixels(folder, registry):
    from sklearn.neighbors import NearestCentroid

    data = load_digits(2000, 500, folder=folder, registry=registry)
    flat = data.x_train.reshape(2000, -1), data.x_test.reshape(500, -1)
    accuracy = NearestCentroid().fit(flat[0], data.y_train).score(flat[1], data.y_test)
    assert 0.6 < accuracy < 0.95


def test_built_in_digits_are_limited_to_the_size_of_mnist(folder, registry):
    for arguments in ({"n_train": 60_001}, {"n_test": 10_001}):
        with pytest.raises(LabError, match="is not possible here"):
            load_digits(folder=folder, registry=registry, **arguments)


# --- 5,000 of MNIST's digits ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_digits_are_each_in_one_part_balanced_and_shuffled(folder, registry):
    data = load_digits(folder=folder, registry=registry, real=True)
    assert (data.x_train.shape, data.x_test.shape) == ((4000, 28, 28, 1), (1000, 28, 28, 1))
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert [np.bincount(labels).tolist() for labels in (data.y_train, data.y_test)] == [[400] * 10, [100] * 10]
    assert set(data.y_train[:100]) == set(range(10)), "sorted by class, as in the file"
    everything = np.concatenate([data.x_train, data.x_test]).reshape(5000, -1)
    assert len(np.unique(everything, axis=0)) == 5000
    assert "5,000 of MNIST's digits: 4,000 training and 1,000 test digits, as MNIST is not in" in data.source
    assert "sklearn" not in data.source
    again = load_digits(4000, 10, folder=folder, registry=registry, real=True)
    assert np.array_equal(again.x_train, data.x_train)


@pytest.mark.slow
def test_more_digits_than_there_are_real_ones_are_variants(folder, registry):
    place = {"folder": folder, "registry": registry, "real": True}
    few, many = load_digits(300, 50, **place), load_digits(4500, 50, **place)
    assert len(np.unique(many.x_train, axis=0)) == 4500
    assert many.x_train.mean() == pytest.approx(few.x_train.mean(), rel=0.1), "as light, and nothing is cut off"
    assert np.array_equal(few.x_test, many.x_test), "the test digits are no variants"


def test_all_of_mnist_precedes_the_real_digits(folder, registry, truth):
    put(folder, truth)
    assert load_digits(10, 10, folder=folder, registry=registry, real=True).source.startswith("MNIST: ")


@pytest.mark.parametrize("change", ["missing", "damaged", "another package"])
def test_real_digits_that_are_missing_or_damaged_are_refused_by_name(tmp_path, monkeypatch, change):
    monkeypatch.syspath_prepend(tmp_path)
    place = tmp_path / "some_package"
    (place / "data/data").mkdir(parents=True)
    (place / "__init__.py").write_text("raise SystemExit('imported')")
    if change == "damaged":
        (place / "data/data/mnist_5k.csv.gz").write_bytes(b"x")
    with pytest.raises(LabError, match="is missing from" if change == "another package" else f"5k.csv.gz is {change}"):
        mnist.read_5k("no_such_package" if change == "another package" else place.name)


# --- No network, nothing written --------------------------------------------------------------------------------------


@pytest.fixture
def no_sockets(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was requested")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.mark.parametrize("is_there", [False, True], ids=["built-in", "npz"])
def test_digits_and_status_open_no_socket_and_write_nothing(folder, registry, truth, is_there, no_sockets):
    if is_there:
        put(folder, truth)
    before = {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")}
    load_digits(50, 20, folder=folder, registry=registry)
    status(folder, registry)
    assert {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")} == before


def test_the_socket_guard_works(folder, tmp_path, truth, no_sockets):
    registry = register(tmp_path / "registry.toml", truth, ["http://127.0.0.1:9/"])
    with pytest.raises(AssertionError, match="a socket was requested"):
        fetch(folder, registry)
