"""All processes of a seat's account end, however fast they fork, and root's never do."""

import os
import subprocess

import pytest

from labkit.system import processes
from labkit_classroom.hub import accounts


def test_a_fork_loop_is_killed_at_once():
    if os.geteuid() != 0:
        pytest.skip("THE END OF A FORK BOMB WAS NOT TESTED HERE: only root can become another user")
    uid = 61778
    bomb = "f() { f | f & }; ulimit -u 200; while :; do f; done"
    running = subprocess.Popen(
        ["bash", "-c", bomb], user=uid, group=uid, extra_groups=[], cwd="/", stderr=subprocess.DEVNULL
    )

    def of_user() -> list:
        return processes.find(lambda process: process.uids().real == uid)

    try:
        assert processes.wait_until(lambda: len(of_user()) > 20, 20)
        assert accounts.end_users({uid})
        assert not of_user()
    finally:
        accounts.end_users({uid})
        running.wait()


def test_roots_processes_are_never_killed():
    with pytest.raises(ValueError, match="end the machine"):
        accounts.end_users({0, 61778})


def test_what_students_runs_left_is_deleted_and_nothing_else(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("THE DELETION OF STUDENTS' FILES WAS NOT TESTED HERE: only root can give files away")
    uid, shared = 61778, tmp_path / "shm"
    monkeypatch.setattr(accounts, "SHARED", (shared, tmp_path / "missing"))
    (shared / "labkit-run-1" / "deep").mkdir(parents=True)
    (shared / "students").mkdir()
    for name in ("mpich_shm_1", "labkit-run-1/deep/file", "labkit-run-1/deep", "labkit-run-1", "students"):
        if not (shared / name).exists():
            (shared / name).touch()
        os.chown(shared / name, uid, accounts.NOBODY_GID)
    (shared / "mpich_shm_of_root").touch()
    (shared / "labkit-run-1" / "link").symlink_to(tmp_path)
    os.chown(shared / "labkit-run-1" / "link", uid, -1, follow_symlinks=False)
    accounts.delete_left_files({uid})
    assert {path.name for path in shared.iterdir()} == {"mpich_shm_of_root", "students"}
    assert tmp_path.exists()
