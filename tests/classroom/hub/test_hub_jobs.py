"""What a hub asks of Slurm, and what it makes of its answers."""

import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from labkit.cli import application
from labkit.slurm import Slurm
from labkit.system.errors import LabError
from labkit_classroom.hub import check, control, jobs, memory, opening, settings

REAL = Slurm("real", nodes=3, cpus_per_node=8, variables={})
SEEN = {"memory": 2 << 30, "cores": None, "tasks": -1, "cpus": [0, 1], "write": [], "read": [], "signal": 0}
SEEN |= {"privileges": True, "job": jobs.Given(2, 2 << 30, 8.0)}


@pytest.fixture
def cluster(monkeypatch):
    """A cluster as its commands would show it."""
    monkeypatch.setattr(jobs, "find_slurm", lambda: REAL)
    monkeypatch.setattr(jobs, "query", lambda *argv, environ: "n1 127.0.0.1")


@pytest.fixture
def asked(cluster, tmp_path):
    def ask(**options) -> settings.Request:
        return opening.settle(40, ["00"], "127.0.0.1", 8000, students_files=tmp_path, keep_apart="slurm", **options)

    return ask


@pytest.fixture
def made(asked, tmp_path):
    """Make a hub of what is asked, without starting it."""

    def make(**options) -> settings.State:
        return settings.State(asked(**options), folder=tmp_path, runtime=tmp_path / "lab-hub-1")

    return make


def broken(hub: settings.State, **seen) -> list[str]:
    return [row.what for row in check.judge(hub, SEEN | seen) if not row.holds]


def test_a_job_asks_for_whole_cpus_of_a_node_and_the_room_for_no_measuring_slots(asked):
    wanted = asked(divide=True)
    assert (wanted.cores, wanted.hours, wanted.cpus) == (2, 8, ())
    assert asked(cores=8).cores == 8
    for cores in (0, 1.5, 9):
        with pytest.raises(LabError, match="its node has 8"):
            asked(cores=cores)
    assert "12 servers at a time" in opening.capacity(wanted, 0, ["00"])[0]


def test_without_a_slurm_or_with_wires_it_says_what_to_do(asked, monkeypatch):
    monkeypatch.setattr(jobs, "find_slurm", lambda: replace(REAL, network="2 nodes at 1 Gbit/s"))
    with pytest.raises(LabError, match="without --network"):
        asked()
    monkeypatch.setattr(jobs, "find_slurm", lambda: None)
    with pytest.raises(LabError, match="lab cluster up"):
        asked()


def test_what_the_user_has_set_for_sbatch_reaches_it(monkeypatch):
    environ = {"SBATCH_PARTITION": "cpu", "SLURM_CONF": "/etc/x.conf", "SLURM_JOB_ID": "1", "PATH": "/bin"}
    assert jobs.variables(REAL, environ) == {"SBATCH_PARTITION": "cpu", "SLURM_CONF": "/etc/x.conf"}
    small = replace(REAL, variables={"SLURM_CONF": "/tmp/lab-cluster-x/slurm.conf"})
    assert jobs.variables(small, environ)["SLURM_CONF"] == "/tmp/lab-cluster-x/slurm.conf"


def test_what_a_real_cluster_does_not_hold_keeps_the_room_closed(made):
    hub = made(memory_gib=2)
    assert broken(hub) == []
    assert broken(hub, memory=None) == ["memory in its reach"]
    assert broken(hub, cpus=[0, 1, 2, 3]) == ["CPUs in its reach"]
    assert broken(hub, job=jobs.Given(1, 2 << 30, 8.0)) == ["CPUs that Slurm gives"]
    assert broken(hub, job=jobs.Given(2, 1 << 30, 1.0)) == ["memory that Slurm gives", "time that Slurm gives"]
    assert broken(made(memory_gib=0), memory=None) == []


def test_the_small_slurm_may_hold_nobody_and_that_is_said(made):
    hub = replace(made(memory_gib=2), variables={"SLURM_CONF": "/tmp/lab-cluster-x/slurm.conf"})
    assert broken(hub, memory=None, cpus=[0, 1, 2, 3]) == []
    found = {row.what: row.found for row in check.judge(hub, SEEN | {"memory": None})}
    assert found["memory in its reach"] == "no limit: the small Slurm sets none"


@pytest.mark.parametrize(
    ("memory", "start", "end", "expected"),
    [
        ("4G", "2026-03-01T08:00:00", "2026-03-01T16:00:00", jobs.Given(2, 4 << 30, 8.0)),
        ("1500M", "2026-03-01T23:00:00", "2026-03-02T00:30:00", jobs.Given(2, 1500 << 20, 1.5)),
        ("0", "N/A", "N/A", jobs.Given(2, 0, float("inf"))),
    ],
)
def test_slurms_words_are_read(made, monkeypatch, memory, start, end, expected):
    hub = made()
    lines = [
        "7 lab-hub-2-seat-01 RUNNING 1 1M N/A N/A",
        f"8 lab-hub-1-seat-01 RUNNING 2 {memory} {start} {end}",
        "9 lab-hub-1-seat-02 PENDING 2 4G 2026-03-01T08:00:00 2026-03-01T16:00:00",
        "10 a job RUNNING 1 0 N/A N/A",
    ]
    monkeypatch.setattr(jobs, "query", lambda *argv, environ: "\n".join(lines))
    assert jobs.given(hub, "seat-01") == expected
    assert jobs.given(hub, "seat-02") is None


def test_a_node_that_is_this_machine_is_reached_where_its_server_listens(made):
    hub = made()
    job = {
        "JUPYTERHUB_API_URL": f"http://{hub.hub_address}:1/hub/api",
        "JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:0/user/",
    }
    assert jobs.reached_at(hub, "127.0.1.1") == jobs.reached_at(hub, "localhost") == "127.0.0.1"
    assert jobs.listen_on_node(job) == {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/user/"}
    assert jobs.reached_at(hub, "192.0.2.7") == "192.0.2.7"  # an address for documentation


def test_down_does_not_forget_jobs_while_slurm_does_not_answer(made, monkeypatch, tmp_path):
    hub = made()
    monkeypatch.setattr(jobs, "query", lambda *argv, environ: None)
    with pytest.raises(LabError, match="does not answer"):
        jobs.cancel_all(hub)
    jobs.cancel_all(replace(hub, variables={"SLURM_CONF": str(tmp_path / "gone")}))  # the small one ended them


@pytest.mark.parametrize("command", ["up", "check"])
@pytest.mark.parametrize("isolation", [settings.SLURM, settings.NONE])
def test_no_student_becomes_root(command, isolation, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(control.Hub, "pid", lambda hub: None)
    monkeypatch.setattr(memory, "of_labs", lambda *_: pytest.fail("it takes minutes before it refuses"))
    result: Result = CliRunner().invoke(application(), ["hub", command, "--isolation", isolation])
    assert isinstance(result.exception, LabError)
    assert "every student root" in str(result.exception)


@pytest.mark.slow
def test_a_hub_of_accounts_does_not_have_batchspawners_request():
    """By that request, whoever has a server could have root run commands."""
    code = "import sys; from labkit_classroom.hub import configuration, spawners; print('batchspawner' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"
