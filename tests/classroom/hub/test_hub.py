"""Four students through a real hub: login, JupyterLab, a cell, an exercise, the board; and what they cannot do."""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from hub_student import Student

from labkit.system import paths, processes
from labkit.system.errors import LabError
from labkit_classroom.hub import cgroups, configuration, hub_log, settings
from labkit_classroom.hub.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
SEATS = ("seat-01", "seat-02", "seat-03", "seat-04")
EXERCISE = """
from labkit.exercises import open_lab
QUICK = True
check, *_ = open_lab("00", globals())
def threads_per_rank(cores, ranks):
    return max(1, cores // ranks)
check(1, threads_per_rank)
"""
JOIN = """
import subprocess, sys
command = [sys.executable, "-c", "from labkit.cli import main; main()", "join"]
print(subprocess.run(command, capture_output=True, text=True))
"""


@pytest.fixture(scope="module")
def students(room):
    """Four who log in at the same time, and have JupyterLab."""

    def arrive(seat: str) -> Student:
        student = Student(room.url, seat)
        student.log_in(room.code(seat)).raise_for_status()
        page = student.open_lab()
        assert page.ok, page.text[:500]
        assert "jupyter-config-data" in page.text, page.url
        return student

    with ThreadPoolExecutor() as pool:
        return dict(zip(SEATS, pool.map(arrive, SEATS), strict=True))


def _of_account(room, seat: str) -> list[psutil.Process]:
    uid = room.state.request.home(seat).stat().st_uid
    return processes.find(lambda one: one.uids().real == uid)


def _start(client: Client, seat: str) -> None:
    client.start(seat)
    client.wait(seat, configuration.HTTP_TIMEOUT_S / 2)


def _cpu_seconds(room, seat: str) -> float:
    """Return the CPU time that all of an account's processes have had."""
    return sum(sum(one.cpu_times()[:2]) for one in _of_account(room, seat))


def test_what_was_asked_for_holds(room):
    assert all(row.holds for row in room.rows), room.rows


def test_each_works_in_copies_of_their_own(room, students):
    with ThreadPoolExecutor() as pool:
        seen = list(
            pool.map(lambda one: one.run("import os; print(os.getcwd(), len(os.listdir()))"), students.values())
        )
    for seat, printed in zip(SEATS, seen, strict=True):
        assert printed.startswith(str(room.state.request.home(seat)))
        labs = [copy.name for copy in room.state.request.home(seat).glob("*.ipynb")]
        assert labs == ["00_welcome.ipynb"], "only what is taught"


def test_an_exercise_is_checked_and_reaches_the_board(room, students):
    student = students["seat-01"]
    joined = student.run(JOIN)
    assert "returncode=0" in joined, joined
    assert "Exercise 1 · passed" in student.run(EXERCISE)

    def arrived() -> bool:
        return any(
            one["verdict"] == "passed"
            for (state,) in room.board.sql("SELECT state FROM seats")
            for one in json.loads(state)["exercises"]
        )

    assert processes.wait_until(arrived, 30)
    assert room.board.sql("SELECT name FROM seats") == [("seat-01",)]


def test_no_student_reaches_anothers_server(room, students):
    student = students["seat-02"]
    page = student.open_lab("seat-01")
    assert page.status_code in (403, 404)
    headers = student.headers
    for what in ("contents", "kernels", "terminals", "contents/00_welcome.ipynb"):
        reply = requests.get(f"{room.url}/user/seat-01/api/{what}", headers=headers, timeout=60)
        assert reply.status_code in (403, 404), what
    reply = requests.post(f"{room.url}/user/seat-01/api/kernels", json={}, headers=headers, timeout=60)
    assert reply.status_code in (403, 404)
    for what in ("users", "users/seat-01", "users/seat-01/server", "proxy", "shutdown"):
        reply = student.browser.get(f"{room.url}/hub/api/{what}", timeout=60)
        assert reply.status_code in (403, 404, 405), what


def test_the_login_page_has_the_workshops_name_and_no_warning_that_students_cannot_act_on(room):
    page = requests.get(f"{room.url}/hub/login", timeout=60).text
    assert "<title>A school &lt;2026&gt;</title>" in page
    assert '<p id="workshop" class="h2 text-center mb-4">A school &lt;2026&gt;</p>' in page
    assert "#insecure-login-warning { display: none; }" in page
    assert 'name="password"' in page


def test_the_login_takes_no_form_from_elsewhere(room):
    data = {"username": "seat-01", "password": room.code("seat-01")}
    assert requests.post(f"{room.url}/hub/login", data=data, timeout=60).status_code == 403


def test_a_wrong_code_and_a_wrong_seat_are_refused(room):
    student = Student(room.url, "seat-04")
    right = room.code("seat-04")
    wrong = right.translate(str.maketrans("23456789", "34567892")) + "A"
    assert student.log_in(wrong).status_code == 403
    for seat in ("seat-00", "seat-99", "root", "../seat-01", ""):
        assert Student(room.url, seat).log_in(right).status_code in (403, 404), seat


