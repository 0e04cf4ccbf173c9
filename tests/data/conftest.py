"""What the tests of digits, their files and their download share."""

import functools
from pathlib import Path

import pytest
from mnist_files import NPZ, idx_files, mnist_arrays, npz_bytes, register


@functools.cache
def _made() -> dict[str, bytes]:
    arrays = mnist_arrays()
    return {NPZ: npz_bytes(arrays), **idx_files(arrays)}


@pytest.fixture
def truth() -> dict[str, bytes]:
    return dict(_made())


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
