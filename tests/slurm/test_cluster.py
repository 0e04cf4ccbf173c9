"""`lab cluster` starts a working Slurm and leaves nothing behind. These tests start real ones."""

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
from machines import machine
from slurm_shell import is_sleep, script, shell_of, supervisor_of

from labkit.cli import cluster as commands
from labkit.mpi.planning import SMALL
from labkit.slurm import cluster, supervisor
from labkit.slurm.cluster import Cluster
from labkit.slurm.supervisor import slurm_conf
from labkit.system.errors import LabError
from labkit.system.machine import node_cores, node_cpus
from labkit.system.processes import wait_until

# Identifies a job's processes, even if they have left everything else that could.
NUMBER = f"{os.getpid()}.5"
PYTHON = shlex.quote(sys.executable)  # the checkout's path may have spaces


def eventually(condition, seconds: float = 20.0) -> bool:
    return wait_until(condition, seconds)


def left_of(folder: Path) -> list[psutil.Process]:
    """Return the processes with the cluster's folder, or this run's number, in command, environment or folder."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            text = " ".join([*process.cmdline(), process.cwd()])
            text += Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
            if (str(folder) in text or NUMBER in text) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def folder_of(slurm_cluster: Cluster) -> Path:
    return slurm_cluster.link.readlink()


def gone(slurm_cluster: Cluster, folder: Path) -> bool:
    return not (slurm_cluster.link.is_symlink() or folder.exists() or left_of(folder))


@pytest.fixture
def another(slurm_is_installed, tmp_path):
    """Yield a cluster that is not up, in a checkout with a long name; end it after the test."""
    slurm_cluster = Cluster(tmp_path / "a folder with spaces" / ("deep" * 40) / "cluster")
    yield slurm_cluster
    slurm_cluster.down()


@pytest.fixture
def shell(small, tmp_path):
    return shell_of(small, tmp_path)


# --- It works ---


def test_up_and_status_describe_the_cluster_and_up_again_changes_nothing(small):
    slurm = small.slurm()
    assert (slurm.kind, slurm.nodes) == ("own", 2)
    assert slurm.cpus_per_node >= 1
    pid_file = (folder_of(small) / supervisor.PID_FILE).read_text()
    assert small.up(2) == slurm
    assert (folder_of(small) / supervisor.PID_FILE).read_text() == pid_file
    assert small.broken() == ()


def test_its_status_lists_nodes_jobs_and_how_to_use_it(small, monkeypatch, capsys):
    monkeypatch.setattr(cluster, "Cluster", lambda: small)
    with pytest.raises(SystemExit) as ended:
        commands.status()
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("n[1-2]", "JOBID", f"export SLURM_CONF={folder_of(small)}"))


RANK = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
cpus = sorted(os.sched_getaffinity(0))
print(f"rank {world.rank} of {world.size} on {os.environ['SLURMD_NODENAME']}, CPUs {cpus}, sum {world.allreduce(1)}")
"""


def test_srun_and_the_labs_launcher_start_one_rank_per_node_on_its_cpus(shell, tmp_path):
    script(tmp_path, "rank.py", RANK)
    launch = "from labkit.mpi.launch import run_ranks; run_ranks(2, 'rank.py', threads=1, timeout=60)"
    job = f"#!/bin/bash\nsrun --mpi=pmi2 {PYTHON} rank.py\n{PYTHON} -c {shlex.quote(launch)}\n"
    script(tmp_path, "job.sh", job)
    shell("sbatch --wait -N2 --ntasks-per-node=1 -o out.txt job.sh")
    text = (tmp_path / "out.txt").read_text()
    ranks = sorted(line[line.index("rank ") :] for line in text.splitlines() if " sum " in line)
    first, second = ([*cpus] for cpus in node_cpus(supervisor.usable_machine(), 2))
    by_srun = [f"rank 0 of 2 on n1, CPUs {first}, sum 2", f"rank 1 of 2 on n2, CPUs {second}, sum 2"]
    assert set(by_srun) <= set(ranks), text
    assert [line[:17] for line in ranks] == ["rank 0 of 2 on n1"] * 2 + ["rank 1 of 2 on n2"] * 2, text
    assert all(line.endswith("sum 2") for line in ranks)


def test_the_daemons_listen_on_this_machines_address_only(small):
    supervisor_process = supervisor_of(small)
    environ = os.environ | small.slurm().variables
    with subprocess.Popen(["srun", "--mpi=pmi2", "sleep", "20"], env=environ, stderr=subprocess.DEVNULL) as srun:
        try:
            client = psutil.Process(srun.pid)
            assert eventually(lambda: client.net_connections("inet"))  # for its tasks
            addresses = listening_addresses([client, *client.children(), *supervisor_process.children(recursive=True)])
        finally:
            srun.terminate()
    assert addresses == {socket.gethostbyname(socket.gethostname())}  # 127.0.0.1 or 127.0.1.1 on most machines


