"""Notebook kernels: their settings, their sockets, and the registration for Jupyter servers that others run.

Every user of the machine can connect to TCP ports of loopback, which are Jupyter's default. Kernels of `./lab start`
listen on sockets in a folder that only their owner can enter.
"""

import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.system import paths

# The kernel that the students' copies name. Another server's `python3` would open them without a word, and VS Code
# replaces kernels named `python3`, or displayed as Python 3, by a Python of its own choice.
KERNEL = {"name": "cpu-labs", "display_name": "CPU labs", "language": "python"}
SPECS = paths.ENV / "jupyter" / "kernels"
TRANSPORT = "ipc"
# With these, Jupyter reads the kit's settings and kernel, and keeps what is set in JupyterLab's menus: no configuration
# of the user's changes what the labs do.
JUPYTER_VARIABLES = {
    "JUPYTER_CONFIG_DIR": str(paths.STATE / "jupyter"),
    "JUPYTER_CONFIG_PATH": str(paths.ENV / "jupyter"),
    "JUPYTER_PATH": str(paths.ENV / "jupyter"),
}


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a new folder that only this user can enter, and remove it afterwards.

    It is in /tmp, which every machine has on a disk of its own: the path of a socket has 107 characters at most, home
    directories can be long, and some network file systems have no sockets.
    """
    with tempfile.TemporaryDirectory(prefix="lab-kernels-", dir="/tmp") as folder:
        yield Path(folder)


def options(folder: Path) -> dict[str, str]:
    """Return the options of a `KernelManager` whose kernel is reached by sockets in `folder`."""
    return {"transport": TRANSPORT, "connection_file": str(folder / f"kernel-{uuid.uuid4()}.json")}


def register(prefix: Path | None) -> Path:
    """Register the kernel with absolute paths, for this user or in the environment `prefix`; return its folder."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    spec = KernelSpec.from_resource_dir(str(SPECS / KERNEL["name"]))
    spec.argv = [sys.executable, *(argument.replace("{resource_dir}/..", str(SPECS)) for argument in spec.argv[1:])]
    target = {"prefix": str(prefix)} if prefix else {"user": True}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, KERNEL["name"])  # with the modes that the registered one gets
        source.mkdir()
        (source / "kernel.json").write_text(spec.to_json(), encoding="utf-8")
        return Path(KernelSpecManager().install_kernel_spec(str(source), **target))
