"""Made-up sets of MNIST's layout, written here; a server on loopback stands for the mirrors."""

import errno
import gzip
import hashlib
import importlib.util
import io
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from labkit.data import datasets
from labkit.data.datasets import REGISTRY, fetch, load_digits, status
from labkit.system.errors import LabError
from labkit.system.paths import ROOT

NPZ = "mnist.npz"
IDX = tuple(f"{prefix}-{kind}-ubyte.gz" for prefix in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
KEYS = ("x_train", "y_train", "x_test", "y_test")


def mnist_arrays(n_train=60, n_test=30) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "x_train": rng.integers(0, 256, (n_train, 28, 28), dtype=np.uint8),
        "y_train": (np.arange(n_train) % 10).astype(np.uint8),
        "x_test": rng.integers(0, 256, (n_test, 28, 28), dtype=np.uint8),
        "y_test": (np.arange(n_test) % 10).astype(np.uint8),
    }


def npz_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def idx_bytes(array: np.ndarray, magic: bytes | None = None, shape=None, tail=b"") -> bytes:
    shape = array.shape if shape is None else shape
    magic = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    return gzip.compress(magic + struct.pack(f">{len(shape)}I", *shape) + array.tobytes() + tail)


def idx_files(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: idx_bytes(arrays[key]) for name, key in zip(IDX, KEYS, strict=True)}


def register(path: Path, contents: dict[str, bytes], npz_mirrors=(), idx_mirrors=()) -> Path:
    """Write a registry that takes `contents` for the truth."""
    lines = []
    for form, names, mirrors in (("npz", (NPZ,), npz_mirrors), ("idx", IDX, idx_mirrors)):
        lines += ["[[mnist]]", f'form = "{form}"', f"mirrors = {list(mirrors)}", "files = ["]
        lines += [
            f'{{ name = "{name}", size = {len(contents[name])}, '
            f'sha256 = "{hashlib.sha256(contents[name]).hexdigest()}" }},'
            for name in names
        ]
        lines += ["]"]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def truth() -> dict[str, bytes]:
    arrays = mnist_arrays()
    return {NPZ: npz_bytes(arrays), **idx_files(arrays)}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty data folder; Keras' cache and LAB_DATA are out of the way."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.delenv("LAB_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = tmp_path / "data"
    made.mkdir()
    return made


@pytest.fixture
def registry(tmp_path, truth) -> Path:
    return register(tmp_path / "registry.toml", truth)


@pytest.fixture
def keras(folder) -> Path:
    cache = folder.parent / "keras" / "datasets"
    cache.mkdir(parents=True)
    return cache


