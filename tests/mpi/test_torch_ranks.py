"""PyTorch on ranks: whether it is here, and where its ranks listen."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from listening import beyond_loopback, listeners_marked
from torch_folder import torch_folder

from labkit.mpi import run_ranks, torch_ranks
from labkit.system import preload
from labkit.system.errors import LabError

# --- Without PyTorch ---


def made_up(monkeypatch, folder: Path, installed: str | None = "2.13.0+cpu") -> Path:
    """Have a made-up PyTorch; return the folder of its packages."""
    monkeypatch.setattr(torch_ranks, "FOLDER", torch_folder(folder, wanted="2.13.0+cpu", installed=installed))
    return folder / "packages"


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        (None, "PyTorch is not installed. To install it"),
        ("2.12.0+cpu", "PyTorch 2.12.0+cpu is out of date. To update it"),
    ],
)
def test_where_it_is_not_a_line_says_so_and_what_to_do(monkeypatch, tmp_path, installed, told):
    made_up(monkeypatch, tmp_path, installed)
    assert torch_ranks.version() == (installed or "")
    assert torch_ranks.obstacle() == f"{told}: 1 GB."
    with pytest.raises(LabError) as caught:
        torch_ranks.variables()
    assert str(caught.value) == f"{told}: 1 GB."


def test_ranks_on_a_testbed_meet_at_its_first_node(monkeypatch, tmp_path):
    packages = made_up(monkeypatch, tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/others")
    assert (torch_ranks.version(), torch_ranks.obstacle()) == ("2.13.0+cpu", "")
    found = torch_ranks.variables(SimpleNamespace(nodes=[SimpleNamespace(address="10.77.0.1")], interface="eth7"))
    assert 0 < int(found.pop("MASTER_PORT")) < 2**16
    assert found == {
        "PYTHONPATH": f"{packages}:/others",
        "MASTER_ADDR": "10.77.0.1",
        "GLOO_SOCKET_IFNAME": "eth7",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def test_other_ranks_meet_on_loopback(monkeypatch, tmp_path):
    made_up(monkeypatch, tmp_path)
    found = torch_ranks.variables()
    assert (found["MASTER_ADDR"], found["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")
    assert Path(found["LD_PRELOAD"].partition(":")[0]).is_file()


@pytest.mark.parametrize(("state", "compiler"), [("state", "no-such-compiler"), ("a state", "g++"), ("a:state", "g++")])
def test_they_do_not_start_where_they_would_be_open_to_others(monkeypatch, tmp_path, state, compiler):
    made_up(monkeypatch, tmp_path)
    monkeypatch.setattr(preload, "STATE", tmp_path / state)
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(LabError, match=r"^PyTorch's ranks would be open to other machines: .*testbed"):
        torch_ranks.variables()


BIND = """
import json, socket
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.2")):
    one = socket.socket(family)
    one.bind((address, 0))
    print(one.getsockname()[0])
"""


def test_what_would_listen_everywhere_listens_on_loopback(monkeypatch, tmp_path):
    made_up(monkeypatch, tmp_path)
    environ = os.environ | {"LD_PRELOAD": torch_ranks.variables()["LD_PRELOAD"]}
    found = subprocess.run([sys.executable, "-c", BIND], env=environ, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["127.0.0.1", "::ffff:127.0.0.1", "127.0.0.2"]


# --- With PyTorch ---


@pytest.mark.usefixtures("pytorch_is_here")
def test_nobody_elsewhere_can_connect_to_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_TEST", str(tmp_path))
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, pathlib, time\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo', rank=int(os.environ['PMI_RANK']), world_size=2)\ndist.barrier()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
    )
    env = torch_ranks.variables()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(run_ranks, 2, script, env=env, cwd=tmp_path, show=False, timeout=100)
        found: dict = {}
        while not run.done() and len(found) < 3:  # the store, and each rank's own
            found = listeners_marked(str(tmp_path))
        (tmp_path / "go").touch()
        run.result()
    assert int(env["MASTER_PORT"]) in {port for _, port in found}
    assert beyond_loopback({(address.removeprefix("::ffff:"), port): by for (address, port), by in found.items()}) == {}
