"""The small Slurm's nodes on a testbed: jobs use the wires, commands outside reach it, nothing is left."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import lab_cells
import psutil
import pytest
from slurm_shell import is_sleep, script, shell_of, supervisor_of

from labkit.mpi import torch_ranks
from labkit.mpi.planning import SMALL, SMALL_ON_WIRES
from labkit.slurm import supervisor
from labkit.slurm.cluster import Cluster
from labkit.system import processes
from labkit.system.errors import LabError
from labkit.system.paths import ROOT

PYTHON = shlex.quote(sys.executable)  # the checkout's path may have spaces
MPIRUN = shlex.quote(str(Path(sys.executable).with_name("mpirun")))
RATE = "100 Mbit/s"
PAYLOAD = 1_000_000  # bytes that each of two ranks sends to the other


pytestmark = pytest.mark.usefixtures("slurm_is_installed", "wires_can_be_made")


@pytest.fixture(scope="module")
def wired(slurm_is_installed, wires_can_be_made, tmp_path_factory):
    """Yield a cluster of 2 nodes with wires."""
    cluster = Cluster(tmp_path_factory.mktemp("wired") / "cluster")
    cluster.up(2, until=os.getpid(), network=RATE)
    yield cluster
    cluster.down()


@pytest.fixture
def another(tmp_path):
    """Yield a cluster that is not up; end it after the test."""
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.down()


@pytest.fixture
def shell(wired, tmp_path):
    return shell_of(wired, tmp_path)


# --- It works ---

EXCHANGE = f"""
import json, os, socket
from mpi4py import MPI
from labkit.testbed import traffic
world = MPI.COMM_WORLD
before = traffic()
world.Barrier()
world.sendrecv(bytes({PAYLOAD}), 1 - world.rank)
world.Barrier()
counts = [after - earlier for after, earlier in zip(traffic(), before)]
print(json.dumps([os.environ["SLURMD_NODENAME"], socket.gethostname(), *counts]))
"""


def test_ranks_of_a_job_use_the_wires_however_they_are_started(shell, tmp_path):
    """With srun, mpirun and the labs' launcher."""
    script(tmp_path, "exchange.py", EXCHANGE)
    launch = "from labkit.mpi.launch import run_ranks; run_ranks(2, 'exchange.py', threads=1, timeout=120)"
    job = f"""\
        #!/bin/bash
        srun --mpi=pmi2 {PYTHON} exchange.py
        SLURM_OVERLAP=1 SLURM_CPU_BIND=none {MPIRUN} -n 2 {PYTHON} exchange.py
        {PYTHON} -c {shlex.quote(launch)}
    """
    script(tmp_path, "job.sh", job)
    shell("sbatch --wait -N2 --ntasks-per-node=1 -o out.txt job.sh")
    text = (tmp_path / "out.txt").read_text()
    lines = [json.loads(match) for match in re.findall(r'\["[^]]*\]', text)]  # ranks may mix their lines
    assert sorted(line[:2] for line in lines) == [["n1", "node1"]] * 3 + [["n2", "node2"]] * 3, text
    assert all(PAYLOAD < count < 1.2 * PAYLOAD for line in lines for count in line[2:]), text


def test_torchrun_starts_a_rank_on_each_node(shell, tmp_path, monkeypatch):
    """On wires, as PyTorch's store listens on all addresses."""
    if reason := torch_ranks.obstacle():
        pytest.skip(f"NO PYTORCH HERE: {reason}")
    monkeypatch.setenv("KIT", str(ROOT))
    monkeypatch.chdir(tmp_path)
    lab_cells.write_files("08")
    shell("sbatch --wait --nodes=2 --job-name=torch work/torchrun.sbatch")
    log = (tmp_path / "work" / "torch.log").read_text()
    assert sorted(re.findall(r"rank \d of 2: moved by 0\.50", log)) == [f"rank {n} of 2: moved by 0.50" for n in (0, 1)]


def test_srun_and_salloc_outside_start_programs_on_the_nodes(shell, tmp_path):
    assert sorted(shell("srun -l -N2 hostname").split()) == ["0:", "1:", "node1", "node2"]
    assert shell("salloc -N1 srun hostname").strip() in ("node1", "node2")
    script(tmp_path, "exchange.py", EXCHANGE)
    assert shell(f"srun --mpi=pmi2 -N2 {PYTHON} exchange.py").count("node") == 2


def test_it_reports_both_rates_and_up_again_changes_nothing(wired):
    slurm = wired.slurm()
    assert slurm.network.startswith("2 nodes on wires of 100 Mbit/s: a transfer reached ")
    assert "%" in slurm.network
    assert wired.up(2, network="0.1 gbit") == wired.up(2, network=1e8) == slurm
    message = r"^a cluster of 2 nodes with wires of 100 Mbit/s is up: .*\./lab cluster down$"
    for other in ({}, {"network": "1 Gbit/s"}, {"nodes": 1, "network": RATE}):
        with pytest.raises(LabError, match=message):
            wired.up(**other)


