"""Notebook kernels: settings, variables, sockets, and the registration for Jupyter servers that others run.

By default, Jupyter uses TCP ports on loopback, and every user of the machine can connect to those. Kernels of
`./lab start` listen on sockets in a folder that only their owner can enter.
"""

import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from labkit.system import paths

# The kernel that students' copies name. Another server would silently open them with its own `python3`, and VS Code
# replaces kernels named `python3`, or displayed as Python 3, with a Python of its choice.
KERNEL = {"name": "cpu-labs", "display_name": "CPU labs", "language": "python"}
SPECS = paths.ENV / "jupyter" / "kernels"
TRANSPORT = "ipc"
RULES = paths.ENV / "variables.txt"  # the script `lab` reads the same file
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# With these, Jupyter uses the kit's settings and kernel, and stores settings made in JupyterLab's menus; the user's own
# configuration does not affect the labs.
JUPYTER_VARIABLES = {
    "JUPYTER_CONFIG_DIR": str(paths.STATE / "jupyter"),
    "JUPYTER_CONFIG_PATH": str(paths.ENV / "jupyter"),
    "JUPYTER_PATH": str(paths.ENV / "jupyter"),
}


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a new folder that only this user can enter, and remove it afterwards.

    It is in /tmp, which is on a local disk: a socket's path has at most 107 characters, home directories can have
    long paths, and some network file systems do not support sockets. Where /tmp is read-only, TMPDIR names the folder.
    """
    place = "/tmp" if os.access("/tmp", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lab-kernels-", dir=place) as folder:
        yield Path(folder)


@contextmanager
def without_proxies() -> Iterator[None]:
    """Hide the user's proxies in the block: as it is imported, JupyterLab fails on forms that curl and uv accept."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.lower() in PROXIES}
    try:
        yield
    finally:
        os.environ.update(hidden)


def options(folder: Path) -> dict[str, str]:
    """Return the options of a `KernelManager` whose kernel uses sockets in `folder`."""
    return {"transport": TRANSPORT, "connection_file": str(folder / f"kernel-{uuid.uuid4()}.json")}


def settle_environment(environ: MutableMapping[str, str]) -> list[str]:
    """Clear and set variables by the kit's rules, for kernels that `./lab` did not start.

    Return the names of cleared variables that would have changed results.
    """
    lines = RULES.read_text(encoding="utf-8").splitlines()
    rules = [(line[0], line[2:].replace("{kit}", str(paths.ROOT))) for line in lines if line[:1] in {*"+-!="}]
    settings = dict(rule.split("=", 1) for mark, rule in rules if mark == "=")
    cleared = []
    for name in sorted(environ):
        both = (name, f"{name}={environ[name]}")
        mark = next((mark for mark, rule in rules if any(fnmatchcase(text, rule) for text in both)), "+")
        if mark == "!":
            cleared.append(name)
        if mark in "-!":
            del environ[name]
    environ.update(settings)
    return cleared


def register(prefix: Path | None) -> Path:
    """Register the kernel with absolute paths, for this user or in the environment `prefix`; return its folder."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    spec = KernelSpec.from_resource_dir(str(SPECS / KERNEL["name"]))
    spec.argv = [sys.executable, *(argument.replace("{resource_dir}/..", str(SPECS)) for argument in spec.argv[1:])]
    target = {"prefix": str(prefix)} if prefix else {"user": True}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, KERNEL["name"])  # with the modes that the registered kernel gets
        source.mkdir()
        (source / "kernel.json").write_text(spec.to_json(), encoding="utf-8")
        return Path(KernelSpecManager().install_kernel_spec(str(source), **target))
