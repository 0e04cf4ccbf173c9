"""Students' servers as jobs of a real small Slurm: two log in, work on nodes' cores, and nothing is left afterwards."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hub_student import Student, code_on_card
from slurm_shell import shell_of

from labkit.slurm.cluster import Cluster
from labkit.system import addresses, processes
from labkit.system.errors import LabError
from labkit_classroom.hub import jobs, opening, settings
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.control import Hub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
SEATS = ("seat-01", "seat-02")
LOOK = """
import json, os
names = ("SLURM_JOB_NAME", "SLURMD_NODENAME", "SLURM_CPUS_ON_NODE", "JUPYTER_RUNTIME_DIR", "LABKIT_SLOTS")
here = {"cpus": len(os.sched_getaffinity(0)), "folder": os.getcwd()}
print(json.dumps({name: os.environ.get(name) for name in names} | here))
"""


@pytest.fixture(scope="module")
def cluster(slurm_is_installed, tmp_path_factory):
    """Yield a small Slurm of two nodes."""
    one = Cluster(tmp_path_factory.mktemp("hub cluster") / "cluster")
    one.up(2, until=os.getpid())
    yield one
    one.down()


@pytest.fixture(scope="module")
def room(cluster, tmp_path_factory):
    """Yield a hub that is open, in a folder with a blank, with what a student's server was found to be held to."""
    folder = tmp_path_factory.mktemp("a hub of jobs")
    hub = Hub(folder / "hub")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "find_slurm", cluster.slurm)
        (port,) = addresses.free_ports(1)
        wanted = opening.settle(
            *(2, ["00"], "127.0.0.1", port),
            memory_gib=1,
            cores=1,
            students_files=folder / "students",
            keep_apart=settings.SLURM,
            divide=True,
            hours=1.5,
        )
        try:
            rows, _ = opening.open_checked(hub, wanted)
            shell = shell_of(cluster, folder)
            yield SimpleNamespace(hub=hub, url=wanted.url, rows=rows, state=hub.state, wanted=wanted, shell=shell)
        finally:
            hub.stop(delete_files=True)


@pytest.fixture(scope="module")
def students(room):
    """Two who log in at the same time, and have JupyterLab."""

    def arrive(seat: str) -> Student:
        student = Student(room.url, seat)
        student.log_in(code_on_card(room.hub.cards, seat)).raise_for_status()
        page = student.open_lab()
        assert "jupyter-config-data" in page.text, page.text[:500]
        return student

    with ThreadPoolExecutor() as pool:
        return dict(zip(SEATS, pool.map(arrive, SEATS), strict=True))


def queue(room, what: str = "%j") -> list[str]:
    return sorted(room.shell(f"squeue -h -o '{what}'").splitlines())


def of_seat(room, seat: str) -> list:
    home = str(room.state.request.home(seat))
    return processes.find(lambda one: processes.environ_of(one).get("LAB_FOLDER") == home)


def test_the_check_says_what_slurm_gives_and_what_it_does_not_hold_to(room):
    rows = {row.what: row for row in room.rows}
    assert all(row.holds for row in room.rows), room.rows
    assert rows["memory that Slurm gives"].found == "1.0 GiB"
    assert rows["CPUs that Slurm gives"].found == "1"
    assert rows["time that Slurm gives"].found == "1.5 h"
    assert "no limit: the small Slurm sets none" in rows["memory in its reach"].found


def test_each_server_is_a_job_on_a_nodes_cores(room, students):
    assert queue(room) == [room.state.account(seat) for seat in SEATS]
    assert len(set(queue(room, "%N"))) == 2  # each node has a core
    for seat, student in students.items():
        seen = json.loads(student.run(LOOK))
        assert seen["SLURM_JOB_NAME"] == room.state.account(seat)
        assert seen["SLURMD_NODENAME"] in ("n1", "n2")
        assert seen["cpus"] == 1
        assert seen["LABKIT_SLOTS"] is None  # a job's cores are its own
        assert seen["folder"] == str(room.state.request.home(seat))


