"""The pack: all that laptops need to set up without a network, in one folder for a stick or a web server.

A pack has the kit, uv, Python, the wheels of both locks, Horovod as it was compiled here, and MNIST where it was
fetched; `./lab setup --from` (in the script `lab`) sets up from it. Debian's packages are not in it.

The wheels are fetched by pooch, from the addresses in the locks, and not by `pip download`. pip (26.3) brings one
wheel of each package, the one that fits this machine best; laptops with an older glibc need the others that are locked.
It saves all files at the end: a download of 1.1 GB that breaks off leaves nothing to go on from. It doesn't know how
much space that takes, and the environments have no pip. uv (0.13) has no such command.
"""

import contextlib
import hashlib
import importlib.metadata
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging import tags, utils

from labkit.data import mnist
from labkit.mpi import loopback
from labkit.system import files, paths, processes, programs
from labkit.system.errors import LabError

# pooch, requests and Rich are imported where they are used, as elsewhere.

WHEEL_LOCKS = ("uv.lock", "env/openmp/uv.lock")
LOCKS = (*WHEEL_LOCKS, "env/uv.txt")
SUMS = "SHA256SUMS"  # the file that is written last: a folder without it is not a pack yet
TEMPLATES = paths.ENV / "pack"
KIT = "cpu-labs"  # the folder that a student gets
OTHERS_BYTES = 200 * 2**20  # the size of all that is not a wheel of the locks, at most
MAX_SILENCE_S = 60.0  # the time that a registry has to send its next bytes
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


class Wheel(NamedTuple):
    """A file of a lock."""

    name: str
    url: str
    sha256: str
    size: int  # bytes


class Pack(NamedTuple):
    """A pack that was made."""

    n_files: int
    size: int  # bytes


def make(folder: Path, on_part: Callable[[str], None], with_python: bool = True) -> Pack:
    """Make a pack, or go on with one that was begun: wheels that are there and intact are not fetched again.

    Parameters
    ----------
    folder : Path
        A folder that is new, empty, or has a pack in it.
    on_part : callable
        The function that gets a line about each part as it is done.
    with_python : bool
        Whether to bring uv's own Python. Without, each laptop needs a Python of the kit's version.

    Raises
    ------
    LabError
        When the folder cannot be written, a part cannot be had, or there are changes that are not committed.
    """
    _check_committed()
    wheels = wheels_of_locks()
    with files.writing(folder, "name another folder with --out"):
        _begin(folder)
        _check_space(folder, wheels)
    fetch(wheels, folder / "wheels")
    on_part(f"{len(wheels)} wheels of both environments")
    with files.writing(folder), tempfile.TemporaryDirectory(prefix="pack-", dir=paths.STATE) as staging:
        parts = [f"wheels/{wheel.name}" for wheel in wheels]
        for part in _parts(Path(staging), with_python):
            target = folder / part.name
            _copy(part.file, target)
            parts.append(part.name)
            on_part(f"{part.name}: {part.what}")
        _delete_others(folder / "wheels", {Path(part).name for part in parts})
        _let_read(folder, parts)
        sums = "".join(f"{_sha256(folder / part)}  {part}\n" for part in sorted(parts))
        files.write(folder / SUMS, sums)
    return Pack(len(parts) + 1, sum((folder / part).stat().st_size for part in [*parts, SUMS]))


def wheels_of_locks() -> list[Wheel]:
    """Return the wheels of both locks that install on this Python and platform, by name.

    Of a package with several all are taken, and each of its locked versions: laptops have other glibcs and other
    patch releases of Python.
    """
    fitting = frozenset(tags.sys_tags())
    wheels = {}
    for lock in WHEEL_LOCKS:
        for package in tomllib.loads((paths.ROOT / lock).read_text())["package"]:
            for entry in package.get("wheels", []):
                name = unquote(Path(urlsplit(entry["url"]).path).name)
                if fitting & utils.parse_wheel_filename(name)[3]:
                    wheels[name] = Wheel(name, entry["url"], entry["hash"].removeprefix("sha256:"), entry["size"])
    return [wheels[name] for name in sorted(wheels)]


