"""A pack: how it is made, what is in it, and set-up from it by `./lab setup --from`, with a stand-in for uv."""

import contextlib
import functools
import hashlib
import http.server
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_front_door import Checkout

from labkit import cli
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import pack

# In place of the pack's uv: it notes how it was called, offline or not, and makes what `uv venv` and `uv sync` make.
PACKED_UV = """#!/usr/bin/env bash
echo "${UV_OFFLINE:-online} $*" >>uv-calls
case $1 in
  export) while [[ $1 != -o ]]; do shift; done; echo 'some==1 --hash=sha256:0' >"$2" ;;
  pip) while [[ $1 != -r ]]; do shift; done; cat "$2" >>requirements ;;
  venv)
    mkdir -p "${@: -1}/bin"; : >"${@: -1}/pyvenv.cfg"
    echo "VIRTUAL_ENV='$PWD/${@: -1}'" >"${@: -1}/bin/activate"
    printf '#!/usr/bin/env bash\\necho "labkit $*"\\n' >"${@: -1}/bin/python"
    chmod +x "${@: -1}/bin/python" ;;
  sync) cp .venv/bin/python .venv/bin/labkit ;;
esac
"""
HOROVOD = "wheels/horovod-0.28.1-cp311-cp311-manylinux_2_34_x86_64.whl"


