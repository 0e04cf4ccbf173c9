"""Notebook kernels that listen on sockets in a folder that only their owner can enter.

Every user of the machine can connect to TCP ports of loopback, which are Jupyter's default.
"""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.system import paths

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
