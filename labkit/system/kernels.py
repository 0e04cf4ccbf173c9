"""Notebook kernels that listen on sockets in a folder that only their owner can enter.

Every user of the machine can connect to TCP ports of loopback, which are Jupyter's default.
"""

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from labkit.system import paths

TRANSPORT = "ipc"


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


def settings_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have Jupyter find this kit's settings and kernel, and none of its user's settings."""
    own = str(paths.ENV / "jupyter")
    return {
        "JUPYTER_CONFIG_DIR": str(paths.STATE / "jupyter"),  # and what is set in JupyterLab, such as its theme
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, (own, environ.get("JUPYTER_CONFIG_PATH")))),
        "JUPYTER_PATH": os.pathsep.join(filter(None, (environ.get("JUPYTER_PATH"), own))),  # a user's own come first
    }
