"""PyTorch on ranks: whether it is installed, and where its ranks listen."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_error import error_of
from listening import beyond_loopback, listeners_marked
from torch_folder import torch_folder

from labkit.mpi import run_ranks, torch_ranks
from labkit.system import compiler
from labkit.system.errors import LabError

# --- Without PyTorch ---


def fake_pytorch(monkeypatch, folder: Path, installed: str | None = "2.13.0+cpu") -> Path:
    """Install a fake PyTorch; return the folder of its packages."""
    monkeypatch.setattr(torch_ranks, "FOLDER", torch_folder(folder, wanted="2.13.0+cpu", installed=installed))
    monkeypatch.setattr(compiler, "STATE", folder / "state")  # in a checkout whose path has a space, ranks don't start
    return folder / "packages"


@pytest.mark.parametrize(
    ("installed", "message"),
    [
        (None, "PyTorch is not installed. To install it"),
        ("2.12.0+cpu", "PyTorch 2.12.0+cpu is out of date. To update it"),
    ],
)
def test_a_missing_pytorch_is_one_line_with_a_remedy(monkeypatch, tmp_path, installed, message):
    fake_pytorch(monkeypatch, tmp_path, installed)
    assert torch_ranks.version() == (installed or "")
    assert torch_ranks.obstacle() == f"{message} (1 GB): ./lab setup --torch"
    assert error_of(torch_ranks.variables) == torch_ranks.obstacle()


def test_a_pytorch_for_another_python_is_rejected(monkeypatch, tmp_path):
    other = torch_folder(tmp_path, "2.13.0+cpu", "2.13.0+cpu", suffix=".cpython-310-x86_64-linux-gnu.so")
    monkeypatch.setattr(torch_ranks, "FOLDER", other)
    assert torch_ranks.obstacle().startswith("PyTorch 2.13.0+cpu is for another Python. To install the right one")


@pytest.mark.parametrize(("state", "cxx"), [("state", "no-such-compiler"), ("a state", "g++"), ("a:state", "g++")])
def test_ranks_do_not_start_if_they_would_be_open_to_others(monkeypatch, tmp_path, state, cxx):
    fake_pytorch(monkeypatch, tmp_path)
    monkeypatch.setattr(compiler, "STATE", tmp_path / state)
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(LabError, match=r"^PyTorch's ranks did not start: without g\+\+, "):
        torch_ranks.variables()


BIND = """
import json, socket
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.2")):
    opened = socket.socket(family)
    opened.bind((address, 0))
    print(opened.getsockname()[0])
print(socket.getnameinfo(("127.0.0.1", 80), 0)[0])
"""


def test_other_ranks_meet_on_loopback_where_wildcard_sockets_are_bound_and_no_name_is_looked_up(monkeypatch, tmp_path):
    fake_pytorch(monkeypatch, tmp_path)
    variables = torch_ranks.variables()
    assert (variables["MASTER_ADDR"], variables["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
    environ = os.environ | {"LD_PRELOAD": variables["LD_PRELOAD"]}
    done = subprocess.run([sys.executable, "-c", BIND], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["127.0.0.1", "::ffff:127.0.0.1", "127.0.0.2", "127.0.0.1"]


# --- With PyTorch ---


MEET = """
import os, pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print(dist.get_rank(), "of", dist.get_world_size(), os.environ["RANK"], torch.get_num_threads(), flush=True)
dist.barrier()
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("pytorch_is_here")
def test_no_other_machine_can_connect_to_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TEST", str(tmp_path))
    script, go = tmp_path / "meet.py", tmp_path / "go"
    script.write_text(MEET)
    with ThreadPoolExecutor() as pool:
        env = torch_ranks.variables()
        run = pool.submit(run_ranks, 2, script, go, env=env, show=False, timeout=100)
        sockets: dict = {}
        while not run.done() and len(sockets) < 3:  # the store's, and one of each rank
            sockets |= listeners_marked(str(tmp_path))
        go.touch()
        lines = sorted(line for lines in run.result().lines for line in lines)
    assert [line[:8] for line in lines] == ["0 of 2 0", "1 of 2 1"]
    assert len(sockets) >= 3
    assert (
        beyond_loopback({(address.removeprefix("::ffff:"), port): by for (address, port), by in sockets.items()}) == {}
    )
