"""Concurrent changes of a file: none are lost, and no one waits forever."""

import fcntl
import signal
import subprocess
import sys

import pytest

from labkit.system import locks

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

SIGN = """
import sys, time
from labkit.system import locks
with open(sys.argv[1], "a+") as file:
    assert locks.try_lock(file)
    locks.sign(file)
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def warned(monkeypatch, capsys):
    """Return a function that returns the new warnings."""
    monkeypatch.setattr("labkit.system.terminal._seen", set())
    return lambda: capsys.readouterr().err


def listed(folder):
    return [path.name for path in folder.iterdir()]


@pytest.mark.slow
def test_concurrent_changes_all_survive_and_leave_no_files(tmp_path):
    path = tmp_path / "number"
    path.write_text("0")
    changing = [subprocess.Popen([sys.executable, "-c", COUNT, path, "60"]) for _ in range(4)]
    assert [process.wait() for process in changing] == [0] * 4
    assert path.read_text() == "240"
    assert listed(tmp_path) == ["number"]


def test_a_killed_process_holds_no_lock(tmp_path, warned):
    path = tmp_path / "x"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        holder.kill()
    with locks.locked(path, timeout_s=60):
        pass
    assert warned() == ""
    assert listed(tmp_path) == []


def test_a_suspended_holder_delays_the_block_only_until_the_timeout(tmp_path, warned):
    path = tmp_path / "x"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        try:
            holder.stdout.readline()
            holder.send_signal(signal.SIGSTOP)
            with locks.locked(path, timeout_s=0.05):
                pass
        finally:
            holder.kill()
    assert "is still locked by another process" in warned()


def test_without_locks_the_block_runs_after_a_warning(tmp_path, warned, monkeypatch):
    def flock(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with locks.locked(tmp_path / "x"):
        pass
    assert f"{tmp_path} can't be locked (No locks available)" in warned()
    with (tmp_path / "x").open("w") as file:
        assert locks.try_lock(file)
        locks.sign(file)
        assert f"{tmp_path}/x can't be locked (No locks available)" in warned()
    assert locks.holder(tmp_path / "x") is None


def test_the_signer_of_a_lock_is_known_until_it_ends(tmp_path):
    file = tmp_path / "pid"
    assert locks.holder(file) is None
    file.write_text("1234567 of a killed process")
    with subprocess.Popen([sys.executable, "-c", SIGN, file], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert locks.holder(file) == process.pid
        with file.open() as again:
            assert not locks.try_lock(again)
        process.kill()
    assert locks.holder(file) is None
    with file.open() as again:
        assert locks.try_lock(again)
