"""PyTorch on ranks: whether it is installed, and the environment for `torch.distributed`."""

import os
from importlib import machinery, metadata
from pathlib import Path

from labkit.mpi import loopback
from labkit.system import addresses, compiler, lacks, paths
from labkit.system.errors import LabError

FOLDER = paths.ENV / "torch"  # where `lab setup --torch` installs PyTorch
REQUIREMENTS = "requirements.txt"  # in FOLDER, what to install; in packages(), what is installed


def version() -> str:
    """Return PyTorch's version, such as "2.13.0+cpu"; empty if it is not installed."""
    return next((package.version for package in metadata.distributions(name="torch", path=[str(packages())])), "")


def obstacle() -> str:
    """Return one line on why scripts with PyTorch can't run here and what to do; empty if they can."""
    if reason := lacks.reason("torch"):
        return reason
    installed = packages() / REQUIREMENTS
    if not installed.exists():
        return "PyTorch is not installed. To install it (1 GB): ./lab setup --torch"
    if installed.read_bytes() != (FOLDER / REQUIREMENTS).read_bytes():
        return f"PyTorch {version()} is out of date. To update it (1 GB): ./lab setup --torch"
    if not (packages() / f"torch/_C{machinery.EXTENSION_SUFFIXES[0]}").exists():
        return f"PyTorch {version()} is for another Python. To install the right one (1 GB): ./lab setup --torch"
    return ""


def variables() -> dict[str, str]:
    """Return the variables with which `init_process_group("gloo")` needs no further arguments; `rank_runner` adds two.

    Ranks use, and listen on, loopback only.

    Raises
    ------
    LabError
        If PyTorch is not installed, or would listen where other machines can connect.
    """
    if reason := obstacle():
        raise LabError(reason)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(packages()), os.environ.get("PYTHONPATH")])),
        "MASTER_ADDR": addresses.LOOPBACK,
        "MASTER_PORT": str(addresses.free_ports(1)[0]),
        "GLOO_SOCKET_IFNAME": "lo",
        **_stay_on_loopback(),
    }


def packages() -> Path:
    """Return the folder with PyTorch, for PYTHONPATH."""
    return FOLDER / "packages"


def _stay_on_loopback() -> dict[str, str]:
    """Return the variable that makes ranks preload the library that keeps PyTorch's store on loopback."""
    library = loopback.library()
    if library is None or " " in str(library) or os.pathsep in str(library):
        raise LabError(
            "PyTorch's ranks did not start: without g++, or with a space or colon in the kit's path, other machines "
            "could connect to them. Install g++, or move the kit."
        )
    return compiler.preload(str(library), os.environ)
