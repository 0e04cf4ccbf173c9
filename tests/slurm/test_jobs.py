"""Jobs are followed, signalled and cancelled: with a mock Slurm, the small one, and ranks."""

import os
import shlex
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from slurm_shell import script

from labkit.mpi import RankError
from labkit.slurm import jobs
from labkit.slurm.cluster import Cluster, Slurm
from labkit.slurm.jobs import Job, NotStarted, RankJob, slurm_command, submit_job
from labkit.system import processes
from labkit.system.errors import LabError

PYTHON = shlex.quote(sys.executable)  # the checkout's path may have spaces


# --- Slurm's answers, from a mock Slurm ---


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A mock Slurm: squeue prints the lines of `states` in order; `calls` has scancel's arguments."""
    programs = tmp_path / "programs"
    programs.mkdir()
    next_state = f"s={tmp_path}/states; head -1 $s; [ $(wc -l <$s) = 1 ] || sed -i 1d $s"
    script(programs, "squeue", f"#!/bin/sh\n{next_state}\n")
    script(programs, "scancel", f"#!/bin/sh\necho $* >>{tmp_path}/calls\n")
    script(programs, "sbatch", "#!/bin/sh\necho '7;big'\n")
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setattr(jobs, "STATE_INTERVAL_S", {"own": 0.0, "real": 0.0})
    return Slurm("real", 2, 1, {})


@pytest.fixture
def job(slurm, tmp_path):
    (tmp_path / "job.log").write_text("\n".join(f"line {number}" for number in range(20)))
    return Job(slurm, "7", tmp_path / "job.log")


def set_states(folder: Path, *states: str) -> None:
    (folder / "states").write_text("".join(f"{state}\n" for state in states))


def cancelled(folder: Path) -> list[str]:
    calls = folder / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_a_job_is_submitted_with_the_printed_command(slurm, tmp_path, capsys):
    job = submit_job(slurm, "sbatch", "--parsable", f"--output={tmp_path / 'log'}", "a script", output=tmp_path / "log")
    assert (job.number, job.output) == ("7", tmp_path / "log")
    assert capsys.readouterr().out == f"$ sbatch --parsable --output={tmp_path / 'log'} 'a script'\n"


def test_a_rejected_job_reports_the_reason_and_the_alternative(slurm, tmp_path):
    script(tmp_path / "programs", "sbatch", "#!/bin/sh\necho 'sbatch: error: no such partition' >&2\nexit 1\n")
    with pytest.raises(NotStarted, match=r"sbatch failed: .*no such partition.*slurm = None"):
        submit_job(slurm, "sbatch", output=tmp_path / "log")


def test_a_missing_or_hanging_command_is_a_one_line_error(slurm, tmp_path, monkeypatch):
    with pytest.raises(LabError, match=r"^no-such-command failed: .*Is Slurm installed\?$"):
        slurm_command("no-such-command")
    script(tmp_path / "programs", "sinfo", "#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(jobs, "COMMAND_TIMEOUT_S", 0.2)
    with pytest.raises(LabError, match=r"^sinfo failed: no answer .*Is the cluster up\?$"):
        slurm_command("sinfo")


def test_commands_inherit_no_variables_of_an_enclosing_job_or_kernel(slurm, tmp_path, monkeypatch):
    script(tmp_path / "programs", "sbatch", '#!/bin/sh\necho "$SLURM_JOB_ID$TMPDIR,$SLURM_CONF,$KIT"\n')
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("TMPDIR", "/tmp/of-a-kernel")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    job = submit_job(slurm, "sbatch", output=tmp_path / "log", env={"KIT": tmp_path})
    assert job.number == f",/etc/slurm.conf,{tmp_path}"


def test_each_state_is_reported_once(job, tmp_path):
    set_states(tmp_path, "PENDING", "PENDING", "RUNNING", "RUNNING", "COMPLETED")
    states = []
    assert job.wait(on_state=states.append) == "COMPLETED"
    assert states == ["PENDING", "RUNNING", "COMPLETED"]
    assert cancelled(tmp_path) == []


def test_a_failed_job_is_reported_with_its_last_lines(job, tmp_path):
    set_states(tmp_path, "RUNNING", "FAILED")
    with pytest.raises(LabError, match=r"job 7 is FAILED; the last lines of .*job\.log:\n  line 10\n") as error:
        job.wait()
    assert "line 9\n" not in str(error.value)


@pytest.mark.parametrize(("name", "arguments"), [("TERM", "7"), ("USR2", "--signal=USR2 7")])
def test_a_signalled_job_may_fail(job, tmp_path, name, arguments, capsys):
    set_states(tmp_path, "FAILED")
    job.signal(name)
    assert job.wait() == "FAILED"
    assert cancelled(tmp_path) == [arguments]
    assert capsys.readouterr().out == f"$ scancel {arguments}\n"


def test_a_job_is_cancelled_after_a_timeout(job, tmp_path):
    set_states(tmp_path, "RUNNING")
    with pytest.raises(LabError, match=r"job 7 did not end within 0\.2 s: read .*job\.log"):
        job.wait(timeout_s=0.2)
    assert cancelled(tmp_path) == ["7"]


def test_an_interrupt_cancels_the_job(job, tmp_path):
    set_states(tmp_path, "RUNNING")
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert cancelled(tmp_path) == ["7"]


def test_a_forgotten_job_is_over_and_a_silent_slurm_is_queried_again(job, tmp_path):
    squeue = tmp_path / "programs" / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2\nexit 1\n")
    assert job.wait() == "COMPLETED"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert job.state() == "UNKNOWN"


def test_complete_lines_are_passed_on_as_they_arrive(tmp_path):
    path, passed_on = tmp_path / "log", []
    lines = jobs._LogLines(path, passed_on.append)
    lines.pass_on()
    for text, expected in (("one\ntw", ["one"]), ("o\n\nthree\n", ["two", "", "three"]), ("", [])):
        with path.open("a") as file:
            file.write(text)
        lines.pass_on()
        assert passed_on == expected
        passed_on.clear()
    path.write_text("one\n")  # lines that a resumed run truncates are not passed on again
    lines.pass_on()
    with path.open("a") as file:
        file.write("two again\n")
    lines.pass_on()
    assert passed_on == ["two again"]


# --- A real Slurm ---


COUNTS = """
import os, pathlib, signal, sys, time

def save(*_):
    with open(f"log-{os.environ.get('SLURM_PROCID', os.environ.get('PMI_RANK'))}", "a") as log:
        print("saved", file=log)
    sys.exit(75)

signal.signal(signal.SIGTERM, save)
for number in range(int(sys.argv[1])):
    with open(f"log-{os.environ.get('SLURM_PROCID', os.environ.get('PMI_RANK'))}", "a") as log:
        print(number, file=log)
    time.sleep(0.05)
print("counted")
"""


@pytest.fixture
def start(request, tmp_path, monkeypatch):
    """Return a function that starts a script, with Slurm or mpirun, that counts into the file log-0."""
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, "counts.py", COUNTS)

    def by_slurm(count: int) -> Job:
        slurm = request.getfixturevalue("small").slurm()
        monkeypatch.setenv("SLURM_CONF", slurm.variables["SLURM_CONF"])
        options = ("--parsable", "--nodes=2", "--ntasks-per-node=1", "--output=job.log")
        wrapped = f"srun {PYTHON} counts.py {count}"
        return submit_job(slurm, "sbatch", *options, "--wrap", wrapped, output=tmp_path / "job.log")

    return by_slurm if request.param == "slurm" else lambda count: RankJob(2, path, count, threads=1)


