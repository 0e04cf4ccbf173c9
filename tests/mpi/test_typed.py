"""`mpirun` as typed keeps to this machine where all its ranks are here, however they are started; else it does not."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from listening import listeners_marked

from labkit.mpi import loopback, small_slurm, typed
from labkit.system import preload
from labkit.system.paths import ROOT
from labkit.system.processes import wait_until

BIN = ROOT / ".venv" / "bin"
RANK = """
    import os, pathlib, socket, time
    from mpi4py import MPI
    own = socket.create_server(("127.0.0.1", 0))
    total = MPI.COMM_WORLD.allreduce(1)
    pathlib.Path(f"up-{MPI.COMM_WORLD.rank}").write_text(str(own.getsockname()[1]))
    while not pathlib.Path("go").exists(): time.sleep(0.05)
    os.write(1, f"{total}|{os.environ.get('LD_PRELOAD')}\\n".encode())
"""


def in_terminal(folder: Path, line: str) -> subprocess.Popen:
    """Start a line as in a terminal with the kit's environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "UCX_", "HYDRA_"))}
    environ = kept | {"PATH": f"{BIN}:{os.environ['PATH']}", "LABKIT_TEST": folder.as_posix()}
    return subprocess.Popen(
        line, shell=True, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("mpirun -n 2 python rank.py", 2),
        ("mpiexec -n 1 python rank.py : -n 1 python rank.py -f", 2),
        ("mpirun -hosts localhost -n 2 python rank.py", 2),
        (f"'{BIN}/mpirun' -n 2 python rank.py", 2),
        ("./linked -n 2 python rank.py", 2),
        ("python rank.py", 1),  # alone, as in a notebook
        ("mpiexec.gforker -n 2 python rank.py", 2),
    ],
)
def test_nothing_listens(tmp_path, line, ranks):
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    (tmp_path / "linked").symlink_to(BIN / "mpirun")
    seen = {}

    def all_up() -> bool:
        seen.update(listeners_marked(tmp_path.as_posix()))
        return len(list(tmp_path.glob("up-*"))) == ranks or run.poll() is not None

    with in_terminal(tmp_path, line) as run:
        wait_until(all_up, 60)
        seen.update(listeners_marked(tmp_path.as_posix()))
        (tmp_path / "go").touch()
        said, _ = run.communicate(timeout=60)
    assert said.split() == [f"{ranks}|None"] * ranks
    own = {("127.0.0.1", int(port.read_text())) for port in tmp_path.glob("up-*")}
    assert own <= seen.keys(), "a rank's own socket was not seen, so another's would not have been"
    assert seen.keys() - own == set()


def test_between_nodes_srun_has_python_use_what_is_there():
    text = "import os; print(os.environ.get('UCX_TLS'))"
    for nodes, transports in (("1", "None"), ("2", "all")):
        environ = os.environ | {"SLURM_STEP_NUM_NODES": nodes}
        environ.pop("UCX_TLS", None)
        assert subprocess.check_output([sys.executable, "-c", text], env=environ, text=True).strip() == transports


HERE = typed.socket.gethostname()


@pytest.mark.parametrize(
    ("line", "elsewhere"),
    [
        ("-n 2 python x.py", False),
        ("-n 2 python x.py -f file -hosts a", False),
        ("-l python x.py -hosts a", False),
        ("-genv A B -env C D -n 2 python -f", False),
        (f"-hosts localhost,{HERE}:4 -n 2 x", False),
        ("-launcher fork -n 2 x", False),
        ("-info", False),
        ("", False),
        ("-genv", False),
        ("-hosts a,b -n 2 x", True),
        ("-hosts=a -n 2 x", True),
        ("--host a x", True),
        ("-hosts localhost,b x", True),
        ("-f file x", True),
        ("-prepend-rank -genvall -hosts a x", True),
        ("-genv A B -hosts a x", True),
        ("-n 1 x -hosts localhost : -host a -n 1 x", True),
        ("-n 2 -launcher ssh x", True),
    ],
)
def test_what_leads_to_other_machines(line, elsewhere):
    assert typed.leads_elsewhere(line.split(), {}) == elsewhere


SMALL = {"SLURM_CLUSTER_NAME": f"{small_slurm.PREFIX}x", "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "1"}
REAL = SMALL | {"SLURM_CLUSTER_NAME": "big"}


@pytest.mark.parametrize(
    ("environ", "told", "preloaded"),
    [
        ({}, {"UCX_TLS": "posix,cma,self"}, True),
        ({"UCX_TLS": "tcp,self"}, {"UCX_TLS": "tcp,self"}, True),  # who says so
        ({"HYDRA_LAUNCHER": "fork"}, {"UCX_TLS": "posix,cma,self"}, True),
        ({"HYDRA_HOST_FILE": "hosts"}, {"UCX_TLS": "all"}, False),
        ({"PBS_NODEFILE": "nodes"}, {"UCX_TLS": "all"}, False),
        (SMALL, {"UCX_TLS": "sm,self", "HYDRA_IFACE": "lo"}, True),
        (
            SMALL | {"SLURM_JOB_NUM_NODES": "2"},
            {"UCX_TLS": "all", "UCX_NET_DEVICES": "lo", "HYDRA_IFACE": "lo"},
            True,
        ),
        (REAL, {"UCX_TLS": "sm,self", "HYDRA_IFACE": "lo"}, True),
        (REAL | {"SLURM_JOB_NUM_NODES": "2"}, {"UCX_TLS": "all"}, False),
        (REAL | {"SLURM_JOB_NUM_NODES": "2", "UCX_TLS": "rc,sm,self"}, {"UCX_TLS": "rc,sm,self"}, False),
    ],
)
def test_what_hydra_is_told(monkeypatch, environ, told, preloaded):
    started = []
    monkeypatch.setattr(os, "environ", dict(environ))
    monkeypatch.setattr(os, "execv", lambda path, argv: started.append(argv[1:]))
    typed.main(["-n", "2", "x"])
    assert started == [["-n", "2", "x"]]
    got = {name: value for name, value in os.environ.items() if name.startswith(("UCX_", "HYDRA_IFACE"))}
    assert got == told
    assert ("LD_PRELOAD" in os.environ) == preloaded
    if preloaded:
        os.close(int(os.environ["LD_PRELOAD"].rpartition("/")[2]))


def test_without_a_compiler_it_runs_and_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "environ", {"CXX": "no-such-compiler"})
    monkeypatch.setattr(os, "execv", lambda *_: None)
    monkeypatch.setattr(preload, "STATE", tmp_path / "state")
    typed.main(["-n", "1", "x"])
    assert capsys.readouterr().err.strip() == loopback.OPEN_PORT_WARNING
