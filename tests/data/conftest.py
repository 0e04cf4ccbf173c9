"""Fixtures for the tests of digits, their files and their download."""

import functools
from pathlib import Path

import pytest
from mnist_files import mnist_arrays, npz_bytes, register


@functools.cache
def _mnist_bytes() -> bytes:
    return npz_bytes(mnist_arrays())


@pytest.fixture
def truth() -> bytes:
    return _mnist_bytes()


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """An empty data folder; LAB_DATA is out of the way."""
    monkeypatch.delenv("LAB_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    data = tmp_path / "data"
    data.mkdir()
    return data


@pytest.fixture
def registry(tmp_path, truth) -> Path:
    return register(tmp_path / "registry.toml", truth)
