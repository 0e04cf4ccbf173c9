"""What the tests of this room share."""

import pytest

from labkit.mpi import planning


@pytest.fixture(autouse=True)
def room_in_shared_memory(monkeypatch):
    monkeypatch.setattr(planning, "SHM_BYTES_PER_RANK", 0)
