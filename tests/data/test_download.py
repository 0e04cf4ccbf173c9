"""The download of MNIST; a server on loopback stands for the mirrors."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mnist_files import (
    DAMAGE,
    IDX,
    NPZ,
    one_line,
    put,
    register,
)

from labkit.data.digits import load_digits
from labkit.data.download import fetch
from labkit.data.mnist import status
from labkit.system.errors import LabError
from labkit.system.paths import ROOT

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


def quick(folder, registry, max_silence_s=0.5, max_s=20.0):
    return fetch(folder, registry, max_silence_s=max_silence_s, max_s=max_s, show=False)


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


def test_the_time_limit_ends_a_download_that_drips(folder, mirrored, mirror, truth):
    mirror.answers["/a/mnist.npz"] = Mirror.dripping(truth[NPZ])
    start = time.monotonic()
    with pytest.raises(LabError, match=r"was too slow, .*no time left"):
        quick(folder, mirrored, max_silence_s=10, max_s=0.5)
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
        "import sys; from pathlib import Path; from labkit.data.download import fetch;"
        "fetch(Path(sys.argv[1]), Path(sys.argv[2]), max_silence_s=60, show=False)"
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
