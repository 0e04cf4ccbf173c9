"""Tests of env/slurm/train.sbatch on two nodes of a real Slurm: training, saving on a stop signal, resuming."""

import os
import shlex
import subprocess

import psutil
import pytest
from listening import beyond_loopback, listeners
from slurm_shell import shell_of

from labkit.system.paths import ENV, ROOT
from labkit.system.processes import wait_until
from labkit.train import log

SCRIPT = ENV / "slurm" / "train.sbatch"
FLAGS = ("--model=resnet8", "--batch_size=8", "--iter_unit=batch", "--log_every=1", "--results_dir=run")


@pytest.fixture
def shell(small, tmp_path):
    """Return a function that runs a command as in a terminal, and returns its output."""
    run = shell_of(small, tmp_path)
    return lambda *argv: run(shlex.join(map(str, argv))).strip()


def eventually(condition, seconds: float = 90.0) -> bool:
    return wait_until(condition, seconds)


def submit(shell, *flags: str, kit=ROOT) -> str:
    return shell(
        "sbatch", "--parsable", "--nodes=2", "--output=job.log", f"--export=ALL,KIT={kit}", SCRIPT, *FLAGS, *flags
    )


def state(shell, job: str) -> str:
    entries = dict(entry.split("=", 1) for entry in shell("scontrol", "show", "job", job).split() if "=" in entry)
    return entries["JobState"]


def steps(folder) -> list[int]:
    return [record["step"] for record in log.read(folder / "run") if record["event"] == "train"]


def test_a_stopped_job_saves_and_the_next_continues(shell, tmp_path):
    for stop in ("scancel", "the time limit"):
        job, before = submit(shell, "--num_iter=100000", "--mode=train"), len(steps(tmp_path))
        assert eventually(lambda before=before: len(steps(tmp_path)) > before + 10), (tmp_path / "job.log").read_text()
        # At the time limit, Slurm signals only the ranks, not the script; the limit is too long for a test.
        shell("scancel", *(["--signal=TERM"] if stop == "the time limit" else []), job)
        states = ("CANCELLED",) if stop == "scancel" else ("PENDING", "REQUEUED")  # requeued by the script
        assert eventually(lambda job=job, states=states: state(shell, job) in states), state(shell, job)
        shell("scancel", job)
        assert eventually(lambda: log.read(tmp_path / "run")[-1]["event"] == "stop")
    reached = steps(tmp_path)[-1]
    job = submit(shell, f"--num_iter={reached + 5}")
    assert eventually(lambda: state(shell, job) == "COMPLETED"), (tmp_path / "job.log").read_text()
    output = (tmp_path / "job.log").read_text()
    assert "resnet8 on 2 ranks" in output
    assert f"continuing after step {reached}" in output
    assert steps(tmp_path) == list(range(1, reached + 6))
    assert log.read(tmp_path / "run")[-1]["event"] == "evaluate"


BY_MPIRUN = f"""#!/bin/bash
export PYTHONPATH={ROOT} SLURM_OVERLAP=1 SLURM_CPU_BIND=none
"{ROOT}/.venv/bin/mpirun" -n 2 "{ROOT}/.venv/bin/python" -m labkit.train "$@"
"""


@pytest.mark.parametrize("how", ["train.sbatch", "mpirun"])
def test_on_the_small_slurm_it_listens_only_on_loopback(small, shell, tmp_path, how):
    (tmp_path / "by_mpirun").write_text(BY_MPIRUN)
    sockets, supervisor = {}, psutil.Process(small.slurm().supervisor_pid)

    def trains() -> bool:
        pids = {process.pid for process in supervisor.children(recursive=True)}
        sockets.update(listeners(lambda process: process.pid in pids))
        return len(steps(tmp_path)) > 3

    flags = ("--num_iter=100000", "--mode=train")
    if how == "mpirun":
        job = shell("sbatch", "--parsable", "--nodes=2", "--output=job.log", "by_mpirun", *FLAGS, *flags)
    else:
        job = submit(shell, *flags)
    assert eventually(trains), (tmp_path / "job.log").read_text()
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
    for name, script in {
        "lscpu": f"printf '%s\\n' {' '.join(repr(line) for line in lines)}",
        "srun": 'echo "$OMP_NUM_THREADS $TF_NUM_INTRAOP_THREADS $*"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_CPUS_ON_NODE": cpus, "SLURM_NTASKS_PER_NODE": tasks, "SLURM_JOB_NUM_NODES": 1, "KIT": ROOT}
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | {name: str(value) for name, value in slurm.items()} | env
    out = subprocess.run(["bash", SCRIPT], env=environ, capture_output=True, text=True, check=True).stdout
    assert out.startswith(f"{threads} {threads} ")
    assert f"--cpus-per-task={max(1, cpus // tasks)} " in out


def test_outside_the_kit_it_fails_with_a_remedy(shell, tmp_path):
    job = submit(shell, kit=tmp_path)
    assert eventually(lambda: state(shell, job) == "FAILED")
    assert f"train.sbatch: {tmp_path} has no .venv: submit from the kit's folder" in (tmp_path / "job.log").read_text()
    assert "ExitCode=2:0" in shell("scontrol", "show", "job", job)