everywhere = pytest.mark.parametrize("start", ["slurm", "ranks"], indirect=True)


@everywhere
def test_a_job_is_followed_to_its_end(start, tmp_path):
    job, lines, states = start(20), [], []
    assert job.wait(tmp_path / "log-0", lines.append, states.append) == "COMPLETED"
    assert lines == [str(number) for number in range(20)]
    assert "RUNNING" in states
    assert states[-1] == "COMPLETED"
    assert "counted" in job.read_output()


@everywhere
def test_a_job_signalled_at_a_line_stops_and_saves(start, tmp_path):
    job, lines = start(1000), []

    def on_line(line):
        lines.append(line)
        if line == "3":
            job.signal("TERM")

    assert job.wait(tmp_path / "log-0", on_line) == "CANCELLED"
    assert lines[-1] == "saved"
    assert len(lines) < 1000
    assert (tmp_path / "log-1").read_text().endswith("saved\n")


@everywhere
def test_a_failing_log_callback_ends_the_job(start, tmp_path):
    def running() -> list[psutil.Process]:
        return processes.find(lambda rank: "counts.py" in " ".join(rank.cmdline()) and rank.cwd() == str(tmp_path))

    def on_line(line):
        raise ValueError(f"{line}, {len(running())} processes")

    with pytest.raises(ValueError, match=r"^0, [1-9]"):
        start(100).wait(tmp_path / "log-0", on_line)
    assert processes.wait_until(lambda: not running(), 60)


@pytest.mark.parametrize("how", ["down", "killed"])
def test_a_small_slurm_that_is_gone_is_a_one_line_error(slurm_is_installed, tmp_path, monkeypatch, how):
    cluster = Cluster(tmp_path / "cluster")
    try:
        slurm = cluster.up(1, until=os.getpid())
        monkeypatch.setenv("SLURM_CONF", slurm.variables["SLURM_CONF"])
        monkeypatch.chdir(tmp_path)
        options = ("--parsable", "--output=job.log", "--wrap", "sleep 600")
        job = submit_job(slurm, "sbatch", *options, output=tmp_path / "job.log")

        def on_state(state):
            if state == "RUNNING":
                cluster.down() if how == "down" else os.kill(slurm.supervisor_pid, signal.SIGKILL)

        began, message = time.monotonic(), r"^the small Slurm has ended, and job \d+ with it \(.*\./lab cluster up"
        with pytest.raises(LabError, match=message) as error:
            job.wait(on_state=on_state)
        assert "\n" not in str(error.value)
        assert time.monotonic() - began < jobs.JOB_TIMEOUT_S / 10  # it did not end by the time limit
    finally:
        cluster.down()


def test_a_rank_that_fails_without_a_signal_is_an_error(tmp_path):
    path = script(tmp_path, "fails.py", "raise SystemExit(3)")
    with pytest.raises(RankError, match="exit status 3"):
        RankJob(1, path, threads=1).wait()
