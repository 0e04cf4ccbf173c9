import random
import stat
from pathlib import Path

import psutil
import pytest
from listening import listeners

from labkit.models import llama
from labkit.models.llama import Engine, write_model
from labkit.models.published import PublishedModel
from labkit.system.cores import usable_machine
from labkit.system.errors import LabError

TINY = PublishedModel(2, 256, 4, 2, 64, 512, 512, tied=True)
TEXT = random.Random(0).sample(range(1, 512), 300)
pytestmark = pytest.mark.skipif(bool(llama.obstacle()), reason=llama.obstacle())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def writer(folder):
    """Return a model that writes TEXT."""
    return write_model(folder / "writer.gguf", TINY, "Q8_0", text=TEXT)


@pytest.fixture
def start(folder):
    engines = []

    def start(path, context=512, **options):
        engines.append(Engine(path, usable_machine(), context, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(("form", "bits"), [("Q4_0", 4.5), ("Q8_0", 8.5), ("F16", 16)])
def test_a_model_has_the_bytes_of_its_format_and_runs(folder, start, form, bits):
    path = write_model(folder / f"{form}.gguf", TINY, form)
    assert path.stat().st_size == pytest.approx(TINY.weights * bits / 8, rel=0.2)
    engine = start(path)
    (timing,) = engine.ask((range(1, 101), 6, False))
    assert (timing.read, timing.wrote) == (100, 5)
    assert timing.read_s > 0
    assert timing.wrote_s > 0
    assert engine.first_token_s(range(1, 101)) > 0
    assert engine.token_s(range(1, 101), 4) > 0


def test_a_cached_prompt_is_not_read_again(start, writer):
    engine = start(writer)
    engine.ask((TEXT[:200], 1, True))
    (again,) = engine.ask((TEXT[:200], 1, True))
    assert again.read == 1


def test_a_model_writes_its_text(start, writer):
    for proposed in (0, 4):
        (timing,) = start(writer, proposed=proposed).ask((TEXT[:60] + TEXT[40:50], 101, False))
        assert llama.tokens_of(timing.text) == TEXT[50:151]
        assert (timing.proposed > 0) == (proposed > 0)
        assert timing.accepted == timing.proposed  # what follows in the prompt is what the model writes


def test_each_cache_keeps_its_prompt(start, writer):
    engine = start(writer, at_once=2)
    engine.ask((TEXT[:200], 1, True), place=0)
    engine.first_token_s(TEXT[:100], place=1)
    (again,) = engine.ask((TEXT[:200], 1, True), place=0)
    assert again.read == 1


def test_sizes_are_read_from_a_file(folder, writer):
    sizes, weight_bytes = llama.sizes_of(write_model(folder / "Q4_0.gguf", TINY, "Q4_0"))
    assert sizes == TINY
    assert weight_bytes == pytest.approx(4.5 / 8, rel=0.02)
    assert not llama.sizes_of(writer)[0].tied
    other = folder / "other.gguf"
    other.write_text("no model")
    with pytest.raises(LabError, match=r"other.gguf is not the GGUF file of a dense model"):
        llama.sizes_of(other)


def test_requests_share_passes(start, writer):
    engine = start(writer, at_once=2)
    timings = engine.ask((TEXT[:40], 20, False), (TEXT[:30], 10, False))
    assert [(timing.read, timing.wrote) for timing in timings] == [(40, 19), (30, 9)]


def test_nothing_listens_but_a_socket_in_a_private_folder(start, writer):
    engine = start(writer)
    child = psutil.Process(engine._process.pid)
    assert not listeners(lambda process: process in [child, *child.children(recursive=True)])
    (socket,) = {Path(of.laddr) for of in child.net_connections("unix") if of.laddr}
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    engine.close()
    assert not child.is_running()
    assert not socket.parent.exists()


def test_an_engine_that_ended_says_so(start, writer, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(writer.read_bytes()[:1000])
    with pytest.raises(
        LabError, match=r"^llama.cpp with damaged.gguf ended \(exit status 1\): gguf_init.*failed to read"
    ):
        start(damaged)
    engine = start(writer)
    engine._process.kill()
    engine._process.wait()
    with pytest.raises(LabError, match="create it again"):
        engine.first_token_s(TEXT[:9])


def test_the_engine_may_be_missing(monkeypatch):
    monkeypatch.setattr(llama.metadata, "distributions", lambda name: [])
    assert llama.obstacle() == "llama.cpp is not installed. To install it: ./lab setup"
    monkeypatch.undo()
    monkeypatch.setattr(llama, "cpu_flags", lambda: ["avx"])
    monkeypatch.setattr(llama.os, "uname", lambda: type("Uname", (), {"machine": "x86_64"}))
    assert llama.obstacle().startswith("This CPU lacks AVX2")
    monkeypatch.setenv("LAB_WITHOUT", "engine")
    assert llama.obstacle() == "LAB_WITHOUT simulates a machine without engine"
