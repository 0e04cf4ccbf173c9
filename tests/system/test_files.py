"""Writes are atomic, and errors are one line with a remedy."""

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from labkit.system import files
from labkit.system.errors import LabError


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("content", ["text – with more than ASCII\n", b"\x00bytes", "", "x" * 10_000_000])
def test_the_whole_content_is_written_and_no_other_file(tmp_path, content):
    path = tmp_path / "a name with spaces"
    for _ in range(2):
        files.write(path, content)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
        assert listed(tmp_path) == [path.name]


def test_new_files_follow_the_umask_and_existing_ones_keep_their_mode(tmp_path):
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o755)
    files.write(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o755


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far/file")
    for text in ("one", "two"):
        files.write(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "far" / "file").read_text() == text
    assert listed(tmp_path / "far") == ["file"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("at", ["fsync", "fchmod"])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, stop, at):
    path = tmp_path / "file"
    path.write_text("before")

    def stopped(*args):
        raise stop

    monkeypatch.setattr(os, at, stopped)
    with pytest.raises((KeyboardInterrupt, files.NotWritten)):
        files.write(path, "after" * 1000)
    assert path.read_text() == "before"
    assert listed(tmp_path) == ["file"]


# --- Errors ---


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "No space left on device. Free some space on that disk (df -h), then try again."),
        (errno.EIO, "Input/output error. Write to another path."),
    ],
)
def test_each_error_is_one_line_with_a_remedy(tmp_path, number, message):
    with pytest.raises(LabError) as raised, files.writing(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert str(raised.value).startswith(f"cannot write {tmp_path}/x: {message}")
    assert "\n" not in str(raised.value)


# --- Files that others made ---


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(path.name)


def a_huge_file(path):
    path.touch()
    os.truncate(path, 10 * 2**30)


ODD_FILES = {
    "a pipe": (os.mkfifo, "not a regular file"),
    "a socket": (a_socket, "not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a terminal": (lambda path: path.symlink_to("/dev/tty"), "not a regular file"),
    "a folder": (Path.mkdir, "Is a directory"),
    "a loop": (lambda path: path.symlink_to(path.name), "Too many levels"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "No such file"),
    "a huge file": (a_huge_file, "more than 64 MiB"),
    "memory": (lambda path: path.symlink_to("/proc/self/mem"), "Input/output error"),
}


@pytest.mark.parametrize(("make", "message"), ODD_FILES.values(), ids=list(ODD_FILES))
def test_anything_but_a_regular_file_is_refused_at_once(tmp_path, monkeypatch, make, message):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x")
    for read in (files.read, files.read_json):
        with pytest.raises(OSError, match=message):
            read(tmp_path / "x")


def test_files_are_read_whole_including_those_in_proc(tmp_path):
    (tmp_path / "x").write_bytes(b"x" * 3_000_000)
    assert files.read(tmp_path / "x") == b"x" * 3_000_000
    assert files.read(Path("/proc/self/stat")).startswith(b"%d " % os.getpid())


# --- Temporary folders ---


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(files, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_a_folder_is_removed_with_its_block(temporary):
    with files.temporary_folder() as folder:
        (folder / "file").touch()
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_a_forked_process_that_leaves_the_block_removes_nothing(temporary):
    with files.temporary_folder() as folder:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert folder.exists()
    if not child:
        os._exit(0)


@pytest.mark.parametrize("prefix", files.RANKS_PREFIXES)
def test_shared_memory_is_removed_for_dead_ranks_only(temporary, prefix):
    (temporary / f"{prefix}dead_0").write_bytes(b"0" * 100)
    with (temporary / f"{prefix}alive_0").open("w+b"), files.temporary_folder() as folder:
        assert sorted(temporary.iterdir()) == sorted([temporary / f"{prefix}alive_0", folder])


@pytest.mark.skipif(os.geteuid() != 0, reason="ANOTHER USER'S SHARED MEMORY NOT TESTED HERE: only root can make it")
def test_another_users_shared_memory_is_left_alone_even_by_root(temporary):
    (temporary / "mpich_shm_other").touch()
    os.chown(temporary / "mpich_shm_other", 65534, 65534)
    with files.temporary_folder():
        assert (temporary / "mpich_shm_other").exists()


def test_a_full_disk_is_a_one_line_error(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(LabError, match=r"cannot make a temporary folder: .*TMPDIR"), files.temporary_folder():
        pass