def test_codes_are_kept_hashed_and_closed_to_others(room):
    assert room.hub.folder.stat().st_mode & 0o077 == 0
    assert room.hub.cards.stat().st_mode & 0o077 == 0
    for file in room.hub.folder.iterdir():
        if file.is_file() and file != room.hub.cards:
            content = file.read_bytes()
            for seat in SEATS:
                assert room.code(seat).encode() not in content, file
                assert room.code(seat).replace("-", "").encode() not in content, file


def test_events_stream_through_the_proxy(room):
    """A page of a starting server shows how far it is: its events come one by one, not when all is over."""
    client = Client(room.hub.state)
    client.start(settings.CHECK_SEAT)
    url = f"{room.url}/hub/api/users/{settings.CHECK_SEAT}/server/progress"
    states = []
    with requests.get(url, headers=client.headers, stream=True, timeout=120) as events:
        for line in events.iter_lines(decode_unicode=True):
            if line.startswith("data:"):
                states.append((json.loads(line[5:]), client.servers()[settings.CHECK_SEAT]))
    client.stop(settings.CHECK_SEAT)
    assert states[0][1] != "ready"
    assert states[-1][0]["ready"]


def test_a_student_sees_nothing_of_others(room, students, accounts):
    closed = [room.state.request.home("seat-01"), room.state.sockets("seat-01"), room.hub.folder]
    kit = [paths.ROOT / name for name in ("labkit/evil.py", ".lab/evil", "notebooks/evil")]
    seen = students["seat-03"].run(f"""
import os, pathlib
for path in {list(map(str, closed))}:
    try: print("READ", os.listdir(path))
    except PermissionError: print("refused")
for path in {list(map(str, kit))}:
    try: print("WROTE", pathlib.Path(path).write_text(""))
    except OSError: print("refused")
try: print("READ THE LOG", os.open(f"/proc/{{os.getppid()}}/fd/1", os.O_RDONLY))
except PermissionError: print("refused")
""")
    assert seen.split() == ["refused"] * 7, seen


def test_a_student_has_nothing_of_the_hubs_open_but_a_pipe_to_its_log(room, students, accounts):
    """Descriptors of the server and its kernels: none leads to the hub's folder, or to what the hub has open."""
    students["seat-03"].run("print('a kernel has run')")
    hub = psutil.Process(room.hub.pid())
    of_hub = {one.pid for one in (hub, *hub.children(recursive=True)) if one.uids().real == os.geteuid()}

    def opened(pid: int) -> list[str]:
        return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]

    anonymous = {
        name for pid in of_hub for name in opened(pid) if name.startswith(("socket:", "pipe:", "anon_inode:["))
    }
    pipe = str(room.state.runtime / hub_log.OUTPUT / "seat-03")
    for process in _of_account(room, "seat-03"):
        found = opened(process.pid)
        assert not [name for name in found if name.startswith(str(room.hub.folder))], process
        assert not {name for name in found if name.startswith(("socket:", "pipe:"))} & anonymous, process
        assert {name for name in found if name.startswith(str(room.state.runtime))} <= {pipe}, process


SAY = """
import os, stat
for number in range(3, 256):
    try:
        if stat.S_ISFIFO(os.fstat(number).st_mode) and "seat-" in os.readlink(f"/proc/self/fd/{number}"):
            for what in (os.O_RDONLY, os.O_RDWR):
                try: os.open(f"/proc/self/fd/{number}", what)
                except PermissionError: pass
                else: print("opened it anew")
            os.write(number, b"lab: SAYING go to http://evil\\n\\x1b[2Jlab: SAYING too\\n")
            print("said")
            break
    except OSError: pass
"""


def test_what_a_student_says_is_in_the_log_under_the_seats_name(room, students, accounts):
    assert students["seat-03"].run(SAY.replace("SAYING", "FIRST")).split() == ["said"]
    assert processes.wait_until(lambda: "FIRST too" in (room.hub.folder / hub_log.LOG).read_text(), 10)
    lines = [line for line in (room.hub.folder / hub_log.LOG).read_text().splitlines() if "FIRST" in line]
    assert len(lines) == 2
    assert all(line.startswith("seat-03: ") for line in lines)


def test_what_the_kit_keeps_goes_to_the_students_own_folder(room, students, accounts):
    """The kit is read only: the machine's limits, the small Slurm's link, compiled libraries and drawn images."""
    printed = students["seat-03"].run("""
from pathlib import Path
from labkit.mpi import loopback
from labkit.roofline import measure
from labkit.slurm.cluster import Cluster
from labkit.system import paths
measure._make(measure.CACHE)
print(*(measure.CACHE, loopback.library(Path("/nowhere")), Cluster().link, paths.own(paths.DATA)), sep="\\n")
""")
    home = room.state.request.home("seat-03")
    assert [home in Path(line).parents for line in printed.splitlines()] == [True] * 4, printed


