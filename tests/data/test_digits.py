"""The digits of the labs: the same on every rank, whatever is on this machine."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from mnist_files import fingerprint, put, register

from labkit.data import mnist
from labkit.data.digits import load_digits
from labkit.data.mnist import fetch, status
from labkit.system.errors import LabError
from labkit.system.paths import ROOT

# --- 5,000 of MNIST's digits ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_built_in_digits_are_each_in_one_part_balanced_and_shuffled(folder, registry):
    data = load_digits(folder=folder, registry=registry)
    assert (data.x_train.shape, data.x_test.shape) == ((4000, 28, 28, 1), (1000, 28, 28, 1))
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert [np.bincount(labels).tolist() for labels in (data.y_train, data.y_test)] == [[400] * 10, [100] * 10]
    assert set(data.y_train[:100]) == set(range(10)), "sorted by class, as in the file"
    everything = np.concatenate([data.x_train, data.x_test]).reshape(5000, -1)
    assert len(np.unique(everything, axis=0)) == 5000
    assert "5,000 of MNIST's digits: 4,000 training and 1,000 test digits, as MNIST is not in" in data.source
    assert "./lab data fetch" in data.source
    again = load_digits(4000, 10, folder=folder, registry=registry)
    assert np.array_equal(again.x_train, data.x_train)


@pytest.mark.slow
def test_the_number_of_training_digits_does_not_change_the_test(folder, registry):
    place = {"folder": folder, "registry": registry}
    few, many = load_digits(300, 50, **place), load_digits(3500, 50, **place)
    assert np.array_equal(few.x_test, many.x_test)
    for arguments in ({"n_train": 4001}, {"n_test": 1001}):
        with pytest.raises(LabError, match="is not possible here"):
            load_digits(**place, **arguments)


@pytest.mark.slow
def test_digits_are_the_same_in_another_process(folder, registry):
    code = (
        "import hashlib, sys; from pathlib import Path; from labkit.data.digits import load_digits;"
        "d = load_digits(3900, 100, folder=Path(sys.argv[1]), registry=Path(sys.argv[2]));"
        "print(hashlib.sha256(b''.join(a.tobytes() for a in (d.x_train, d.y_train, d.x_test, d.y_test))).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(registry)],
        cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    place = {"folder": folder, "registry": registry}
    assert other.stdout.strip() == fingerprint(load_digits(3900, 100, **place))


@pytest.mark.parametrize("change", ["missing", "damaged", "another package"])
def test_built_in_digits_that_are_missing_or_damaged_are_refused_by_name(tmp_path, monkeypatch, change):
    monkeypatch.syspath_prepend(tmp_path)
    place = tmp_path / "some_package"
    (place / "data/data").mkdir(parents=True)
    (place / "__init__.py").write_text("raise SystemExit('imported')")
    if change == "damaged":
        (place / "data/data/mnist_5k.csv.gz").write_bytes(b"x")
    with pytest.raises(LabError, match="is missing from" if change == "another package" else f"5k.csv.gz is {change}"):
        mnist.read_5k("no_such_package" if change == "another package" else place.name)


# --- No network, nothing written --------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [False, True], ids=["built-in", "npz"])
def test_digits_and_status_open_no_socket_and_write_nothing(folder, tmp_path, truth, is_there, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was requested")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    registry = register(tmp_path / "registry.toml", truth, ["http://127.0.0.1:9/"])
    if is_there:
        put(folder, truth)
    before = {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")}
    load_digits(50, 20, folder=folder, registry=registry)
    status(folder, registry)
    assert {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")} == before
    if not is_there:  # the guard works
        with pytest.raises(AssertionError, match="a socket was requested"):
            fetch(folder, registry)
