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
    assert torch_ranks.obstacle() == f"{told} (1 GB): ./lab setup --torch"
    with pytest.raises(LabError) as caught:
        torch_ranks.variables()
    assert str(caught.value) == f"{told} (1 GB): ./lab setup --torch"


def test_one_that_was_installed_for_another_python_is_not_taken(monkeypatch, tmp_path):
    of_another = torch_folder(tmp_path, "2.13.0+cpu", "2.13.0+cpu", suffix=".cpython-310-x86_64-linux-gnu.so")
    monkeypatch.setattr(torch_ranks, "FOLDER", of_another)
    assert torch_ranks.obstacle().startswith("PyTorch 2.13.0+cpu is for another Python. To install the right one")


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


def by_run_ranks(script: Path, go: Path) -> list[str]:
    env = torch_ranks.variables()
    return [line for lines in run_ranks(2, script, go, env=env, show=False, timeout=100).lines for line in lines]


def by_torchrun(script: Path, go: Path) -> list[str]:
    return list(torch_ranks.torchrun(2, script, go).lines)


@pytest.mark.usefixtures("pytorch_is_here")
@pytest.mark.parametrize("launch", [by_run_ranks, by_torchrun])
def test_no_other_machine_can_connect_to_ranks(tmp_path, monkeypatch, launch):
    monkeypatch.setenv("LABKIT_TEST", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # torchrun's own default is what torchrun() shows
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # with it, lines of ranks that share a pipe would mix
    script, go = tmp_path / "meet.py", tmp_path / "go"
    script.write_text(MEET)
    with ThreadPoolExecutor() as pool:
        run = pool.submit(launch, script, go)
        found: dict = {}
        while not run.done() and len(found) < 3:  # the store, and each rank's own
            found |= listeners_marked(str(tmp_path))
        go.touch()
        lines = sorted(run.result())
    assert [line[:8] for line in lines] == ["0 of 2 0", "1 of 2 1"]
    assert launch is by_run_ranks or all(line.endswith(" 1") for line in lines)
    assert len(found) >= 3
    assert beyond_loopback({(address.removeprefix("::ffff:"), port): by for (address, port), by in found.items()}) == {}


@pytest.mark.usefixtures("pytorch_is_here")
def test_a_failure_under_torchrun_names_its_cause(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit('no digits here')")
    with pytest.raises(LabError, match=r"^torchrun: (.|\n)*no digits here"):
        torch_ranks.torchrun(1, script)
