"""Build a pack: everything laptops need to set up offline, in one folder for a USB stick or a web server.

To build it, the kit is set up again in a separate folder. The pack contains uv's cache of that set-up, uv, and Python;
`./lab setup --from` (in the script `lab`) unpacks them and sets up as usual, but offline: nothing is downloaded, and
Horovod is not compiled. Debian packages are not included.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from labkit.data import mnist
from labkit.mpi import loopback
from labkit.system import files, paths, processes
from labkit.system.errors import LabError

LOCKS = ("uv.lock", "env/uv.txt")
PYTHON = ".python-version"  # read by uv: a pack has the wheels for one Python version
NOT_INHERITED = ("VIRTUAL_ENV", "UV_PYTHON")  # variables that must not reach the kit that is packed
SUMS = "SHA256SUMS"  # written last: a folder without it is not a complete pack
README = paths.ENV / "pack" / "README.txt"
KIT = "cpu-labs"  # the students' folder
BUILD = paths.STATE / "pack"  # the set-up that is packed; it stays until the pack is complete, so that it can resume
BUILD_BYTES, PACK_BYTES = 6 * 10**9, 2 * 10**9  # upper bounds of the space they need


class Pack(NamedTuple):
    """A finished pack."""

    n_files: int
    size: int  # bytes


def make(folder: Path, with_python: bool = True) -> Pack:
    """Build a pack, replacing an earlier one.

    Parameters
    ----------
    folder : Path
        A folder that is new, empty, or contains a pack.
    with_python : bool
        Whether to include uv's Python, of this kit's version. Otherwise each laptop needs that version.

    Raises
    ------
    LabError
        If the folder is not writable, the set-up fails, or there are uncommitted changes.
    """
    parts = [folder / name for name in (README.name, "kit.tar.gz", "locks.sha256", "packages.tar.gz")]
    readme, kit, locks, packages = parts
    with files.writing(folder, "name another folder with --out"):
        if folder.is_dir() and any(folder.iterdir()) and not readme.is_file():
            raise LabError(f"{folder} contains other files: name a new or an empty folder with --out.")
        folder.mkdir(parents=True, exist_ok=True)
        _check_space(folder, PACK_BYTES)
        shutil.copyfile(README, readme)
        (folder / SUMS).unlink(missing_ok=True)
    if _run("git", "status", "-s", "-uno"):
        raise LabError("a pack contains only committed files, and some have changes: git commit or git stash them.")
    set_up = BUILD / KIT
    _check_space(paths.STATE, 0 if set_up.exists() else BUILD_BYTES)
    _run("git", "archive", "--format=tar.gz", f"--prefix={KIT}/", f"--output={kit.absolute()}", "HEAD")
    with tarfile.open(kit) as archive:
        archive.extractall(BUILD, filter="data")
    (set_up / PYTHON).write_text(f"{sys.version_info.major}.{sys.version_info.minor}\n", encoding="utf-8")
    _set_up(set_up, with_python)
    with files.writing(folder):
        locks.write_text("".join(f"{_sha256(paths.ROOT / lock)}  {lock}\n" for lock in LOCKS), encoding="utf-8")
        print("Packing 3 GB takes a minute or two", flush=True)
        with tarfile.open(packages, "w:gz", compresslevel=4) as archive:
            for name in _contents(set_up):
                archive.add(set_up / name, name)
        files.write(folder / SUMS, "".join(f"{_sha256(part)}  {part.name}\n" for part in parts))
        _let_read([folder, *parts, folder / SUMS])
    shutil.rmtree(BUILD)
    return Pack(len(parts) + 1, sum(part.stat().st_size for part in [*parts, folder / SUMS]))


def _set_up(kit: Path, with_python: bool) -> None:
    """Set up a kit with this kit's uv, a separate cache, and the packages for teaching."""
    (kit / ".lab/uv/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(processes.uv(), kit / ".lab/uv/bin/uv")
    variables = {"UV_CACHE_DIR": str(kit / ".lab/cache")}
    if with_python:
        places = {"UV_PYTHON_PREFERENCE": "only-managed", "UV_PYTHON_INSTALL_DIR": str(kit / ".lab/pythons")}
        variables |= places
    command = [str(kit / "lab"), "setup", "--classroom"]
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    if subprocess.run(command, env=inherited | variables).returncode:
        remedy = " Without Python: --no-python." if with_python else ""
        raise LabError(f"the set-up for the pack failed; the same command resumes.{remedy}")


def _contents(kit: Path) -> list[str]:
    """Return the paths, relative to a kit that is set up, that another kit needs to set up offline."""
    state, folder, file = kit / ".lab", mnist.data_folder(None), mnist.read_registry(mnist.REGISTRY)
    if mnist.is_intact(folder, file):
        shutil.copy(folder / file.name, kit / "data")
    if library := loopback.library(BUILD):  # keeps mpirun's ports closed on machines without a compiler
        shutil.copy(library, state)
    pythons = (python for python in state.glob("pythons/cpython-*") if not python.is_symlink())
    files_of_kit = (kit / PYTHON, kit / "data" / file.name)
    parts = [*files_of_kit, state / "uv/bin/uv", state / "cache", *pythons, *state.glob("*.so")]
    return [str(part.relative_to(kit)) for part in parts if part.exists()]


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise LabError(f"{folder} has {free / 1e9:.1f} GB free, but needs {needed / 1e9:.0f} GB: free some space.")


def _run(*command: str) -> tuple[str, ...]:
    """Return the output of a command that runs in the kit's folder and environment."""
    ended = processes.run(command, env={"VIRTUAL_ENV": None}, cwd=paths.ROOT, timeout=600.0)
    if ended.failure:
        raise LabError(f"{Path(command[0]).name} failed: {' '.join(ended.lines[-1:]) or ended.failure}")
    return ended.lines


def _let_read(places: Iterable[Path]) -> None:
    """Let all accounts read a pack, whatever the umask: another account may serve it, or read the stick."""
    with contextlib.suppress(PermissionError):  # a stick's file system has no modes
        for place in places:
            place.chmod(0o755 if place.is_dir() else 0o644)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