class Packed:
    """A small pack, with a stand-in for uv in it, and a checkout that it fits, on a machine without a compiler."""

    def __init__(self, folder: Path):
        self.checkout = Checkout(folder)
        for tool in ("g++", "make", "uv"):
            (self.checkout.path / tool).unlink()
        for tool in ("tar", "gzip", "rmdir"):
            (self.checkout.path / tool).symlink_to(shutil.which(tool))
        self.folder = folder / "a stick"
        self.add("uv", PACKED_UV)
        self.add("wheels/some-1-py3-none-any.whl", "a wheel" * 1000)
        self.add(HOROVOD, "compiled")
        self.add("data/mnist.npz", "digits")
        self.add("state/loopback-1.so", "library")
        (folder / "python/bin").mkdir(parents=True)
        (folder / "python/bin/python3").write_text("#!/bin/sh\n")
        with tarfile.open(self.folder / "python.tar.gz", "w:gz") as tar:
            tar.add(folder / "python", "python")
        self.add("locks.sha256", "".join(f"{sha256(self.checkout.folder / lock)}  {lock}\n" for lock in pack.LOCKS))
        self.sum_up()

    def add(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def sum_up(self) -> None:
        parts = sorted(part for part in self.folder.rglob("*") if part.is_file() and part.name != pack.SUMS)
        self.add(pack.SUMS, "".join(f"{sha256(part)}  {part.relative_to(self.folder)}\n" for part in parts))

    def set_up(self, source: str | None = None) -> tuple[int, str, str]:
        return self.checkout.run("setup", "--from", source or str(self.folder))

    def calls(self) -> str:
        calls = self.checkout.folder / "uv-calls"
        return calls.read_text() if calls.exists() else ""


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def packed(tmp_path):
    return Packed(tmp_path)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder as `python3 -m http.server` does, and give its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def dripping() -> Iterator[str]:
    """Serve a byte now and then, for ever, and give the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                while not over.wait(0.1):
                    self.wfile.write(b"0")

        def log_message(self, *args):
            pass

    over = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        over.set()
        server.shutdown()


def assert_one_line(done: tuple[int, str, str], *told: str) -> None:
    code, _, err = done
    assert (code, err.count("\n")) == (2, 1), err
    for text in told:
        assert text in err


# Set-up from a pack


def test_a_pack_sets_up_offline_without_a_compiler(packed):
    code, out, err = packed.set_up()
    assert (code, err) == (0, "")
    assert out.endswith(f"labkit setup --from {packed.folder}\n")
    assert {call.split()[0] for call in packed.calls().splitlines()} == {"1"}, "uv was let online"
    installed = [call for call in packed.calls().splitlines() if "pip install" in call]
    assert len(installed) == 2
    assert all("--no-index" in call and "--require-hashes" in call for call in installed)
    assert packed.checkout.run("doctor")[1] == "labkit doctor\n", "it was not set up"


def test_horovod_is_installed_by_the_checksum_that_the_pack_lists(packed):
    packed.set_up()
    requirements = (packed.checkout.folder / "requirements").read_text()
    assert requirements.count(f"horovod==0.28.1 --hash=sha256:{sha256(packed.folder / HOROVOD)}\n") == 1


def test_what_a_pack_brings_is_where_the_kit_looks_for_it(packed):
    packed.set_up()
    for name in ("data/mnist.npz", ".lab/loopback-1.so", ".lab/python/bin/python3", ".lab/uv/bin/uv"):
        assert (packed.checkout.folder / name).is_file(), name


@pytest.mark.parametrize("relative", ["a stick", "../a stick/", "a stick/."])
def test_a_pack_is_found_from_where_the_command_is_typed(packed, relative):
    where = packed.folder.parent / ("kit" if relative.startswith("..") else "")
    process = subprocess.run(
        [packed.checkout.folder / "lab", "setup", f"--from={relative}"],
        cwd=where,
        env={"PATH": str(packed.checkout.path), "HOME": str(where)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr


FETCHERS = pytest.mark.parametrize("fetcher", ["curl", "wget", "python3"])


def use_to_fetch(packed: Packed, fetcher: str) -> None:
    """Have the set-up fetch by this program alone; `python3` is on the machine in any case."""
    program = shutil.which(fetcher)
    if not program:
        pytest.skip(f"PACKS BY {fetcher.upper()} NOT TESTED HERE: there is no {fetcher}")
    if fetcher != "python3":
        (packed.checkout.path / fetcher).symlink_to(program)


@FETCHERS
def test_a_server_that_drips_is_left(packed, fetcher):
    use_to_fetch(packed, fetcher)
    lab = packed.checkout.folder / "lab"
    lab.write_text(lab.read_text().replace("LIST_LIMIT_S=60 ", "LIST_LIMIT_S=1 "))
    with dripping() as address:
        assert_one_line(packed.set_up(address), f"there is no pack at {address}")


@FETCHERS
def test_a_list_without_an_end_is_left(packed, fetcher):
    use_to_fetch(packed, fetcher)
    packed.add(pack.SUMS, "0" * (2 << 20))
    with serving(packed.folder) as address:
        assert_one_line(packed.set_up(address), f"there is no pack at {address}")


@pytest.mark.slow
@FETCHERS
def test_a_pack_comes_from_a_web_server_by_whatever_fetches(packed, fetcher):
    use_to_fetch(packed, fetcher)
    with serving(packed.folder) as address:
        code, _, err = packed.set_up(f"{address}/")
    assert (code, err) == (0, "")
    assert not (packed.checkout.folder / ".lab/pack").exists(), "the fetched pack stayed"


def test_nothing_to_fetch_by_is_told(packed):
    (packed.checkout.path / "python3").unlink()
    assert_one_line(packed.set_up("http://127.0.0.1:1"), "curl, wget or python3", "none is here")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("wheels/some-1-py3-none-any.whl", "truncated"),
        ("python.tar.gz", "altered"),
        ("uv", "missing"),
        ("locks.sha256", "altered"),
    ],
)
@pytest.mark.parametrize("by", ["stick", pytest.param("server", marks=pytest.mark.slow)])
def test_a_damaged_file_is_named_and_nothing_is_installed(packed, name, damage, by):
    file = packed.folder / name
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + b"?")
    if by == "stick":
        assert_one_line(packed.set_up(), f"lab: {name} is damaged or missing")
    else:
        with serving(packed.folder) as address:
            assert_one_line(packed.set_up(address), name, address)
    assert packed.calls() == ""


def test_a_file_that_is_not_listed_is_not_used(packed):
    lines = (packed.folder / pack.SUMS).read_text().splitlines(keepends=True)
    packed.add(pack.SUMS, "".join(line for line in lines if "python.tar.gz" not in line and "data/" not in line))
    assert packed.set_up()[0] == 0
    assert not (packed.checkout.folder / ".lab/python").exists()
    assert not (packed.checkout.folder / "data/mnist.npz").exists()


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "wheels/../../escaped", ".bashrc", "a b", ""])
def test_a_list_that_leads_out_of_the_pack_is_refused(packed, name):
    packed.add(pack.SUMS, (packed.folder / pack.SUMS).read_text() + f"{'0' * 64}  {name}\n")
    for by in ("stick", "server"):
        with serving(packed.folder) as address:
            assert_one_line(packed.set_up(None if by == "stick" else address), "SHA256SUMS", "damaged")
    assert packed.calls() == ""


def test_a_pack_of_other_locks_is_refused(packed):
    with (packed.checkout.folder / "uv.lock").open("a") as lock:
        lock.write("\n")
    assert_one_line(packed.set_up(), "another version of the kit")
    assert packed.calls() == ""


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("nowhere", "there is no folder nowhere"),
        (".", "is not a pack: it has no SHA256SUMS"),
        ("", "--from takes the folder of a pack or its address"),
        ("http://127.0.0.1:1", "there is no pack at http://127.0.0.1:1"),
    ],
)
def test_a_wrong_source_is_told_in_one_line(packed, source, told):
    assert_one_line(packed.checkout.run("setup", f"--from={source}"), told)


def test_a_page_in_place_of_a_pack_is_refused(packed):
    """As of a guest network that answers everything with its own page."""
    packed.add(pack.SUMS, "<html>Welcome to our network</html>\n")
    with serving(packed.folder) as address:
        assert_one_line(packed.set_up(address), "not a pack's")


@pytest.mark.slow
def test_after_a_server_that_went_away_the_next_call_goes_on(packed):
    wheel = packed.folder / "wheels/some-1-py3-none-any.whl"
    kept = wheel.rename(packed.folder / "gone")
    with serving(packed.folder) as address:
        assert_one_line(packed.set_up(address), "did not give wheels/some-1", f"./lab setup --from {address} goes on")
        assert packed.calls() == ""
        (packed.folder / HOROVOD).unlink()  # it was fetched, and must not be again
        kept.rename(wheel)
        assert packed.set_up(address)[0] == 0


def test_start_sh_unpacks_the_kit_and_sets_up(packed, tmp_path):
    home = tmp_path / "a home"
    home.mkdir()
    shutil.copy(paths.ENV / "pack/start.sh", packed.folder)
    with tarfile.open(packed.folder / "kit.tar.gz", "w:gz") as tar:
        tar.add(packed.checkout.folder, pack.KIT)
    packed.sum_up()
    (packed.checkout.path / "sh").symlink_to(shutil.which("sh"))

    def start() -> subprocess.CompletedProcess:
        return subprocess.run(
            [shutil.which("sh"), packed.folder / "start.sh"],
            env={"PATH": str(packed.checkout.path), "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=60,
        )

    (home / pack.KIT / "my-labs").mkdir(parents=True)
    (home / pack.KIT / "my-labs/mine").write_text("work")
    done = start()
    assert done.returncode == 0, done.stderr
    assert (home / pack.KIT / ".venv/bin/labkit").exists()
    assert (home / pack.KIT / "my-labs/mine").read_text() == "work"

    packed.add("kit.tar.gz", "damaged")
    done = start()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "kit.tar.gz is damaged" in done.stderr


# Making a pack


def test_the_wheels_of_both_locks_are_taken_for_this_platform_alone():
    names = [wheel.name for wheel in pack.wheels_of_locks()]
    for part in ("tensorflow_cpu-", "intel_tensorflow-", "mpich-", "jupyterlab-"):
        assert [name for name in names if name.startswith(part)], part
    assert not [name for name in names if re.search("win32|win_amd64|macosx|aarch64|musllinux", name)]


@pytest.fixture
def index(tmp_path):
    """Three wheels on a server, as a lock names them."""
    folder = tmp_path / "index"
    folder.mkdir()
    contents = {f"some{n}-1-py3-none-any.whl": f"wheel {n}".encode() * 100 for n in range(3)}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with serving(folder) as address:
        yield (
            folder,
            [
                pack.Wheel(name, f"{address}/{name}", hashlib.sha256(content).hexdigest(), len(content))
                for name, content in contents.items()
            ],
        )


def test_fetching_goes_on_where_it_stopped(index, tmp_path):
    served, wheels = index
    target = tmp_path / "wheels"
    kept = (served / wheels[1].name).rename(tmp_path / "gone")
    with pytest.raises(LabError, match=f"did not give {wheels[1].name}.*goes on"):
        pack.fetch(wheels, target)
    assert [file.name for file in target.iterdir()] == [wheels[0].name]
    kept.rename(served / wheels[1].name)
    (served / wheels[0].name).unlink()  # it is there, and must not be fetched again
    pack.fetch(wheels, target)
    assert sorted(file.name for file in target.iterdir()) == [wheel.name for wheel in wheels]


def test_an_altered_wheel_is_named_and_not_kept(index, tmp_path):
    served, wheels = index
    (served / wheels[0].name).write_bytes(b"altered")
    with pytest.raises(LabError, match=f"{wheels[0].name} came altered"):
        pack.fetch(wheels, tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


@pytest.fixture
def small(index, monkeypatch):
    """A pack of three wheels and two small parts: nothing is built or fetched from elsewhere."""
    _, wheels = index

    def parts(staging: Path, with_python: bool) -> Iterator[pack._Part]:
        (staging / "kit").write_text("kit")
        yield pack._Part("README.txt", pack.TEMPLATES / "README.txt", "readme")
        yield pack._Part("kit.tar.gz", staging / "kit", "the kit")

    monkeypatch.setattr(pack, "wheels_of_locks", lambda: wheels)
    monkeypatch.setattr(pack, "_parts", parts)
    monkeypatch.setattr(pack, "_check_committed", lambda: None)
    return wheels


def make(monkeypatch, capsys, folder: Path) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["lab", "pack", "--out", str(folder)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    out, err = capsys.readouterr()
    return left.value.code or 0, out, err


def test_a_pack_checks_by_its_own_sums_and_says_its_size(small, monkeypatch, capsys, tmp_path):
    folder = tmp_path / "a pack"
    code, out, _ = make(monkeypatch, capsys, folder)
    assert code == 0
    assert "6 files, 0.00 GB" in out
    done = subprocess.run(["sha256sum", "--check", "--strict", pack.SUMS], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert len(done.stdout.splitlines()) == 5
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in folder.rglob("*")), "not for everybody to read"


def test_packing_again_drops_what_is_no_longer_locked_and_keeps_the_rest(small, monkeypatch, capsys, tmp_path):
    make(monkeypatch, capsys, tmp_path / "pack")
    (tmp_path / "pack/wheels/old-1-py3-none-any.whl").write_text("old")
    (tmp_path / "pack/slides.pdf").write_text("the instructor's")
    assert make(monkeypatch, capsys, tmp_path / "pack")[0] == 0
    assert not (tmp_path / "pack/wheels/old-1-py3-none-any.whl").exists()
    assert (tmp_path / "pack/slides.pdf").exists()


def test_an_unfinished_pack_has_no_sums(small, monkeypatch, capsys, tmp_path):
    make(monkeypatch, capsys, tmp_path / "pack")

    def fail(*_):
        raise LabError("cannot fetch uv: no network.")

    monkeypatch.setattr(pack, "_parts", fail)
    assert_one_line(make(monkeypatch, capsys, tmp_path / "pack"), "cannot fetch uv")
    assert not (tmp_path / "pack" / pack.SUMS).exists()


def test_a_folder_with_other_files_is_left_alone(small, monkeypatch, capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis").write_text("mine")
    assert_one_line(make(monkeypatch, capsys, tmp_path / "mine"), "has other files in it")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis"]


def test_a_place_that_cannot_be_written_is_told(small, monkeypatch, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_line(make(monkeypatch, capsys, tmp_path / "file/pack"), "cannot write", "--out")


def test_too_little_space_is_told_before_anything_is_fetched(small, monkeypatch, capsys, tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(pack.shutil, "disk_usage", lambda _: usage)
    assert_one_line(make(monkeypatch, capsys, tmp_path / "pack"), "0.0 GB free", "needs 0.2 GB more")
    assert list((tmp_path / "pack/wheels").iterdir()) == []


def test_horovods_wheel_names_the_glibc_that_it_needs():
    assert pack.needed_glibc(b"x\0GLIBC_2.9\0GLIBCXX_3.4.30\0GLIBC_2.34\0GLIBC_2.2.5\0") == (2, 34)
