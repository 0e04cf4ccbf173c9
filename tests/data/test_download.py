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
from mnist_files import DAMAGE, NPZ, one_line, put, register

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

    def silent(self, handler):
        self.released.wait(60)


@pytest.fixture
def mirror():
    server = Mirror()
    yield server
    server.close()


@pytest.fixture
def mirrored(tmp_path, truth, mirror) -> Path:
    """A registry with two mirrors, /a/ and /b/; both answer 404 at first."""
    return register(tmp_path / "mirrored.toml", truth, [f"{mirror.url}a/", f"{mirror.url}b/"])


def quick(folder, registry):
    return fetch(folder, registry, max_silence_s=0.5, show=False)


BAD = {
    "404": lambda content: Mirror.absent,
    "broken off": Mirror.broken_off,
    "truncated": lambda content: Mirror.whole(content[:-1]),
    "altered": lambda content: Mirror.whole(DAMAGE["altered"](content)),
    "longer": lambda content: Mirror.whole(content + b"\0"),
    "silent": lambda content: Mirror.silent,
    "stalled": Mirror.stalled,
}


def test_fetch_brings_the_file_and_digits_reads_it(folder, mirrored, mirror, truth, capfd):
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth)
    line = quick(folder, mirrored)
    assert "mnist.npz" in line
    assert "127.0.0.1" in line
    assert [path.name for path in folder.iterdir()] == [NPZ]
    assert (folder / NPZ).read_bytes() == truth
    assert (folder / NPZ).stat().st_mode & 0o777 == 0o644, "a shared folder's readers can read it"
    assert mirror.asked == ["/a/mnist.npz"]
    assert capfd.readouterr() == ("", "")
    assert load_digits(folder=folder, registry=mirrored).source.startswith("MNIST")


def test_fetch_shows_the_file_it_brings(folder, mirrored, mirror, truth, capfd):
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth)
    fetch(folder, mirrored)
    out, err = capfd.readouterr()
    assert "mnist.npz" in err
    assert out == ""


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_fetch_goes_to_the_next_mirror(folder, mirrored, mirror, truth, bad):
    mirror.answers |= {"/a/mnist.npz": bad(truth), "/b/mnist.npz": Mirror.whole(truth)}
    quick(folder, mirrored)
    assert mirror.asked == ["/a/mnist.npz", "/b/mnist.npz"]
    assert [path.name for path in folder.iterdir()] == [NPZ]
    assert (folder / NPZ).read_bytes() == truth


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_fetch_without_a_good_mirror_is_one_line_and_leaves_nothing(folder, tmp_path, mirror, truth, bad):
    registry = register(tmp_path / "one.toml", truth, [f"{mirror.url}a/"])
    mirror.answers["/a/mnist.npz"] = bad(truth)
    with pytest.raises(LabError) as error:
        quick(folder, registry)
    said = one_line(error)
    assert "127.0.0.1" in said
    assert "No network?" in said
    assert "Copy mnist.npz" in said
    assert "one.toml" in said
    assert list(folder.iterdir()) == []


def test_fetch_says_what_each_mirror_did(folder, mirrored, mirror, truth):
    mirror.answers |= {"/a/mnist.npz": BAD["altered"](truth), "/b/mnist.npz": BAD["stalled"](truth)}
    with pytest.raises(LabError) as error:
        quick(folder, mirrored)
    said = one_line(error)
    assert "sent another file" in said
    assert "said nothing for 0.5 s" in said


def test_fetch_with_nobody_listening(folder, tmp_path, truth):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, never listening: a connection is refused
        registry = register(tmp_path / "dead.toml", truth, [f"http://127.0.0.1:{free.getsockname()[1]}/"])
        with pytest.raises(LabError, match="cannot be reached"):
            quick(folder, registry)


def test_fetch_asks_nobody_when_mnist_is_whole(folder, mirrored, mirror, truth):
    put(folder, truth)
    assert "intact" in quick(folder, mirrored)
    assert mirror.asked == []


def test_fetch_replaces_a_damaged_file(folder, mirrored, mirror, truth):
    (folder / NPZ).write_bytes(truth[:-9])
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth)
    quick(folder, mirrored)
    assert (folder / NPZ).read_bytes() == truth


def test_failed_fetch_leaves_a_damaged_file_refused(folder, mirrored):
    (folder / NPZ).write_bytes(b"damaged")
    with pytest.raises(LabError, match="No mirror"):
        quick(folder, mirrored)
    with pytest.raises(LabError, match=r"mnist\.npz is damaged"):
        load_digits(folder=folder, registry=mirrored)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_fetch_leaves_nothing_that_passes_for_the_file(folder, mirrored, mirror, truth, ending):
    mirror.answers["/a/mnist.npz"] = Mirror.stalled(truth)
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
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth)
    quick(folder, mirrored)
    assert (folder / NPZ).read_bytes() == truth


def test_read_only_folder_is_one_line(folder, mirrored, mirror, truth, monkeypatch):
    mirror.answers["/a/mnist.npz"] = Mirror.whole(truth)

    def refuse(path, *args):  # file modes would not stop a test that runs as root
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(LabError) as error:
        quick(folder, mirrored)
    assert f"{folder} cannot be written (Read-only file system)" in one_line(error)
    assert mirror.asked == []