def put(folder: Path, contents: dict[str, bytes], *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(contents[name])


def fingerprint(given: datasets.Digits) -> str:
    return hashlib.sha256(b"".join(getattr(given, key).tobytes() for key in KEYS)).hexdigest()


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


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

DAMAGE = {
    "truncated": lambda content: content[: len(content) // 2],
    "altered": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
    "empty": lambda content: b"",
    "trailing": lambda content: content + b"\0",
    "a web page": lambda content: b"<html>Please log in</html>".ljust(len(content)),
}


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


def test_damaged_npz_is_not_passed_over_for_intact_idx_files_or_cache(folder, keras, registry, truth):
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


# --- The built-in digits ----------------------------------------------------------------------------------------------


def test_built_in_digits(folder, registry):
    given = load_digits(folder=folder, registry=registry)
    assert given.x_train.shape == (8000, 28, 28, 1)
    assert given.x_test.shape == (2000, 28, 28, 1)
    assert np.bincount(given.y_train).tolist() == [800] * 10
    assert np.bincount(given.y_test).tolist() == [200] * 10
    assert (given.x_train.dtype, given.y_train.dtype) == (np.float32, np.int64)
    assert given.x_train.min() == 0.0
    assert given.x_train.max() == 1.0
    assert len(np.unique(given.x_train, axis=0)) == 8000, "no two variants are the same"
    assert "scikit-learn's 1,797" in given.source
    assert "./lab data fetch" in given.source


def test_built_in_originals_are_in_one_part_only():
    train, test = datasets._originals()
    assert len(train.labels) + len(test.labels) == 1797
    everything = np.concatenate([train.images, test.images]).reshape(1797, -1)
    assert len(np.unique(everything, axis=0)) == 1797


@pytest.mark.parametrize("blank", ["train", "test"])
def test_no_test_digit_is_a_variant_of_a_training_digit(folder, registry, monkeypatch, blank):
    """Blank one part's originals, and the other part comes out bit for bit as before: it is made of its own alone."""
    ask = {"n_train": 3000, "n_test": 800, "folder": folder, "registry": registry}
    before = load_digits(**ask)
    parts = dict(zip(("train", "test"), datasets._originals(), strict=True))
    parts[blank] = parts[blank]._replace(images=np.zeros_like(parts[blank].images))
    monkeypatch.setattr(datasets, "_originals", lambda: tuple(parts.values()))
    after = load_digits(**ask)
    other = "test" if blank == "train" else "train"
    assert np.array_equal(getattr(after, f"x_{other}"), getattr(before, f"x_{other}"))
    assert getattr(after, f"x_{blank}").mean() < getattr(before, f"x_{blank}").mean() / 2


def test_built_in_digits_are_the_same_in_another_process(folder, registry):
    code = (
        "import hashlib, sys; from pathlib import Path; from labkit.data.datasets import load_digits;"
        "d = load_digits(500, 100, seed=3, folder=Path(sys.argv[1]), registry=Path(sys.argv[2]));"
        "print(hashlib.sha256(b''.join(a.tobytes() for a in (d.x_train, d.y_train, d.x_test, d.y_test))).hexdigest())"
    )
    there = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(registry)],
        cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    place = {"folder": folder, "registry": registry}
    assert there.stdout.strip() == fingerprint(load_digits(500, 100, seed=3, **place))
    assert there.stdout.strip() != fingerprint(load_digits(500, 100, seed=4, **place))


def test_built_in_test_digits_do_not_depend_on_the_training_digits(folder, registry):
    place = {"folder": folder, "registry": registry}
    assert np.array_equal(load_digits(100, 50, **place).x_test, load_digits(900, 50, **place).x_test)


def test_built_in_digits_can_be_learnt_but_not_by_looking_at_single_pixels(folder, registry):
    from sklearn.neighbors import NearestCentroid

    given = load_digits(2000, 500, folder=folder, registry=registry)
    flat = given.x_train.reshape(2000, -1), given.x_test.reshape(500, -1)
    accuracy = NearestCentroid().fit(flat[0], given.y_train).score(flat[1], given.y_test)
    assert 0.6 < accuracy < 0.95


def test_built_in_digits_are_no_more_than_mnist_has(folder, registry):
    for arguments in ({"n_train": 60_001}, {"n_test": 10_001}):
        with pytest.raises(LabError, match="is not possible here"):
            load_digits(folder=folder, registry=registry, **arguments)


# --- No network, nothing written --------------------------------------------------------------------------------------


@pytest.fixture
def no_sockets(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a socket was asked for")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.mark.parametrize("names", [(), (NPZ,), IDX], ids=["built-in", "npz", "idx"])
def test_digits_and_status_open_no_socket_and_write_nothing(folder, registry, truth, names, no_sockets):
    put(folder, truth, *names)
    before = {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")}
    load_digits(50, 20, folder=folder, registry=registry)
    status(folder, registry)
    assert {path: path.stat().st_mtime_ns for path in folder.parent.rglob("*")} == before


def test_the_socket_trap_springs(folder, tmp_path, truth, no_sockets):
    registry = register(tmp_path / "registry.toml", truth, ["http://127.0.0.1:9/"])
    with pytest.raises(AssertionError, match="a socket was asked for"):
        fetch(folder, registry, show=False)


# --- Fetching ---------------------------------------------------------------------------------------------------------


class Mirror:
    """A server on loopback; `answers` holds for each path what the handler does."""

    def __init__(self):
        self.answers, self.asked, self.released, self.half_sent = {}, [], threading.Event(), threading.Event()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                mirror.asked.append(self.path)
                mirror.answers.get(self.path, Mirror.absent)(mirror, self)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *args: None  # a client that goes away is what some tests are about
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def absent(self, handler):
        handler.send_error(404)

    def head(self, handler, length):
        handler.send_response(200)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()

    @staticmethod
    def whole(content):
        def answer(mirror, handler):
            mirror.head(handler, len(content))
            handler.wfile.write(content)

        return answer

    @staticmethod
    def broken_off(content):
        def answer(mirror, handler):
            mirror.head(handler, len(content))
            handler.wfile.write(content[: len(content) // 2])

        return answer

    @staticmethod
    def stalled(content):
        def answer(mirror, handler):
            mirror.head(handler, len(content))
            handler.wfile.write(content[: len(content) // 2])
            handler.wfile.flush()
            mirror.half_sent.set()
            mirror.released.wait(60)

        return answer

    @staticmethod
    def dripping(content):
        def answer(mirror, handler):
            mirror.head(handler, len(content))
            for i in range(len(content)):
                handler.wfile.write(content[i : i + 1])
                if mirror.released.wait(0.05):
                    return

        return answer

    def endless(self, handler):
        handler.send_response(200)
        handler.end_headers()
        while not self.released.is_set():
            handler.wfile.write(bytes(2**16))

    def silent(self, handler):
        self.released.wait(60)


@pytest.fixture
def mirror():
    server = Mirror()
    yield server
    server.close()


@pytest.fixture
def mirrored(tmp_path, truth, mirror) -> Path:
    """A registry with two mirrors for mnist.npz (/a/ and /b/) and one for the IDX files (/idx/); all 404 at first."""
    return register(tmp_path / "mirrored.toml", truth, [f"{mirror.url}a/", f"{mirror.url}b/"], [f"{mirror.url}idx/"])


def quick(folder, registry, silence=0.5, patience=20.0):
    return fetch(folder, registry, silence=silence, patience=patience, show=False)


BAD = {
    "404": lambda content: Mirror.absent,
    "broken off": Mirror.broken_off,
    "truncated": lambda content: Mirror.whole(content[:-1]),
    "altered": lambda content: Mirror.whole(DAMAGE["altered"](content)),
    "longer": lambda content: Mirror.whole(content + b"\0"),
    "endless": lambda content: Mirror.endless,
    "silent": lambda content: Mirror.silent,
    "stalled": Mirror.stalled,
}


def test_fetch_brings_the_file_and_digits_reads_it(folder, mirrored, mirror, truth, capfd):
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth[NPZ])
    [line] = quick(folder, mirrored)
    assert "mnist.npz" in line
    assert "127.0.0.1" in line
    assert [path.name for path in folder.iterdir()] == [NPZ]
    assert (folder / NPZ).read_bytes() == truth[NPZ]
    assert (folder / NPZ).stat().st_mode & 0o777 == 0o644, "a shared folder's readers can read it"
    assert mirror.asked == ["/a/mnist.npz"]
    assert capfd.readouterr() == ("", "")
    assert load_digits(folder=folder, registry=mirrored).source.startswith("MNIST")


def test_fetch_shows_the_file_it_brings(folder, mirrored, mirror, truth, capfd):
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth[NPZ])
    fetch(folder, mirrored)
    out, err = capfd.readouterr()
    assert "mnist.npz" in err
    assert out == ""


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_fetch_goes_to_the_next_mirror(folder, mirrored, mirror, truth, bad):
    mirror.answers |= {"/a/mnist.npz": bad(truth[NPZ]), "/b/mnist.npz": Mirror.whole(truth[NPZ])}
    quick(folder, mirrored)
    assert mirror.asked == ["/a/mnist.npz", "/b/mnist.npz"]
    assert [path.name for path in folder.iterdir()] == [NPZ]
    assert (folder / NPZ).read_bytes() == truth[NPZ]


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_fetch_without_a_good_mirror_is_one_line_and_leaves_nothing(folder, tmp_path, mirror, truth, bad):
    registry = register(tmp_path / "one.toml", truth, [f"{mirror.url}a/"])
    mirror.answers["/a/mnist.npz"] = bad(truth[NPZ])
    with pytest.raises(LabError) as error:
        quick(folder, registry)
    said = one_line(error)
    assert "127.0.0.1" in said
    assert "No network?" in said
    assert "Copy mnist.npz" in said
    assert "one.toml" in said
    assert list(folder.iterdir()) == []


def test_fetch_says_what_each_mirror_did(folder, mirrored, mirror, truth):
    mirror.answers |= {"/a/mnist.npz": BAD["altered"](truth[NPZ]), "/b/mnist.npz": BAD["truncated"](truth[NPZ])}
    with pytest.raises(LabError) as error:
        quick(folder, mirrored)
    said = one_line(error)
    assert "sent an altered file" in said
    assert f"sent {len(truth[NPZ]) - 1:,} bytes instead of {len(truth[NPZ]):,}" in said
    assert "answered 404" in said  # the IDX files' mirror


def test_fetch_with_nobody_listening(folder, tmp_path, truth):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, never listening: a connection is refused
        registry = register(tmp_path / "dead.toml", truth, [f"http://127.0.0.1:{free.getsockname()[1]}/"])
        with pytest.raises(LabError, match="cannot be reached"):
            quick(folder, registry)


def test_patience_ends_a_download_that_drips(folder, mirrored, mirror, truth):
    mirror.answers["/a/mnist.npz"] = Mirror.dripping(truth[NPZ])
    start = time.monotonic()
    with pytest.raises(LabError, match=r"was too slow, .*no time left"):
        quick(folder, mirrored, silence=10, patience=0.5)
    assert time.monotonic() - start < 30, "the whole file would take hours"
    assert mirror.asked == ["/a/mnist.npz"]
    assert list(folder.iterdir()) == []


def test_fetch_falls_back_on_idx_files_and_keeps_those_it_has(folder, mirrored, mirror, truth):
    put(folder, truth, IDX[0])
    mirror.answers |= {f"/idx/{name}": Mirror.whole(truth[name]) for name in IDX}
    assert len(quick(folder, mirrored)) == 3
    assert f"/idx/{IDX[0]}" not in mirror.asked
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: truth[name] for name in IDX}
    assert IDX[0] in load_digits(folder=folder, registry=mirrored).source


def test_fetch_keeps_the_bytes_of_a_gz_file_that_is_declared_an_encoding(folder, mirrored, mirror, truth):
    put(folder, truth, *IDX[1:])

    def declared(mirror, handler):
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.end_headers()
        handler.wfile.write(truth[IDX[0]])

    mirror.answers[f"/idx/{IDX[0]}"] = declared
    quick(folder, mirrored)
    assert (folder / IDX[0]).read_bytes() == truth[IDX[0]]


def test_fetch_asks_nobody_when_mnist_is_whole(folder, mirrored, mirror, truth):
    put(folder, truth, *IDX)
    assert "intact" in quick(folder, mirrored)[0]
    assert mirror.asked == []


def test_fetch_replaces_a_damaged_file(folder, mirrored, mirror, truth):
    (folder / NPZ).write_bytes(truth[NPZ][:-9])
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth[NPZ])
    quick(folder, mirrored)
    assert (folder / NPZ).read_bytes() == truth[NPZ]


@pytest.mark.parametrize(("damaged", "served"), [(NPZ, IDX), (IDX[2], (NPZ,))])
def test_fetch_deletes_a_damaged_file_that_another_form_makes_needless(
    folder, mirrored, mirror, truth, damaged, served
):
    put(folder, truth, *(name for name in served if name == NPZ))
    (folder / damaged).write_bytes(b"damaged")
    mirror.answers |= {f"/idx/{name}": Mirror.whole(truth[name]) for name in served}
    assert any(line.startswith(f"{damaged}: deleted") for line in quick(folder, mirrored))
    assert sorted(path.name for path in folder.iterdir()) == sorted(served)
    assert load_digits(folder=folder, registry=mirrored).source.startswith("MNIST")


def test_failed_fetch_leaves_a_damaged_file_refused(folder, mirrored):
    (folder / NPZ).write_bytes(b"damaged")
    with pytest.raises(LabError, match="No mirror"):
        quick(folder, mirrored)
    with pytest.raises(LabError, match=r"mnist\.npz is damaged"):
        load_digits(folder=folder, registry=mirrored)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_fetch_leaves_nothing_that_passes_for_the_file(folder, mirrored, mirror, truth, ending):
    mirror.answers["/a/mnist.npz"] = Mirror.stalled(truth[NPZ])
    code = (
        "import sys; from pathlib import Path; from labkit.data.datasets import fetch;"
        "fetch(Path(sys.argv[1]), Path(sys.argv[2]), silence=60, show=False)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(mirrored)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        assert mirror.half_sent.wait(60)
        while not any(path.is_file() and path.stat().st_size for path in folder.rglob("*")):
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(ending)
        assert child.wait(60) != 0
    finally:
        child.kill()
        child.wait()
    left = [path.name for path in folder.iterdir()]
    assert all(name.startswith("mnist-unfinished-") for name in left)
    assert not left or ending == signal.SIGKILL
    assert {file.state for file in status(folder, mirrored)} == {"missing"}
    assert "MNIST is not in" in load_digits(20, 10, folder=folder, registry=mirrored).source
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth[NPZ])
    quick(folder, mirrored)
    assert (folder / NPZ).read_bytes() == truth[NPZ]


def test_read_only_folder_is_one_line(folder, mirrored, mirror, truth, monkeypatch):
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth[NPZ])

    def refuse(path, *args):  # file modes would not stop a test that runs as root
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(LabError) as error:
        quick(folder, mirrored)
    assert f"{folder} cannot be written (Read-only file system)" in one_line(error)
    assert mirror.asked == []


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