def listening_addresses(processes: list[psutil.Process]) -> set[str]:
    """Return the addresses at which processes listen."""
    addresses = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a helper of a job that has just ended
            connections = process.net_connections("inet")
            addresses |= {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
    return addresses


def test_two_clusters_are_independent_and_no_client_waits_for_one_that_ended(small, another):
    first, second = small.slurm(), another.up(1)
    assert first.variables != second.variables
    folder, environ = folder_of(another), os.environ | second.variables
    command = ["srun", "-N1", "sleep", "60"]
    clients = [subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert eventually(lambda: any(map(is_sleep, left_of(folder))))  # one runs, and one waits for the node
    assert another.down()
    assert all(client.wait(timeout=40) != 0 for client in clients)
    assert gone(another, folder)
    assert small.slurm() == first
    assert small.broken() == ()


# --- It ends, and nothing is left ---

# A job that ignores SIGTERM, with one child that has left its session and another that has left its environment.
STUBBORN = f"""#!/bin/bash
setsid sleep {NUMBER} &
srun bash -c 'trap "" TERM; env -i setsid sleep {NUMBER} & while true; do sleep {NUMBER}; done'
"""
PLAIN = f"#!/bin/bash\nsrun sleep {NUMBER}\n"


def submit(slurm_cluster: Cluster, folder: Path, text: str, sleeps: int) -> None:
    script(folder, "job.sh", text)
    environ = os.environ | slurm_cluster.slurm().variables
    subprocess.run(["sbatch", "-N1", "job.sh"], cwd=folder, env=environ, check=True, capture_output=True)
    assert eventually(lambda: sum(map(is_sleep, left_of(folder_of(slurm_cluster)))) == sleeps)


def test_a_dead_daemon_is_named_up_repairs_the_cluster_and_down_ends_stubborn_jobs(another, tmp_path):
    another.up(1)
    folder = folder_of(another)
    submit(another, tmp_path, PLAIN, sleeps=1)
    supervisor_process = supervisor_of(another)
    next(process for process in supervisor_process.children() if process.name() == "slurmd").kill()
    assert eventually(lambda: another.slurm() is None)
    assert "n1 was killed by SIGKILL" in another.broken()[0]
    assert "log" in another.broken()[0]
    assert another.up(1).nodes == 1
    assert left_of(folder) == []
    assert another.broken() == ()
    folder = folder_of(another)
    submit(another, tmp_path, STUBBORN, sleeps=3)
    assert another.down()
    assert gone(another, folder)
    assert (another.down(), another.broken(), another.slurm()) == (False, (), None)


def test_without_its_supervisor_only_the_clusters_processes_are_ended(another, tmp_path):
    another.up(1)
    folder = folder_of(another)
    submit(another, tmp_path, STUBBORN, sleeps=3)
    # Like a notebook kernel in a real cluster's job that has since switched to the small slurm_cluster.
    environ = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "big", **another.slurm().variables}
    kernel = subprocess.Popen([shutil.which("sleep"), "60"], env=environ)
    try:
        supervisor_of(another).kill()
        assert eventually(lambda: another.slurm() is None)
        assert "supervisor" in another.broken()[0]
        assert another.down()
        assert kernel.poll() is None
    finally:
        kernel.kill()
        kernel.wait()
    assert gone(another, folder)


def start(slurm_cluster: Cluster, then: str = "") -> subprocess.Popen:
    text = f"""
        import os, pathlib, time
        from labkit.slurm.cluster import Cluster
        Cluster(pathlib.Path({str(slurm_cluster.link)!r})).up(1{then})
        print("up", flush=True)
        time.sleep(60)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
def test_a_killed_up_leaves_nothing(another, tmp_path, monkeypatch):
    script(tmp_path, "slurmctld", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with start(another) as process:
        assert eventually(another.link.is_symlink)
        folder = folder_of(another)
        process.kill()
        assert process.wait(timeout=20) != 0
        assert b"up" not in process.stdout.read()
    assert eventually(lambda: gone(another, folder))


@pytest.mark.slow
def test_a_cluster_ends_with_the_process_that_it_is_for(another):
    with start(another, ", until=os.getpid()") as process:
        assert process.stdout.readline() == b"up\n"
        folder = folder_of(another)
        process.kill()
    assert eventually(lambda: gone(another, folder))


def test_a_daemon_that_fails_to_start_is_explained_and_nothing_is_left(another, tmp_path, monkeypatch):
    called = tmp_path / "called"
    script(tmp_path, "slurmctld", f"#!/bin/sh\necho $3 >{called}\necho 'fatal: the moon is full' >&2\nexit 3\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    message = r"did not come up[\s\S]*slurmctld ended with exit status 3[\s\S]*fatal: the moon is full"
    with pytest.raises(LabError, match=message):
        another.up(1)
    assert gone(another, Path(called.read_text().strip()).parent)


# --- It can't be started ---


@pytest.fixture
def empty_path(monkeypatch, tmp_path):
    """A folder with the only programs on this machine."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("labkit.system.processes.ADMIN_PATH", ())
    return folder


def test_missing_packages_are_named_with_the_command(empty_path, tmp_path):
    for program in ("slurmctld", "slurmd", "sbatch", "srun", "sinfo", "squeue", "scancel"):
        script(empty_path, program, "#!/bin/sh\n")
    assert cluster.obstacle().startswith("missing: munge. ")
    (empty_path / "slurmd").unlink()
    assert cluster.obstacle().startswith("missing: slurm-wlm munge. ")
    assert cluster.INSTALL in cluster.obstacle()
    assert "\n" not in cluster.obstacle()
    with pytest.raises(LabError, match="cannot start Slurm here: missing: slurm-wlm munge"):
        Cluster(tmp_path / "cluster").up(2)


def test_a_machine_name_that_does_not_resolve_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.setattr(cluster, "PACKAGES", {})
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")
    assert "Put '127.0.1.1 no-such-name.invalid' into /etc/hosts" in cluster.obstacle()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"nodes": nodes}, "nodes must be an integer from 1 to 64") for nodes in (0, 65, "2", None)),
        *(({"network": rate}, "a rate must be ") for rate in ("", "fast", 100)),
    ],
)
def test_invalid_options_are_refused(options, message, tmp_path):
    with pytest.raises(LabError, match=message):
        Cluster(tmp_path / "cluster").up(**options)
    assert not (tmp_path / "cluster").is_symlink()


