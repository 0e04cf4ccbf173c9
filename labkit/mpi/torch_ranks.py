"""PyTorch on ranks: whether it is installed, the environment for `torch.distributed`, and torchrun."""

import os
import sys
from importlib import machinery, metadata
from pathlib import Path

from labkit.mpi import loopback
from labkit.system import addresses, compiler, cores, lacks, paths, processes
from labkit.system.errors import LabError
from labkit.testbed import Testbed

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


def variables(testbed: Testbed | None = None) -> dict[str, str]:
    """Return the variables with which `init_process_group("gloo")` needs no further arguments; `rank_runner` adds two.

    Parameters
    ----------
    testbed : Testbed, optional
        The nodes that the ranks run on. By default they use, and listen on, loopback only.

    Raises
    ------
    LabError
        If PyTorch is not installed, or would listen where other machines can connect.
    """
    if reason := obstacle():
        raise LabError(reason)
    address, interface = (testbed.nodes[0].address, testbed.interface) if testbed else (addresses.LOOPBACK, "lo")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(packages()), os.environ.get("PYTHONPATH")])),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(addresses.free_ports(1)[0]),
        "GLOO_SOCKET_IFNAME": interface,
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns about addresses without names, such as a testbed's
        **({} if testbed else _stay_on_loopback()),
    }


def torchrun(ranks: int, script: str | Path, *args: object, timeout: float = 120.0) -> processes.Completed:
    """Run a script with torchrun as in a terminal, without OMP_NUM_THREADS, but listening on loopback only.

    Raise LabError as `variables` does, and if the run fails.
    """
    environ = variables()
    master = f"--master-addr={environ['MASTER_ADDR']}", f"--master-port={environ['MASTER_PORT']}"
    # The ranks share one pipe. torchrun starts Python unbuffered, which would mix their lines. It doesn't inherit
    # the preloaded library, which removes itself from LD_PRELOAD (labkit/mpi/loopback.c).
    program = ["--no-python", "env", f"LD_PRELOAD={environ['LD_PRELOAD']}", sys.executable, script, *args]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *master, *program]
    with cores.reserve():
        env = environ | {"OMP_NUM_THREADS": None, "PYTHONUNBUFFERED": None}
        done = processes.run([str(part) for part in command], env, timeout=timeout, separate_errors=True)
    if done.failure:
        raise LabError("\n  ".join([f"torchrun: {done.failure}", *done.errors[:30]]))
    return done


def packages() -> Path:
    """Return the folder with PyTorch, for PYTHONPATH."""
    return FOLDER / "packages"


def _stay_on_loopback() -> dict[str, str]:
    """Return the variable that makes ranks preload the library that keeps PyTorch's store on loopback."""
    library = loopback.library()
    if library is None or " " in str(library) or os.pathsep in str(library):
        raise LabError(
            "PyTorch's ranks would be open to other machines: keeping them on loopback needs g++, and a checkout whose "
            "path has no space or colon. On a testbed they need neither."
        )
    return compiler.preload(str(library), os.environ)
