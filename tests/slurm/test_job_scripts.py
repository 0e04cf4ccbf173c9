"""Job scripts on two nodes of a real Slurm: lab 08's, and those in env/slurm."""

import os
import re
import shlex
import subprocess

import lab_cells
import pytest
from listening import beyond_loopback, listeners
from slurm_shell import script, shell_of, supervisor_of

from labkit.slurm.terminal import Terminal
from labkit.system.paths import ENV, ROOT
from labkit.system.processes import wait_until

SCRIPT = ENV / "slurm" / "train.sbatch"


@pytest.fixture
def shell(small, tmp_path, monkeypatch):
    """Return a function that runs a command as in a terminal, in a folder with the lab's files."""
    monkeypatch.setenv("KIT", str(ROOT))
    monkeypatch.chdir(tmp_path)
    lab_cells.write_files("08")
    run = shell_of(small, tmp_path)
    return lambda *argv: run(shlex.join(map(str, argv))).strip()


def eventually(condition, seconds: float = 90.0) -> bool:
    return wait_until(condition, seconds)


def state(shell, job: str) -> str:
    entries = dict(entry.split("=", 1) for entry in shell("scontrol", "show", "job", job).split() if "=" in entry)
    return entries["JobState"]


@pytest.mark.weekly
@pytest.mark.timeout(600)
def test_a_job_at_its_time_limit_ends_with_the_weights_of_an_undisturbed_one(shell, tmp_path):
    """The limit is real: at least a minute, in which Slurm sends the signal when it checks limits."""
    undisturbed = ("--job-name=undisturbed", "--time=10", "work/resumes.sbatch", 60, 0)
    for arguments in (("--job-name=limit", "work/resumes.sbatch", 60, 0.75), undisturbed):
        shell("sbatch", "--nodes=2", "--requeue", *arguments)
    assert eventually(lambda: not shell("squeue", "--noheader"), 400)
    logs = {name: (tmp_path / "work" / f"{name}.log").read_text() for name in ("limit", "undisturbed")}
    assert "rank 1 stops after step" in logs["limit"]
    assert "stops" not in logs["undisturbed"]
    (weights,) = re.findall(r"weights (\w+)", logs["undisturbed"])
    assert re.findall(r"weights (\w+)", logs["limit"]) == [weights], logs
    completed = shell("sacct", "-c", "--format=jobname,state", "--noheader", "--parsable2")
    assert {"limit|PENDING", "limit|COMPLETED", "undisturbed|COMPLETED"} <= {*completed.split()}