def test_a_server_listens_where_the_hub_reaches_it_and_nowhere_else(room, students):
    for seat in SEATS:
        listens = [
            one.laddr.ip
            for process in of_seat(room, seat)
            for one in process.net_connections("inet")
            if one.status == psutil.CONN_LISTEN
        ]
        assert set(listens) == {room.state.hub_address}, listens


def test_ranks_run_within_the_job(room, students):
    printed = students["seat-01"].run("""
from pathlib import Path
from labkit.mpi import run_ranks
Path("hello.py").write_text("from mpi4py import MPI\\nprint('rank', MPI.COMM_WORLD.rank, 'of', MPI.COMM_WORLD.size)")
run_ranks(2, "hello.py")
""")
    assert "rank 1 of 2" in printed, printed


def test_a_killed_hub_goes_on_with_its_jobs(room, students):
    before = queue(room, "%A")
    os.kill(room.hub.pid(), signal.SIGKILL)
    assert processes.wait_until(lambda: not room.hub.pid(), 10)
    assert not room.hub.start(room.wanted)  # it is not a new one
    assert Client(room.state).servers() == dict.fromkeys(SEATS, "ready")
    assert students["seat-01"].run("print(6 * 7)").strip() == "42"
    assert queue(room, "%A") == before


def test_a_check_of_full_nodes_says_so_and_leaves_the_queue(room, students, monkeypatch):
    monkeypatch.setattr(jobs, "PLACE_TIMEOUT_S", 3.0)
    with pytest.raises(LabError, match="no place for a server"):
        opening.verify(room.hub)
    assert queue(room) == [room.state.account(seat) for seat in SEATS]


def test_stop_ends_the_job_and_all_that_it_started(room, students):
    students["seat-02"].run("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    runtime = Path(json.loads(students["seat-02"].run(LOOK))["JUPYTER_RUNTIME_DIR"])
    assert runtime.is_dir()
    Client(room.state).stop("seat-02")
    assert queue(room) == [room.state.account("seat-01")]
    assert processes.wait_until(lambda: not of_seat(room, "seat-02"), 30)
    assert not runtime.exists()


def test_down_leaves_no_job_of_a_killed_hub(room, students):
    other = room.shell("sbatch --parsable -n1 --wrap 'sleep 600'").strip()
    os.kill(room.hub.pid(), signal.SIGKILL)  # it cannot cancel its jobs
    assert processes.wait_until(lambda: not room.hub.pid(), 10)
    assert room.state.account("seat-01") in queue(room)
    assert room.hub.stop()
    assert queue(room, "%A") == [other]  # nobody else's job is touched
    room.shell(f"scancel {other}")
    assert not of_seat(room, "seat-01")
    assert not room.hub.folder.exists()
    assert not room.state.runtime.exists()
    assert (room.state.request.home("seat-01") / "00_welcome.ipynb").exists()


def test_a_hub_ends_though_the_small_slurm_is_down(cluster, room, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "find_slurm", cluster.slurm)
    hub = Hub(tmp_path / "hub")
    wanted = opening.settle(
        *(1, ["00"], "127.0.0.1", addresses.free_ports(1)[0]),
        memory_gib=0,
        students_files=tmp_path / "students",
        keep_apart=settings.SLURM,
    )
    try:
        hub.start(wanted)
        client = Client(hub.state)
        client.start("seat-01")
        client.wait("seat-01", 120)
        cluster.down()
        os.kill(hub.pid(), signal.SIGTERM)
        assert processes.wait_until(lambda: not hub.pid(), 40)  # Slurm's commands look for their file for 60 s
    finally:
        assert hub.stop(delete_files=True)
    folder = str(hub.folder)
    assert not processes.find(lambda one: processes.environ_of(one).get(settings.VARIABLE) == folder)
