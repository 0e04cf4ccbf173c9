"""Fixtures for the tests of `labkit.mpi`."""

import pytest

from labkit.mpi import planning


@pytest.fixture(autouse=True)
def enough_shared_memory(monkeypatch):
    monkeypatch.setattr(planning, "SHM_BYTES_PER_RANK", 0)
