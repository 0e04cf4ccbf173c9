"""A hub on a machine with systemd, which is booted in namespaces if root is allowed to."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hub_student import Student, code_on_card

from labkit.mpi.mpirun import BIN
from labkit.system import paths, processes
from labkit.system.addresses import free_ports
from labkit.system.errors import LabError
from labkit_classroom.hub import control, settings
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.control import CARDS

pytestmark = [pytest.mark.weekly, pytest.mark.timeout(420)]
HERE = Path(__file__).parent
SYSTEMD = Path("/lib/systemd/systemd")
BOOT_TIMEOUT_S = 60
SEATS = ("seat-01", "seat-02")
PRIVATE = (Path("/tmp"), Path("/var/tmp"))  # private to each unit
FILES = Path("/srv/all students")


class Machine:
    """A booted systemd with its own processes, accounts and files, on this machine's network."""

    def __init__(self, booted: psutil.Process) -> None:
        self._pid = booted.pid
        self.root = Path(f"/proc/{booted.pid}/root")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command there as root."""
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root", "--wd"]
        clean = ["env", "-i", f"PATH={os.environ['PATH']}", "HOME=/root", "LANG=C.UTF-8"]
        return subprocess.run(
            ["nsenter", f"--target={self._pid}", *spaces, *clean, *command], capture_output=True, text=True, timeout=300
        )

    def lab(self, *arguments: str) -> str:
        """Run one of the kit's commands there; return its output."""
        done = self.run(str(BIN / "labkit"), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def inside(self, path: Path) -> Path:
        """Return the path of one of its files as seen from outside."""
        return self.root / path.relative_to("/")


def problem() -> str:
    """Return why no systemd can be booted here; empty if it can be tried."""
    if os.geteuid() != 0:
        return "root is required"
    if not SYSTEMD.exists() or not all(map(shutil.which, ("findmnt", "nsenter", "setpriv", "unshare", "systemctl"))):
        return "systemd and util-linux are required"
    if paths.ROOT.stat().st_dev != Path("/").stat().st_dev:
        return "the kit is not on the root file system"
    if any(paths.ROOT.is_relative_to(private) for private in PRIVATE):
        return "the kit is in a folder that systemd makes private"
    return ""


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Machine]:
    """A freshly booted machine; if none can be booted, the tests are skipped with the reason."""
    reason, group = problem(), f"lab-test-{uuid.uuid4().hex[:8]}"
    if reason:
        pytest.skip(f"no systemd: cannot boot one: {reason}")
    log = tmp_path_factory.mktemp("systemd") / "log"
    with log.open("w") as output:
        python = os.path.realpath(sys.executable)
        command = ["setpriv", "--pdeathsig=KILL", HERE / "boot-systemd", group, python]  # ends with this process
        booting = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    try:
        up = processes.wait_until(lambda: booting.poll() is not None or _is_up(booting.pid), BOOT_TIMEOUT_S)
        if not up or booting.returncode is not None:  # some containers forbid namespaces or overlays
            last_lines = log.read_text().strip().splitlines()[-1:] or [f"not up after {BOOT_TIMEOUT_S} s"]
            pytest.skip(f"no systemd: cannot boot one: {last_lines[0]}")
        (booted,) = psutil.Process(booting.pid).children()
        yield Machine(booted)
    finally:
        booting.kill()  # and with it all processes in the namespace
        booting.wait()
        assert processes.wait_until(lambda: _remove_groups(group), 10)


def _is_up(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):  # it has just ended
        for booted in psutil.Process(pid).children():
            if booted.cmdline()[:1] == [str(SYSTEMD)]:
                return Machine(booted).run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded")
    return False


def _remove_groups(name: str) -> bool:
    """Remove a control group and its children from every hierarchy; return whether all are gone."""
    mounted = subprocess.run(["findmnt", "-rnt", "cgroup,cgroup2", "-o", "TARGET"], capture_output=True, text=True)
    tops = [Path(target) / name for target in mounted.stdout.split()]
    for top in tops:
        for folder, *_ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # processes are still exiting
                Path(folder).rmdir()
    return not any(map(Path.exists, tops))