SAVES = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
pathlib.Path("ready-" + os.environ["SLURM_PROCID"]).touch()
signal.sigwait({signal.SIGTERM})
sys.exit(75)
"""


def test_the_long_script_requeues_a_job_whose_ranks_were_stopped_and_saved(shell, tmp_path):
    script(tmp_path, "saves.py", SAVES)
    job = shell("sbatch", "--parsable", "--nodes=2", "--output=job.log", SCRIPT, "saves.py")
    both = [tmp_path / f"ready-{rank}" for rank in range(2)]
    assert eventually(lambda: all(file.exists() for file in both)), (tmp_path / "job.log").read_text()
    shell("scancel", "--signal=TERM", job)  # at the time limit, too, Slurm signals only the ranks, not the script
    assert eventually(lambda: state(shell, job) in ("PENDING", "REQUEUED")), state(shell, job)
    shell("scancel", job)


MEETS = """
import pathlib, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
pathlib.Path("ready").touch()
time.sleep(600)
"""
BY_MPIRUN = f"""#!/bin/bash
export SLURM_OVERLAP=1 SLURM_CPU_BIND=none
"{ROOT}/.venv/bin/mpirun" -n 2 "{ROOT}/.venv/bin/python" "$@"
"""


@pytest.mark.parametrize("how", ["train.sbatch", "mpirun"])
def test_on_the_small_slurm_it_listens_only_on_loopback(small, shell, tmp_path, how):
    script(tmp_path, "meets.py", MEETS)
    (tmp_path / "by_mpirun").write_text(BY_MPIRUN)
    job_script = "by_mpirun" if how == "mpirun" else SCRIPT
    job = shell("sbatch", "--parsable", "--nodes=2", "--output=job.log", job_script, "meets.py")
    assert eventually((tmp_path / "ready").exists), (tmp_path / "job.log").read_text()
    pids = {process.pid for process in supervisor_of(small).children(recursive=True)}
    sockets = listeners(lambda process: process.pid in pids)
    shell("scancel", job)
    assert {"python", "slurmctld"} <= set().union(*sockets.values())
    assert beyond_loopback(sockets) == {}


@pytest.mark.parametrize(
    ("cpus", "tasks", "env", "threads"),
    [(16, 1, {}, 8), (16, 2, {}, 4), (4, 1, {}, 4), (4, 2, {}, 2), (1, 2, {}, 1), (16, 1, {"THREADS": "3"}, 3)],
)
def test_a_rank_has_a_thread_per_core(tmp_path, cpus, tasks, env, threads):
    """The node has eight cores with two hardware threads each; the job uses all or some of them."""
    lines = ["# CPU,Core,Socket", *(f"{core},{core // 4}" for core in range(8) for _ in range(2))]
    script(tmp_path, "lscpu", f"#!/bin/bash\nprintf '%s\\n' {' '.join(repr(line) for line in lines)}\n")
    script(tmp_path, "srun", '#!/bin/bash\necho "$OMP_NUM_THREADS $TF_NUM_INTRAOP_THREADS $*"\n')
    slurm = {"SLURM_CPUS_ON_NODE": cpus, "SLURM_NTASKS_PER_NODE": tasks, "SLURM_JOB_NUM_NODES": 1, "KIT": ROOT}
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | {name: str(value) for name, value in slurm.items()} | env
    out = subprocess.run(["bash", SCRIPT], env=environ, capture_output=True, text=True, check=True).stdout
    assert out.startswith(f"{threads} {threads} ")
    assert f"--cpus-per-task={max(1, cpus // tasks)} " in out


def test_outside_the_kit_it_fails_with_a_remedy(shell, tmp_path):
    job = shell("sbatch", "--parsable", "--output=job.log", f"--export=ALL,KIT={tmp_path}", SCRIPT)
    assert eventually(lambda: state(shell, job) == "FAILED")
    assert f"train.sbatch: {tmp_path} has no .venv: submit from the kit's folder" in (tmp_path / "job.log").read_text()
    assert "ExitCode=2:0" in shell("scontrol", "show", "job", job)


# --- The notebook's terminal ---


def test_a_terminal_shows_commands_with_their_output_and_errors(small, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("TMPDIR", "/tmp/of-a-kernel")
    terminal = Terminal(small.slurm(), "none", KIT=ROOT)
    assert terminal("echo $SLURM_JOB_ID$TMPDIR,$KIT") == f",{ROOT}"
    assert "idle" in terminal("sinfo")
    assert "--no-such-option" in terminal("sbatch --no-such-option").partition("\n")[0]
    assert capsys.readouterr().out.startswith(f"$ echo $SLURM_JOB_ID$TMPDIR,$KIT\n,{ROOT}\n$ sinfo\nPARTITION")
    assert [line for line, _ in terminal.lines][1:] == ["sinfo", "sbatch --no-such-option"]
    assert terminal.output("sleep 5; echo no", timeout_s=0.1) == "no answer within 0.1 s"


def test_without_slurm_a_terminal_replays_what_was_recorded(monkeypatch, tmp_path):
    terminal = Terminal(None, "08-slurm")
    assert "PARTITION" in terminal("sinfo")
    assert terminal("sacct --version") == "(not recorded)"
    assert terminal.read(tmp_path / "none", timeout_s=0.1) == ""
