"""What killed processes left behind is swept, and nothing else."""

import os
import subprocess
import sys
import tempfile

import pytest

from labkit.system import scratch
from labkit.system.errors import LabError

KILLED = """
import os, signal
from pathlib import Path
from labkit.system import scratch
with scratch.folder() as folder:
    (folder / "deep").mkdir()
    os.mkfifo(folder / "deep" / "pipe")
    print(folder, flush=True)
    {end}
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def sweep() -> None:
    with scratch.folder():
        pass


def killed() -> None:
    code = KILLED.format(end="os.kill(os.getpid(), signal.SIGKILL)")
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE).returncode == -9


def test_a_folder_goes_with_its_block(temporary):
    with scratch.folder() as folder:
        (folder / "file").touch()
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_a_forked_process_that_leaves_the_block_removes_nothing(temporary):
    with scratch.folder() as made:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert made.exists()
    if not child:
        os._exit(0)


def test_what_a_killed_process_left_is_swept(temporary):
    killed()
    killed()
    assert len(list(temporary.iterdir())) == 1  # the second has swept the first's
    sweep()
    assert list(temporary.iterdir()) == []


AT_A_MOMENT = """
import os, shutil, signal, tempfile
from pathlib import Path
from labkit.system import scratch

def end(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

make = tempfile.mkdtemp
def make_and_end(*arguments, **options):
    make(*arguments, **options)
    end()

if "{moment}" == "made":
    tempfile.mkdtemp = make_and_end
with scratch.folder() as folder:
    (folder / "deep").mkdir()
    for number in range(20):
        (folder / str(number)).touch()
    if "{moment}" == "unmarked":
        unlink = os.unlink
        os.unlink = lambda path, **options: unlink(path, **options) or (path == scratch.IN_USE and end())
    if "{moment}" == "removed":
        remove = os.rmdir
        os.rmdir = lambda path, **options: (end if str(path) == str(folder) else remove)(path, **options)
"""


@pytest.mark.parametrize("moment", ["made", "unmarked", "removed"])
def test_what_was_killed_while_its_folder_was_made_or_removed_left_is_swept(temporary, moment):
    assert subprocess.run([sys.executable, "-c", AT_A_MOMENT.format(moment=moment)]).returncode == -9
    assert len(list(temporary.iterdir())) == 1
    sweep()
    assert list(temporary.iterdir()) == []


def test_a_folder_that_is_swept_before_it_is_marked_is_made_again(temporary, monkeypatch):
    made = []

    def make(make=tempfile.mkdtemp, **options):
        made.append(make(**options))
        if len(made) == 1:
            sweep_meanwhile()
        return made[-1]

    def sweep_meanwhile():
        subprocess.run(
            [sys.executable, "-c", "from labkit.system import scratch\nwith scratch.folder(): pass"], check=True
        )

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    with scratch.folder() as folder:
        assert [str(folder)] == made[1:]
        assert list(temporary.iterdir()) == [folder]


def test_what_lives_is_not(temporary):
    code = KILLED.format(end="input()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as living:
        there = living.stdout.readline().decode().strip()
        with scratch.folder() as own:
            sweep()
            assert sorted(temporary.iterdir()) == sorted([own, temporary / os.path.basename(there)])  # noqa: PTH119
        living.communicate(b"\n")
    assert list(temporary.iterdir()) == []


def test_only_what_this_module_made(temporary):
    (temporary / "labkit-checkout").mkdir()
    (temporary / "labkit-checkout" / "thesis.tex").touch()
    (temporary / "labkit-file").touch()
    (temporary / "other-folder").mkdir()
    (temporary / "other-folder" / scratch.IN_USE).touch()
    before = sorted(temporary.rglob("*"))
    sweep()
    assert sorted(temporary.rglob("*")) == before


def test_links_are_not_followed_and_pipes_not_waited_for(temporary, tmp_path_factory):
    treasure = tmp_path_factory.mktemp("treasure")
    (treasure / scratch.IN_USE).touch()
    (treasure / "gold").touch()
    (temporary / "labkit-link").symlink_to(treasure)
    for name in ("linked", "piped"):
        (temporary / f"labkit-{name}").mkdir()
    (temporary / "labkit-linked" / scratch.IN_USE).symlink_to(treasure / scratch.IN_USE)
    os.mkfifo(temporary / "labkit-piped" / scratch.IN_USE)
    os.mkfifo(temporary / "mpich_shm_pipe")
    (temporary / "mpich_shm_link").symlink_to(treasure / "gold")
    before = sorted(temporary.rglob("*"))
    killed()
    leftover = next(path for path in temporary.iterdir() if path not in before)
    (leftover / "to-the-treasure").symlink_to(treasure)
    sweep()
    assert sorted(temporary.rglob("*")) == before
    assert sorted(path.name for path in treasure.iterdir()) == ["gold", scratch.IN_USE]


@pytest.mark.skipif(os.geteuid() != 0, reason="ANOTHER USER'S FOLDERS NOT TESTED HERE: only root can make them")
def test_another_users_is_left_alone_also_by_root(temporary):
    for name in ("whole", "inside"):
        (temporary / f"labkit-{name}").mkdir()
        (temporary / f"labkit-{name}" / scratch.IN_USE).touch()
        os.chown(temporary / f"labkit-{name}" / scratch.IN_USE, 65534, 65534)
    os.chown(temporary / "labkit-whole", 65534, 65534)
    (temporary / "mpich_shm_other").touch()
    os.chown(temporary / "mpich_shm_other", 65534, 65534)
    before = sorted(temporary.rglob("*"))
    sweep()
    assert sorted(temporary.rglob("*")) == before


@pytest.mark.parametrize("prefix", ["mpich_shm_", "ucx_shm_posix_"])
def test_shared_memory_of_dead_ranks_is_swept_and_of_living_ones_is_not(temporary, prefix):
    (temporary / f"{prefix}dead_0").write_bytes(b"0" * 100)
    with (temporary / f"{prefix}alive_0").open("w+b"):
        sweep()
        assert [path.name for path in temporary.iterdir()] == [f"{prefix}alive_0"]


def test_two_sweeps_at_once_harm_nobody(temporary, monkeypatch):
    left, unlink = temporary / "mpich_shm_dead_0", os.unlink
    left.write_bytes(b"0" * 100)

    def meanwhile(path: os.PathLike, **options: object) -> None:
        if str(path) == str(left):
            with pytest.raises(BlockingIOError):
                os.open(left, os.O_RDWR | os.O_NONBLOCK)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", meanwhile)
    sweep()
    assert list(temporary.iterdir()) == []


def test_no_room_is_one_line(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(LabError, match=r"cannot make a temporary folder: .*TMPDIR"):
        sweep()