def fetch(wheels: Collection[Wheel], folder: Path) -> None:
    """Bring wheels into a folder, each whole and as locked or not at all; those that are there stay.

    Raises
    ------
    LabError
        When one cannot be fetched, or is another than the lock's.
    """
    import pooch
    import requests
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    pooch.get_logger().setLevel("WARNING")  # the progress bar says it already
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    goes_on = "The same command goes on from there"
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("wheels", total=sum(wheel.size for wheel in wheels))
        for wheel in wheels:
            progress.update(task, description=wheel.name.partition("-")[0])
            downloader = pooch.HTTPDownloader(timeout=MAX_SILENCE_S)
            try:
                pooch.retrieve(wheel.url, f"sha256:{wheel.sha256}", wheel.name, folder, downloader=downloader)
            except requests.RequestException as error:
                host = urlsplit(wheel.url).netloc
                raise LabError(f"{host} did not give {wheel.name}: is there a network? {goes_on}.") from error
            except ValueError as error:  # pooch's word for another SHA-256
                raise LabError(f"{wheel.name} came altered: it is not what uv.lock names. {goes_on}.") from error
            except OSError as error:
                raise files.NotWritten(files.describe_error(error, f"cannot write {folder / wheel.name}")) from error
            progress.advance(task, wheel.size)


class _Part(NamedTuple):
    name: str  # in the pack
    file: Path
    what: str


def _parts(staging: Path, with_python: bool) -> Iterator[_Part]:
    """Make the parts of a pack that are not wheels of the locks."""
    yield _Part("README.txt", TEMPLATES / "README.txt", "the commands for students, and how to serve this folder")
    yield _Part("start.sh", TEMPLATES / "start.sh", "unpacks the kit and sets up")
    yield _Part("kit.tar.gz", _kit(staging), "the kit, as committed")
    yield _Part("locks.sha256", _locks(staging), "which versions this pack is for")
    yield _Part("uv", _uv(staging), "installs")
    if with_python:
        yield _Part("python.tar.gz", _python(staging), f"Python {PYTHON_VERSION}")
    horovod = _horovod(staging)
    yield _Part(f"wheels/{horovod.name}", horovod, "Horovod, as compiled here")
    if library := loopback.library(staging):
        yield _Part(f"state/{library.name}", library, "keeps mpirun's ports closed where there is no compiler")
    for file in _data():
        yield _Part(f"data/{file.name}", file, "MNIST")


def _begin(folder: Path) -> None:
    ours = (folder / "README.txt").is_file() and _title(folder / "README.txt") == _title(TEMPLATES / "README.txt")
    if folder.is_dir() and any(folder.iterdir()) and not ours:
        raise LabError(f"{folder} has other files in it: name a new or an empty folder with --out.")
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    _copy(TEMPLATES / "README.txt", folder / "README.txt")
    (folder / SUMS).unlink(missing_ok=True)


def _title(readme: Path) -> str:
    return readme.read_text(errors="replace").partition("\n")[0]


def _check_space(folder: Path, wheels: Iterable[Wheel]) -> None:
    there = folder / "wheels"
    missing = sum(wheel.size for wheel in wheels if not (there / wheel.name).is_file()) + OTHERS_BYTES
    free = shutil.disk_usage(folder).free
    if free < missing:
        raise LabError(f"{folder} has {free / 1e9:.1f} GB free and the pack needs {missing / 1e9:.1f} GB more.")


def _check_committed() -> None:
    changed = _run("the kit is packed from its git checkout", "git", "-C", paths.ROOT, "status", "-s", "-uno")
    if changed:
        raise LabError(
            f"a pack has what is committed, and {len(changed)} files here have changes: git commit or git stash them."
        )


