"""Who changes a file that another changes meanwhile: nothing is lost, and nothing waits for ever."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit.system import files, locks

COUNT = """
import sys
from pathlib import Path
from labkit.system import locks
path = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with locks.locked(path):
        number = int(path.read_text())
        path.write_text(str(number + 1))
"""
HOLD = """
import sys, time
from pathlib import Path
from labkit.system import locks
with locks.locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def warned(monkeypatch, capsys):
    """Give what was warned of, each time."""
    monkeypatch.setattr(files, "_warned", set())
    return lambda: capsys.readouterr().err


def listed(folder):
    return [path.name for path in folder.iterdir()]


@pytest.mark.slow
def test_all_changes_of_several_processes_survive_and_nothing_is_left(tmp_path):
    path = tmp_path / "number"
    path.write_text("0")
    changing = [subprocess.Popen([sys.executable, "-c", COUNT, path, "60"]) for _ in range(4)]
    assert [process.wait() for process in changing] == [0] * 4
    assert path.read_text() == "240"
    assert listed(tmp_path) == ["number"]


def test_a_process_that_was_killed_holds_nothing(tmp_path, warned):
    path = tmp_path / "x"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        holder.kill()
    with locks.locked(path, patience_s=60):
        pass
    assert warned() == ""
    assert listed(tmp_path) == []


def test_one_that_was_stopped_holds_it_for_a_while_and_then_it_goes_on_without(tmp_path, warned):
    path = tmp_path / "x"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        try:
            holder.stdout.readline()
            holder.send_signal(signal.SIGSTOP)
            with locks.locked(path, patience_s=0.05):
                pass
        finally:
            holder.kill()
    assert "is held by another process of yours" in warned()


def test_a_strangers_lock_is_not_waited_for(tmp_path, warned, monkeypatch):
    path = tmp_path / "x"
    with (tmp_path / ".x.lock").open("w") as strangers:
        fcntl.flock(strangers, fcntl.LOCK_EX)
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        begun = time.monotonic()
        with locks.locked(path, patience_s=600):
            pass
    assert time.monotonic() - begun < 300
    assert ".x.lock is not yours" in warned()


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_what_is_no_lock_is_not_taken_for_one(tmp_path, warned, make):
    make(tmp_path / ".x.lock")
    with locks.locked(tmp_path / "x"):
        pass
    assert "can't be locked" in warned()
    assert os.path.lexists(tmp_path / ".x.lock")


def test_where_there_are_no_locks_it_goes_on_and_says_so(tmp_path, warned, monkeypatch):
    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locks.locked(tmp_path / "x"):
        pass
    assert "can't be locked (No locks available)" in warned()


def test_it_can_be_opened_by_its_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        with locks.locked(tmp_path / "x"):
            assert (tmp_path / ".x.lock").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
