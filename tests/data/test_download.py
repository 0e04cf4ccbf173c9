"""MNIST is downloaded from the first mirror that has it, complete or not at all; the mirrors are a loopback server."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from lab_error import error_of
from mnist_files import NPZ, put, register

from labkit.data.digits import load_digits
from labkit.data.mnist import fetch
from labkit.system.errors import LabError


@pytest.fixture
def mirrors():
    """Serve each path with the bytes that the test sets; None stalls, and other paths are missing."""
    contents, released = {}, threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path not in contents:
                self.send_error(404)
                return
            content = contents[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content or b"x")))
            self.end_headers()
            if content is None:
                released.wait(60)
            else:
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    contents["url"] = f"http://127.0.0.1:{server.server_port}/"
    yield contents
    released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def registry(tmp_path, truth, mirrors):
    return register(tmp_path / "mirrored.toml", truth, [f"{mirrors['url']}a/", f"{mirrors['url']}b/"])


@pytest.mark.parametrize("bad", ["missing", "truncated", "altered", "stalled"])
def test_the_next_mirror_is_tried_and_a_failure_leaves_nothing(folder, registry, mirrors, truth, bad):
    answers = {"truncated": truth[:-1], "altered": b"x" * len(truth), "stalled": None}
    if bad in answers:
        mirrors["/a/mnist.npz"] = answers[bad]
    assert "mirrored.toml lists its addresses" in error_of(fetch, folder, registry, timeout_s=0.5)
    assert list(folder.iterdir()) == []
    mirrors["/b/mnist.npz"] = truth
    assert "SHA-256 as registered" in fetch(folder, registry, timeout_s=0.5)
    assert [path.name for path in folder.iterdir()] == [NPZ]
    assert (folder / NPZ).stat().st_mode & 0o777 == 0o644
    assert load_digits(folder=folder, registry=registry).source.startswith("MNIST")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("REQUESTS_CA_BUNDLE", "/none", "invalid path: /none"),
        ("https_proxy", "socks5h://127.0.0.1:9", "SOCKS"),
        ("https_proxy", "http://127.0.0.1:9", "ProxyError, Connection refused"),
        ("https_proxy", "nonsense://", "malformed"),
        ("https_proxy", "", "Connection refused"),
    ],
)
def test_network_failures_are_reported_in_the_librarys_words(
    folder, tmp_path, truth, monkeypatch, name, value, message
):
    for variable in ("https_proxy", "no_proxy", "NO_PROXY", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    error = error_of(fetch, folder, register(tmp_path / "none.toml", truth, ["https://127.0.0.1:9/"]))
    assert message in error
    assert "written" not in error


def test_a_folder_that_cannot_be_written_is_named(folder, registry, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pooch.retrieve", full)
    with pytest.raises(LabError, match=r"cannot be written \(No space left on device\)"):
        fetch(folder, registry)


def test_an_intact_file_is_kept_and_a_damaged_one_replaced(folder, registry, mirrors, truth):
    put(folder, truth)
    assert "intact" in fetch(folder, registry)
    put(folder, truth[:-9])
    mirrors["/a/mnist.npz"] = truth
    fetch(folder, registry)
    assert (folder / NPZ).read_bytes() == truth