def _kit(staging: Path) -> Path:
    archive = staging / "kit.tar.gz"
    arguments = ("archive", "--format=tar.gz", f"--prefix={KIT}/", f"--output={archive}", "HEAD")
    _run("cannot pack the kit", "git", "-C", paths.ROOT, *arguments)
    return archive


def _locks(staging: Path) -> Path:
    file = staging / "locks.sha256"
    file.write_text("".join(f"{_sha256(paths.ROOT / lock)}  {lock}\n" for lock in LOCKS))
    return file


def _uv(staging: Path) -> Path:
    pinned = ("--require-hashes", "--no-deps", "-r", paths.ENV / "uv.txt")
    _run("cannot fetch uv", programs.uv(), "pip", "install", "--target", staging / "uv", *pinned)
    return staging / "uv" / "bin" / "uv"


def _python(staging: Path) -> Path:
    """Return the archive of the Python that uv brings: it runs from any folder."""
    remedy = "Set UV_PYTHON_INSTALL_MIRROR, or pack --no-python: then each laptop needs a Python of its own"
    command = (programs.uv(), "python", "install", PYTHON_VERSION, "--no-bin", "--install-dir", staging / "python")
    _run("cannot fetch Python", *command, remedy=remedy)
    (installed,) = (each for each in (staging / "python").glob("cpython-*") if not each.is_symlink())
    archive = staging / "python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        tar.add(installed, "python")
    return archive


def _horovod(staging: Path) -> Path:
    """Return a wheel of the Horovod that is installed here, tagged with the glibc that it needs."""
    installed = importlib.metadata.distribution("horovod")
    unpacked = staging / "horovod"
    glibc = (0, 0)
    for file in installed.files or ():
        if ".." in file.parts or file.suffix == ".pyc" or file.name in {"INSTALLER", "REQUESTED", "uv_build.json"}:
            continue  # made by the installer
        source, target = Path(str(installed.locate_file(file))), unpacked / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        if file.suffix == ".so":
            glibc = max(glibc, needed_glibc(source.read_bytes()))
    (wheel,) = unpacked.glob("*.dist-info/WHEEL")
    wheel.write_text(wheel.read_text().replace("-linux_", f"-manylinux_{glibc[0]}_{glibc[1]}_"))
    _run("cannot pack Horovod", sys.executable, "-m", "wheel", "pack", unpacked, "--dest-dir", staging)
    (packed,) = staging.glob("horovod-*.whl")
    return packed


def needed_glibc(library: bytes) -> tuple[int, int]:
    """Return the version of glibc that a shared library needs: the newest of those its symbols are bound to."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library)
    return max((int(major), int(minor)) for major, minor in versions)


def _data() -> list[Path]:
    folder, file = mnist.data_folder(None), mnist.read_registry(mnist.REGISTRY)
    return [folder / file.name] if mnist.is_intact(folder, file) else []


def _run(failing: str, *command: str | Path, remedy: str = "") -> tuple[str, ...]:
    """Return the output of a command; its environment is the kit's, but no variable tells uv of another one."""
    ended = processes.run(command, env={"VIRTUAL_ENV": None}, timeout=600.0)
    if ended.failure:
        said = next((line.strip() for line in reversed(ended.lines) if line.strip()), ended.failure)
        raise LabError(f"{failing}: {said.rstrip('.')}. {remedy}".rstrip(". ") + ".")
    return ended.lines


def _copy(source: Path, target: Path) -> None:
    """Copy a file, whole or not at all."""
    target.parent.mkdir(exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _let_read(folder: Path, parts: Iterable[str]) -> None:
    """Let everybody read a pack, whatever the umask: the server may run, and the stick be read, by somebody else."""
    with contextlib.suppress(PermissionError):  # a stick's file system has no modes
        for place in {folder, *((folder / part).parent for part in parts)}:
            place.chmod(0o755)
        for part in parts:
            (folder / part).chmod(0o644)


def _delete_others(folder: Path, wanted: Collection[str]) -> None:
    for file in folder.iterdir():
        if file.name not in wanted:
            file.unlink()


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
