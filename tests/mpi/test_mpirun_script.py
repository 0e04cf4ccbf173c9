"""`mpirun` listens on loopback only if all its ranks are on this machine; otherwise it is plain Hydra."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from listening import beyond_loopback, listeners_marked

from labkit.system.paths import ROOT
from labkit.system.processes import wait_until

BIN = ROOT / ".venv" / "bin"
RANK = """
    import os, pathlib, socket, time
    from mpi4py import MPI
    server = socket.create_server(("127.0.0.1", 0))
    total = MPI.COMM_WORLD.allreduce(1)
    pathlib.Path(f"up-{MPI.COMM_WORLD.rank}").write_text(str(server.getsockname()[1]))
    while not pathlib.Path("go").exists(): time.sleep(0.05)
    os.write(1, f"{total}|{os.environ.get('LD_PRELOAD')}\\n".encode())
"""


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a terminal with the kit's environment."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "UCX_", "HYDRA_"))}
    return variables | {"PATH": f"{BIN}:{os.environ['PATH']}", "LABKIT_TEST": folder.as_posix()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("./linked -genv A B -n 2 python rank.py -f file -hosts named", 2),  # options of the program
        ("mpiexec -n 1 python rank.py : -n 1 python rank.py", 2),
        ("python rank.py", 1),  # alone, as in a notebook
    ],
)
def test_everything_listens_on_loopback_only(tmp_path, line, ranks):
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    (tmp_path / "linked").symlink_to(BIN / "mpirun")
    sockets = {}

    def all_up() -> bool:
        sockets.update(listeners_marked(tmp_path.as_posix()))
        return len(list(tmp_path.glob("up-*"))) == ranks or run.poll() is not None

    with subprocess.Popen(
        line, shell=True, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as run:
        wait_until(all_up, 60)
        sockets.update(listeners_marked(tmp_path.as_posix()))
        (tmp_path / "go").touch()
        output, _ = run.communicate(timeout=60)
    assert output.split() == [f"{ranks}|None"] * ranks
    rank_sockets = {("127.0.0.1", int(port.read_text())) for port in tmp_path.glob("up-*")}
    assert rank_sockets <= sockets.keys(), "a rank's socket was not sockets, so others might be missed"
    assert beyond_loopback(sockets) == {}


def test_between_nodes_srun_makes_python_use_existing_transports():
    text = "import os; print(os.environ.get('UCX_TLS'))"
    for nodes, transports in (("1", "None"), ("2", "all")):
        environ = os.environ | {"SLURM_STEP_NUM_NODES": nodes}
        environ.pop("UCX_TLS", None)
        assert subprocess.check_output([sys.executable, "-c", text], env=environ, text=True).strip() == transports


@pytest.fixture
def started(tmp_path):
    """Return a function that runs a command in a kit whose Hydra prints its environment."""
    script, programs = tmp_path / "the kit/labkit/mpi/mpirun.sh", tmp_path / "the kit/.venv/bin"
    for folder in (script.parent, programs):
        folder.mkdir(parents=True)
    script.write_bytes((ROOT / "labkit/mpi/mpirun.sh").read_bytes())
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    hydra = '#!/bin/sh\nlibraries=$(grep -c loopback /proc/$$/maps)\necho "$UCX_TLS|$HYDRA_IFACE|$libraries"\n'
    (programs / "mpiexec.hydra").write_text(hydra)
    for program in programs.iterdir():
        program.chmod(0o755)

    def start(line: str = "-n 2 x", **environ: str) -> list[str]:
        done = subprocess.run(
            ["sh", script, *line.split()],
            env=environment(tmp_path) | environ,
            capture_output=True,
            text=True,
            check=True,
        )
        transports, interface, libraries = done.stdout.strip().split("|")
        return [transports, interface, "loopback" if int(libraries) else done.stderr.strip()]

    return start


@pytest.mark.parametrize(
    "line", ["-n 2 python x.py", "-genv A B -n 2 x -t file", "-info", "-n 1 x : -n 1 y", "-n 2 python ring-hosts.py"]
)
def test_loopback_is_preloaded_if_no_other_machine_is_named(started, line):
    assert started(line) == ["", "", "loopback"]


@pytest.mark.parametrize(
    "line",
    [
        *("-hosts a,b -n 2 x", "-hosts=a -n 2 x", "--host a x", "-f file x", "-H a x", "-machinefile a x"),
        *("-prepend-rank -genvall -hosts a x", "-n 1 x : -host a -n 1 x", "-n 2 -launcher ssh x", "-rmk pbs x"),
    ],
)
def test_an_option_that_may_name_other_machines_leaves_hydra_alone(started, line):
    assert started(line) == ["all", "", ""]


NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"UCX_TLS": "tcp,self"}, ["tcp,self", "", "loopback"]),
        ({"HYDRA_HOST_FILE": "hosts"}, ["all", "", ""]),
        ({"PBS_NODEFILE": "nodes", "UCX_TLS": "rc,self"}, ["rc,self", "", ""]),
        (NODE | {"SLURM_JOB_NUM_NODES": "1"}, ["", "lo", "loopback"]),
        (NODE | {"SLURM_JOB_NUM_NODES": "1", "HYDRA_BOOTSTRAP": "slurm"}, ["", "lo", "loopback"]),
        (NODE | {"SLURM_JOB_NUM_NODES": "2", "HYDRA_BOOTSTRAP": "slurm"}, ["all", "", ""]),
        ({"HYDRA_BOOTSTRAP": "ssh"}, ["all", "", ""]),
        (NODE | {"SLURM_JOB_NUM_NODES": "2"}, ["all", "", ""]),
        # The small Slurm's nodes are this machine; with wires they do not use loopback.
        (NODE | {"SLURM_JOB_NUM_NODES": "2", "HYDRA_IFACE": "lo", "UCX_TLS": "all"}, ["all", "lo", "loopback"]),
        (NODE | {"SLURM_JOB_NUM_NODES": "1", "HYDRA_IFACE": "eth0"}, ["all", "eth0", ""]),
    ],
)
def test_batch_systems(started, environ, expected):
    assert started(**environ) == expected
