"""A temporary folder is removed with its block, and so is the shared memory of dead ranks."""

import os

import pytest

from labkit.system import scratch
from labkit.system.errors import LabError


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_a_folder_is_removed_with_its_block(temporary):
    with scratch.folder() as folder:
        (folder / "file").touch()
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_a_forked_process_that_leaves_the_block_removes_nothing():
    with scratch.folder() as folder:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert folder.exists()
    if not child:
        os._exit(0)


@pytest.mark.parametrize("prefix", scratch.RANKS_PREFIXES)
def test_shared_memory_is_removed_for_dead_ranks_only(temporary, prefix):
    (temporary / f"{prefix}dead_0").write_bytes(b"0" * 100)
    with (temporary / f"{prefix}alive_0").open("w+b"), scratch.folder() as folder:
        assert sorted(temporary.iterdir()) == sorted([temporary / f"{prefix}alive_0", folder])


@pytest.mark.skipif(os.geteuid() != 0, reason="ANOTHER USER'S SHARED MEMORY NOT TESTED HERE: only root can make it")
def test_another_users_shared_memory_is_left_alone_even_by_root(temporary):
    (temporary / "mpich_shm_other").touch()
    os.chown(temporary / "mpich_shm_other", 65534, 65534)
    with scratch.folder():
        assert (temporary / "mpich_shm_other").exists()


def test_a_full_disk_is_a_one_line_error(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(LabError, match=r"cannot make a temporary folder: .*TMPDIR"), scratch.folder():
        pass