# --- It ends, and nothing is left ---

PLAIN = "#!/bin/bash\nsrun sleep 600\n"


def start_with_a_job(cluster: Cluster, folder: Path) -> tuple[Path, set[int]]:
    """Start a cluster and a job on both nodes; return the cluster's folder and the namespaces' inodes."""
    environ = os.environ | cluster.up(2, network=RATE).variables
    script(folder, "job.sh", PLAIN)
    subprocess.run(["sbatch", "-N2", "job.sh"], cwd=folder, env=environ, check=True, capture_output=True)

    def asleep() -> list[psutil.Process]:
        children = supervisor_of(cluster).children(recursive=True)
        return [process for process in children if is_sleep(process)]

    assert processes.wait_until(lambda: len(asleep()) == 2, 20.0)
    ours = namespace_of(psutil.Process())
    children = supervisor_of(cluster).children(recursive=True)
    namespaces = {namespace_of(process) for process in children if processes.is_alive(process)} - {ours}
    assert len(namespaces) == 3  # the switch and two nodes
    return cluster.link.readlink(), namespaces


def namespace_of(process: psutil.Process) -> int:
    return Path(f"/proc/{process.pid}/ns/net").stat().st_ino


def gone(cluster: Cluster, folder: Path, namespaces: set[int]) -> bool:
    in_them = processes.find(lambda process: namespace_of(process) in namespaces)
    known = processes.find(lambda process: str(folder) in " ".join(process.cmdline()))
    return not (cluster.link.is_symlink() or folder.exists() or in_them or known)


def test_down_leaves_no_process_and_no_namespace(another, tmp_path):
    folder, namespaces = start_with_a_job(another, tmp_path)
    assert another.down()
    assert gone(another, folder, namespaces)


def test_a_killed_controller_and_a_killed_supervisor(another, tmp_path):
    folder, namespaces = start_with_a_job(another, tmp_path)
    supervisor_process = supervisor_of(another)
    next(process for process in supervisor_process.children() if process.name() == "slurmctld").kill()
    assert processes.wait_until(lambda: another.slurm() is None, 20.0)
    assert another.broken()[0].startswith("slurmctld was killed by SIGKILL")
    supervisor_process.send_signal(signal.SIGKILL)
    assert processes.wait_until(lambda: not processes.is_alive(supervisor_process), 20.0)
    assert another.down()
    # Nodes end once the killed supervisor's pipe is closed.
    assert processes.wait_until(lambda: gone(another, folder, namespaces), 60.0)


@pytest.mark.slow
def test_it_needs_no_root(two_users_can_be_made):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    with tempfile.TemporaryDirectory(prefix="labkit-", dir="/tmp") as name:
        os.chown(name, 65534, 65534)
        text = f"""
            import os, pathlib, signal, subprocess, sys
            from labkit.testbed import obstacle
            from labkit.slurm.cluster import Cluster
            if reason := obstacle():
                sys.exit(f"obstacle: {{reason}}")
            cluster = Cluster(pathlib.Path({name!r}) / "cluster")
            slurm = cluster.up(2, until=os.getpid(), network={RATE!r})
            batch = ["sbatch", "--wait", "-N2", "--output=out.txt", "--wrap", "srun sh -c 'id -u; hostname'"]
            subprocess.run(batch, env=os.environ | slurm.variables, check=True, stdout=subprocess.DEVNULL)
            print(pathlib.Path("out.txt").read_text())
            os.kill(int((cluster.link / "supervisor.pid").read_text()), signal.SIGKILL)
            print(cluster.down())
        """
        program = [*nobody, sys.executable, "-c", textwrap.dedent(text)]
        done = subprocess.run(program, cwd=name, capture_output=True, text=True, timeout=120)
        if done.stderr.startswith("obstacle: "):
            pytest.skip(f"no network: {done.stderr}")
        leftovers = processes.find(lambda process: name in " ".join(process.cmdline()))
    assert sorted(done.stdout.split()) == ["65534", "65534", "True", "node1", "node2"], done.stderr
    assert not leftovers


# --- It can't be started ---


def test_a_failed_network_is_a_one_line_error_and_leaves_nothing(another, tmp_path, monkeypatch):
    refused = "unshare: unshare failed: Operation not permitted"
    script(tmp_path, "unshare", f"#!/bin/sh\necho '{refused}' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    before = set(supervisor.TMP.glob(f"{SMALL}*"))
    with pytest.raises(LabError, match=r"^Slurm did not come up: \S.*") as error:
        another.up(2, network=RATE)
    assert "\n" not in str(error.value)
    assert not another.link.is_symlink()
    assert not processes.find(lambda process: str(another.link) in " ".join(process.cmdline()))
    assert set(supervisor.TMP.glob(f"{SMALL_ON_WIRES}*")) <= before
