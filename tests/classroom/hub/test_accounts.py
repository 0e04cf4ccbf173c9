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