def test_no_folder_but_a_clusters_is_used_or_removed(another, tmp_path):
    (tmp_path / "precious").mkdir()
    another.link.parent.mkdir(parents=True)
    another.link.symlink_to(tmp_path / "precious")
    assert another.slurm() is None
    assert another.down()
    assert (tmp_path / "precious").exists()


def test_root_does_not_use_files_that_another_user_may_have_written(tmp_path, monkeypatch):
    """The configuration names programs, which would run as root."""
    folder = Path(tempfile.mkdtemp(prefix=SMALL, dir="/tmp"))
    slurm_cluster = Cluster(tmp_path / "cluster")
    slurm_cluster.link.symlink_to(folder)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    try:
        for call in (slurm_cluster.down, slurm_cluster.broken, slurm_cluster.slurm):
            with pytest.raises(LabError, match=r"only that user and root .* runuser -u \S+ -- \./lab cluster down"):
                call()
    finally:
        folder.rmdir()


# --- A real cluster ---

NODES = """#!/bin/sh
cat <<'END'
n1 64 idle batch*
n2 48 mixed- batch*
n3 64 down* batch*
n4 64 drained batch*
login 4 idle debug
END
"""


def with_sinfo(folder: Path, text: str) -> cluster.Slurm | None:
    script(folder, "sbatch", "#!/bin/sh\n")
    script(folder, "sinfo", text)
    return cluster._real_slurm()


def test_a_real_cluster_counts_the_default_partitions_nodes_that_are_up(empty_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{empty_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert with_sinfo(empty_path, NODES) == cluster.Slurm("real", 2, 48, {})
    assert with_sinfo(empty_path, NODES.replace("batch*", "batch")) == cluster.Slurm("real", 3, 4, {})


@pytest.mark.parametrize(
    "sinfo",
    ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexec sleep 30\n", "#!/bin/sh\necho n1 64 'down*' 'batch*'\n"],
    ids=["no configuration", "no answer", "all down"],
)
def test_a_slurm_that_accepts_no_jobs_is_ignored(empty_path, monkeypatch, sinfo):
    monkeypatch.setenv("PATH", f"{empty_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(supervisor.query, "__kwdefaults__", {"timeout": 1.0})
    assert with_sinfo(empty_path, sinfo) is None


def test_a_small_cluster_is_not_mistaken_for_a_real_one(empty_path, monkeypatch):
    with_conf = "#!/bin/sh\n[ -z \"$SLURM_CONF\" ] || echo n1 64 idle 'batch*'\n"
    monkeypatch.setenv("SLURM_CONF", "/etc/somewhere/slurm.conf")
    assert with_sinfo(empty_path, with_conf).nodes == 1
    monkeypatch.setenv("SLURM_CONF", f"/tmp/{SMALL}of-somebody/slurm.conf")
    assert with_sinfo(empty_path, with_conf) is None


# --- Slurm's configuration ---


def test_nodes_share_the_cores_and_the_memory_of_a_big_machine():
    big = machine(cores=64, numa=2, smt=2, gib=512)
    assert node_cores(big, 4) == 16
    nodes = node_cpus(big, 4)
    assert sorted(cpu for cpus in nodes for cpu in cpus) == list(range(128))
    assert set(nodes[0]) == {*range(16), *range(64, 80)}  # whole cores, of one NUMA node
    lines = slurm_conf(Path("/tmp/x"), 4, big, supervisor._places_here(5), ()).splitlines()
    assert sum("CPUs=16 RealMemory=131072" in line for line in lines) == 4


@pytest.mark.parametrize(
    ("version", "plugin"),
    [("slurm-wlm 21.08.5", "cgroup/v1"), ("slurm-wlm 23.11.4", "cgroup/v1"), ("slurm 24.05.0", "disabled")],
)
def test_control_groups_are_disabled_in_each_versions_syntax(empty_path, version, plugin):
    script(empty_path, "sinfo", f"#!/bin/sh\necho {version}\n")
    assert supervisor._cgroup_plugin() == plugin