def test_a_server_that_cannot_start_says_why_within_seconds(room, students, accounts):
    """Its folder is no longer the student's, as after a full disk or a mistake with chown."""
    client, home = Client(room.state), room.state.request.home("seat-04")
    client.stop("seat-04")
    owner = home.stat().st_uid
    os.chown(home, 0, 0)
    try:
        with pytest.raises(LabError, match=r"(?s)seat-04 did not start.*seat-04: lab: .*Permission denied"):
            _start(client, "seat-04")
    finally:
        os.chown(home, owner, -1)
    _start(client, "seat-04")


def test_a_fork_bomb_ends_at_its_own_limit(room, students, accounts):
    printed = students["seat-02"].run(f"""
import resource, subprocess
resource.setrlimit(resource.RLIMIT_NPROC, (200, {room.state.request.tasks}))
held = []
try:
    for _ in range(400):
        held.append(subprocess.Popen(["sleep", "60"]))
    print("no limit")
except OSError as error:
    print("ended:", error.strerror)
for one in held: one.kill()
try:
    resource.setrlimit(resource.RLIMIT_NPROC, ({room.state.request.tasks + 1},) * 2)
    print("raised")
except ValueError:
    print("held")
""")
    assert "ended: " in printed, printed
    assert "held" in printed
    assert "4950" in students["seat-01"].run("print(sum(range(100)))")


def test_one_who_eats_memory_and_forks_harms_nobody(room, students, limits):
    """More memory than there may be, then fifty processes that spin: another's cell runs, and the limits hold."""
    other, greedy = students["seat-01"], students["seat-02"]
    printed = greedy.run("""
import subprocess, sys
eater = subprocess.run([sys.executable, "-c", "x = b'x' * (3 << 30); print('had it')"], capture_output=True, text=True)
print(eater.returncode, eater.stdout)
spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(50)]
""")
    assert printed.split() == ["-9"], printed
    before, seconds = _cpu_seconds(room, "seat-02"), 2.0
    time.sleep(seconds)
    took = _cpu_seconds(room, "seat-02") - before
    assert took < 1.5 * room.state.request.cores * seconds
    assert "4950" in other.run("print(sum(range(100)))")
    assert requests.get(f"{room.url}/hub/health", timeout=30).ok
    Client(room.state).stop("seat-02")
    assert processes.wait_until(lambda: not _of_account(room, "seat-02"), 30)


def test_a_kernel_that_dies_is_told_at_once_and_the_server_lives(students):
    with pytest.raises(LabError, match="the kernel died"):
        students["seat-01"].run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert students["seat-01"].run("print(6 * 7)").strip() == "42"


def test_a_killed_hub_goes_on_with_servers_and_codes(room, students):
    os.kill(room.hub.pid(), signal.SIGKILL)
    assert processes.wait_until(lambda: not room.hub.pid(), 10)
    assert students["seat-01"].run("print(6 * 7)").strip() == "42"  # students work on meanwhile
    assert not room.hub.start(room.wanted)  # it is not a new one
    assert not room.hub.is_open  # before it was looked at again
    assert Student(room.url, "seat-03").log_in(room.code("seat-03")).status_code == 403
    room.hub.open()
    assert set(Client(room.state).servers()) >= {"seat-01", "seat-03", "seat-04"}
    late = Student(room.url, "seat-03")
    assert late.log_in(room.code("seat-03")).ok
    assert late.open_lab().ok
    students["seat-01"].run(SAY.replace("SAYING", "SECOND"))  # to the hub that is up now
    assert processes.wait_until(lambda: "seat-01: lab: SECOND" in (room.hub.folder / hub_log.LOG).read_text(), 10)
    assert students["seat-01"].run("print(6 * 7)").strip() == "42"


def test_another_hub_is_not_started_in_its_place(room):
    with pytest.raises(LabError, match="the hub is up"):
        room.hub.start(room.wanted)


def test_down_leaves_nothing_but_students_files(room, students):
    state, folder = room.state, str(room.hub.folder)
    accounts = [state.account(seat) for seat in SEATS]
    uids = {state.request.home(seat).stat().st_uid for seat in SEATS} - {os.geteuid()}
    students["seat-01"].run("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    assert room.hub.stop()
    assert not room.hub.folder.exists()
    assert not state.runtime.exists()
    assert (state.request.home("seat-01") / "00_welcome.ipynb").exists()
    assert not cgroups.names(state.account(""))
    known = subprocess.run(["getent", "passwd", *accounts], capture_output=True, text=True).stdout
    assert known == ""
    for seat in SEATS:  # the next account that gets the number is somebody else's
        assert state.request.home(seat).stat().st_uid == os.geteuid()

    def is_left(process: psutil.Process) -> bool:
        return process.uids().real in uids or processes.environ_of(process).get(settings.VARIABLE) == folder

    assert not processes.find(is_left)
    assert not room.hub.stop()
