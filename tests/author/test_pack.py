"""Building a pack, and set-up from it with `./lab setup --from`, with a stub for uv."""

import shutil
import subprocess
import sys
import tarfile

import pytest
from test_cli import run
from test_front_door import UV, Checkout, assert_one_line

from labkit_author import pack

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("git"), reason="building a pack needs git")]


def stub(patch, folder):
    """Stub the set-up for the pack, and pretend that all files are committed."""

    def set_up(kit, with_python):
        for name in ("uv/bin/uv", "cache/wheel", *["pythons/cpython-3.11/python"] * with_python):
            (kit / ".lab" / name).parent.mkdir(parents=True)
            (kit / ".lab" / name).write_text(UV)
            (kit / ".lab" / name).chmod(0o755)

    real = pack._run
    patch.setattr(pack, "_run", lambda *command: () if "status" in command else real(*command))
    patch.setattr(pack, "_set_up", set_up)
    patch.setattr(pack, "BUILD", folder / "build")


@pytest.fixture
def stubbed(monkeypatch, tmp_path):
    stub(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        stub(patch, folder)
        pack.make(folder / "pack")
    return folder / "pack"


@pytest.fixture
def packed(made, tmp_path):
    """A pack on a USB stick."""
    return shutil.copytree(made, tmp_path / "a stick")


@pytest.fixture
def laptop(tmp_path):
    """A checkout that matches the pack, on a machine without uv and without a compiler."""
    checkout = Checkout(tmp_path)
    for tool in ("g++", "make", "uv"):
        (checkout.path / tool).unlink()
    return checkout


def make(monkeypatch, capsys, folder) -> tuple[int, str, str]:
    return run(monkeypatch, "pack", "--out", str(folder)), *capsys.readouterr()


# Set-up from a pack


def test_a_pack_for_another_cpu_type_is_refused(packed, laptop):
    laptop.program("uname", "#!/bin/sh\n[ $1 = -m ] && echo aarch64 || echo Linux aarch64\n")
    laptop.program("tar", f'#!/bin/sh\n{shutil.which("tar")} "$@" && echo not for here >.lab/uv/bin/uv\n')
    code, _, err = laptop.run("setup", "--from", str(packed))
    assert code == 2
    assert err == "lab: the pack's programs don't run on aarch64: create a pack on such a machine (./lab pack).\n"


def test_a_pack_sets_up_offline_without_a_compiler(packed, laptop):
    code, out, err = laptop.run("setup", "--from", str(packed))
    assert (code, err) == (0, "")
    assert out.endswith(f"labkit setup --from {packed}\n")
    assert {call.split()[0] for call in laptop.read("uv-calls").splitlines()} == {"1"}, "uv was allowed online"
    assert sorted(laptop.made()) == ["horovod", "packages"]
    assert (laptop.folder / ".lab/pythons/cpython-3.11/python").exists()
    assert not (laptop.folder / ".lab/cache").exists(), "the cache wastes space"
    assert laptop.run("doctor")[1] == "labkit doctor\n", "the kit was not set up"


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_file_is_named_and_nothing_is_installed(packed, laptop, damage):
    file = packed / "packages.tar.gz"
    content = file.read_bytes()
    file.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + b"?")
    if damage == "missing":
        file.unlink()
    code, _, err = laptop.run("setup", "--from", str(packed))
    assert code == 2
    assert "packages.tar.gz: FAILED" in err
    assert "The pack is damaged: copy it again." in err
    assert laptop.read("uv-calls") == ""


def test_a_pack_with_other_locks_is_refused(packed, laptop):
    with (laptop.folder / "uv.lock").open("a") as lock:
        lock.write("\n")
    assert_one_line(laptop.run("setup", "--from", str(packed)), "for another version of the kit")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "there is no folder nowhere"),
        (".", "is not a pack: it has no SHA256SUMS"),
        ("", "--from needs the folder of a pack"),
        (
            "http://192.0.2.1:8000",
            "copy the pack to a folder first: README.txt at http://192.0.2.1:8000 has the command",
        ),
    ],
)
def test_a_wrong_source_is_reported_in_one_line(laptop, source, message):
    assert_one_line(laptop.run("setup", f"--from={source}"), message)


# Building a pack


def test_a_pack_contains_the_committed_kit_and_valid_checksums(stubbed, monkeypatch, capsys, tmp_path):
    folder = tmp_path / "pack"
    for _ in range(2):  # the second replaces the first
        code, out, _ = make(monkeypatch, capsys, folder)
        assert code == 0
        assert "5 files, 0.0" in out
    done = subprocess.run(["sha256sum", "--check", "--strict", pack.SUMS], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stdout.count(": OK")) == (0, 4)
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in folder.iterdir()), "not readable for all"
    with tarfile.open(folder / "kit.tar.gz") as kit:
        assert f"{pack.KIT}/lab" in kit.getnames()
    assert not pack.BUILD.exists()


def test_python_can_be_left_out(stubbed, tmp_path):
    pack.make(tmp_path / "pack", with_python=False)
    with tarfile.open(tmp_path / "pack/packages.tar.gz") as packages:
        assert ".lab/uv/bin/uv" in packages.getnames()
        version = packages.extractfile(".python-version").read().decode()
        assert sys.version.startswith(f"{version.strip()}."), "the wheels are for this Python"
        assert ".lab/pythons/cpython-3.11" not in packages.getnames()


def test_an_unfinished_pack_has_no_checksums(packed, stubbed, monkeypatch, capsys):
    monkeypatch.setattr(pack, "_set_up", lambda *_: (_ for _ in ()).throw(pack.LabError("the set-up failed.")))
    assert_one_line(make(monkeypatch, capsys, packed), "the set-up failed")
    assert not (packed / pack.SUMS).exists()


def test_a_folder_with_other_files_is_left_alone(stubbed, monkeypatch, capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis").write_text("mine")
    assert_one_line(make(monkeypatch, capsys, tmp_path / "mine"), "contains other files")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis"]


def test_too_little_space_is_reported_before_building(stubbed, monkeypatch, capsys, tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(pack.shutil, "disk_usage", lambda _: usage)
    assert_one_line(make(monkeypatch, capsys, tmp_path / "pack"), "0.0 GB free, but needs 2 GB")
    assert not pack.BUILD.exists()


def test_uncommitted_changes_are_refused(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(pack, "_run", lambda *command: (" M lab",))
    assert_one_line(make(monkeypatch, capsys, tmp_path / "pack"), "git commit or git stash")
