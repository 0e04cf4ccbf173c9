"""Who changes a file that another changes meanwhile: nothing is lost, and nothing waits for ever."""

import fcntl
import signal
import subprocess
import sys

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

SIGN = """
import sys, time
from labkit.system import locks
with open(sys.argv[1], "a+") as file:
    assert locks.try_lock(file)
    if sys.argv[2:]:
        locks.sign(file)
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
    assert "is locked by another process" in warned()


def test_where_there_are_no_locks_it_goes_on_and_says_so(tmp_path, warned, monkeypatch):
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
    assert not locks.is_locked(tmp_path / "x")
    assert locks.holder(tmp_path / "x") is None


def test_the_process_that_has_signed_a_lock_is_found_until_it_ends(tmp_path):
    file = tmp_path / "pid"
    assert locks.holder(file) is None
    file.write_text("1234567 of one that was killed")
    with subprocess.Popen([sys.executable, "-c", SIGN, file, "sign"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert locks.holder(file) == process.pid
        with file.open() as again:
            assert not locks.try_lock(again)
        process.kill()
    assert locks.holder(file) is None
    with file.open() as again:
        assert locks.try_lock(again)


def test_a_lock_that_nobody_has_signed_yet_has_no_holder(tmp_path):
    file = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", SIGN, file], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert locks.is_locked(file)
        assert locks.holder(file) is None
        process.kill()
    assert not locks.is_locked(file)