class Room:
    """A hub with two seats on that machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.options = ["--students", "2", "--labs", "00", "--address", f"127.0.0.1:{free_ports(1)[0]}"]
        self.options += ["--files", str(FILES)]
        self.printed = machine.lab("hub", "up", "--memory", "2", *self.options)
        self.folder = machine.inside(settings.FOLDER)
        self.settings = settings.load(self.folder)
        self.client = Client(self.settings, self.folder)

    def units(self) -> list[str]:
        """Return the names of its units, including failed ones."""
        listed = self.machine.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "jupyter-*")
        return [line.split()[0] for line in listed.stdout.splitlines()]


@pytest.fixture(scope="module")
def room(machine) -> Room:
    return Room(machine)


@pytest.fixture(scope="module")
def students(room) -> dict[str, Student]:
    """Two students who have logged in and opened JupyterLab."""
    students_by_seat = {seat: Student(room.settings.url, seat) for seat in SEATS}
    for seat, student in students_by_seat.items():
        student.log_in(code_on_card(room.folder / CARDS, seat)).raise_for_status()
        assert "jupyter-config-data" in student.open_lab().text
    return students_by_seat


def test_it_opens_with_verified_limits(room, students):
    assert "students with 2 GiB each; 2 are expected" in room.printed
    printed = [line.split() for line in room.printed.splitlines()]
    assert ["memory", "2.0", "GiB", "2.0", "GiB"] in printed
    assert ["privilege", "escalation", "blocked", "blocked"] in printed
    assert sorted(room.units()) == [f"jupyter-{seat}-singleuser.service" for seat in SEATS]
    assert room.settings.url in room.machine.lab("hub", "status")


def test_students_are_isolated_from_each_other(room, students):
    printed = students["seat-01"].run(f"""
import os, pathlib, psutil, subprocess
def outcome(attempt):
    try:
        return attempt()
    except OSError as error:
        return type(error).__name__
print(outcome(lambda: os.listdir({str(FILES / "seat-02")!r})))
print(outcome(lambda: pathlib.Path({str(paths.ROOT / "of-a-student")!r}).touch()))
print(outcome(lambda: pathlib.Path({str(settings.FOLDER / settings.TOKEN)!r}).read_text()))
print(outcome(lambda: pathlib.Path({str(FILES / ".codes.json")!r}).read_text()))
print({{process.uids().real for process in psutil.process_iter()}} == {{os.getuid()}})
for folder in ("/dev/shm", "/tmp", "/var/tmp"):
    pathlib.Path(folder, "of-seat-01").touch()
print(subprocess.run(["systemctl", "stop", "jupyter-seat-02-singleuser"], capture_output=True).returncode != 0)
""")
    assert printed.split() == ["PermissionError", "OSError", "PermissionError", "PermissionError", "True", "True"]
    listed = students["seat-02"].run("import glob; print(glob.glob('/*/of-seat-*') + glob.glob('/*/*/of-seat-*'))")
    assert listed.strip() == "[]"


def test_ranks_run_in_a_unit(students):
    students["seat-01"].run("open('sum.py', 'w').write('from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1))')")
    printed = students["seat-01"].run("from labkit.mpi import run_ranks; print(run_ranks(2, 'sum.py').lines)")
    assert printed.splitlines()[-1] == "(('2',), ('2',))"


def test_exceeding_the_memory_limit_does_not_affect_others(students):
    greedy, other = students["seat-01"], students["seat-02"]
    with pytest.raises(LabError, match="the kernel died"):
        greedy.run("data = b'x' * (3 << 30)")
    assert greedy.run("print(6 * 7)").strip() == "42"
    assert other.run("print(6 * 7)").strip() == "42"


def test_a_fork_bomb_is_stopped_at_its_limit(students):
    printed = students["seat-01"].run("""
import resource, subprocess
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (200, hard))
processes = []
try:
    for _ in range(400):
        processes.append(subprocess.Popen(["sleep", "60"]))
except OSError as error:
    print("ended")
for process in processes: process.kill()
try: resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1))
except ValueError: print("held")
""")
    assert printed.split() == ["ended", "held"]


def test_a_killed_server_starts_again(room, students):
    unit = "jupyter-seat-01-singleuser.service"
    assert room.machine.run("systemctl", "kill", f"--signal={signal.SIGKILL}", unit).returncode == 0
    assert processes.wait_until(lambda: "seat-01" not in room.client.servers(), 60)
    page = f"{room.settings.url}/hub/spawn/seat-01"  # as the student's page offers
    assert students["seat-01"].browser.get(page, timeout=120).ok
    assert students["seat-01"].open_lab().ok
    assert students["seat-01"].run("print(6 * 7)").strip() == "42"


def test_down_leaves_no_units_accounts_or_processes(room, students):
    room.machine.run("systemctl", "kill", f"--signal={signal.SIGKILL}", "jupyter-seat-01-singleuser.service")
    room.machine.lab("hub", "down")
    assert room.units() == []
    assert room.machine.run("getent", "passwd", *SEATS).stdout == ""
    assert not room.folder.exists()
    assert not room.machine.inside(control.RUNTIME).exists()
    assert room.machine.inside(FILES / "seat-01" / "00_welcome.ipynb").exists()
    assert not processes.find(lambda one: processes.environ_of(one).get("LAB_FOLDER", "").startswith(str(FILES)))
