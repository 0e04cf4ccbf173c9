"""Four students on a real hub: login, JupyterLab, cells, exercises, the board, and isolation."""

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests
from hub_student import Student

from labkit.system import paths, processes
from labkit.system.errors import LabError
from labkit_classroom.hub import settings, student_server, verify

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.filterwarnings("ignore:Unverified HTTPS"),  # its certificate is the test's own
]
SEATS = ("seat-01", "seat-02", "seat-03", "seat-04")
EXERCISE = """
from labkit.exercises import open_lab
QUICK = True
check, *_ = open_lab("00", globals())
def threads_per_rank(cores, ranks):
    return max(1, cores // ranks)
check(2, threads_per_rank)
"""
JOIN = """
import subprocess, sys
command = [sys.executable, "-c", "from labkit.cli import main; main()", "join"]
print(subprocess.run(command, capture_output=True, text=True))
"""


@pytest.fixture(scope="module")
def students(room):
    """Four students who log in at the same time and open JupyterLab."""

    def arrive(seat: str) -> Student:
        student = Student(room.url, seat)
        student.log_in(room.code(seat)).raise_for_status()
        page = student.open_lab()
        assert page.ok, page.text[:500]
        assert "jupyter-config-data" in page.text, page.url
        return student

    with ThreadPoolExecutor() as pool:
        return dict(zip(SEATS, pool.map(arrive, SEATS), strict=True))


def get(room, path: str, **options: object) -> requests.Response:
    return requests.get(f"{room.url}{path}", timeout=60, verify=False, **options)


def hub_processes(room) -> dict[str, psutil.Process]:
    """Return the processes of JupyterHub and Traefik."""
    return {"traefik" if one.name() == "traefik" else "jupyterhub": one for one in room.hub._processes()}


def listening(process: psutil.Process) -> set[str]:
    return {one.laddr.ip for one in process.net_connections("inet") if one.status == "LISTEN"}


def test_it_opens_once_a_server_matches_the_request(room):
    assert [row for row in room.rows if row.actual != row.requested] == []
    assert bool(room.rows) == room.request.has_accounts


def test_every_student_works_in_their_own_copies(room, students):
    with ThreadPoolExecutor() as pool:
        seen = list(
            pool.map(lambda student: student.run("import os; print(os.getuid(), os.getcwd())"), students.values())
        )
    for seat, printed in zip(SEATS, seen, strict=True):
        assert printed.split(maxsplit=1)[1].strip() == str(room.request.home(seat))
        assert [copy.name for copy in room.request.home(seat).glob("*.ipynb")] == ["00_welcome.ipynb"]
    if room.request.has_accounts:
        assert len({printed.split()[0] for printed in seen}) == len(SEATS)


def test_an_exercise_is_checked_and_the_board_is_joined(students):
    assert "returncode=0" in students["seat-01"].run(JOIN)
    assert "Exercise 2 · passed" in students["seat-01"].run(EXERCISE)


def test_students_cannot_access_others_servers_or_the_hubs_api(room, students):
    student = students["seat-02"]
    assert student.open_lab("seat-01").status_code in (403, 404)
    for what in ("contents", "kernels", "terminals", "contents/00_welcome.ipynb"):
        assert get(room, f"/user/seat-01/api/{what}", headers=student.headers).status_code in (403, 404), what
    for what in ("users", "users/seat-01", "users/seat-01/server", "proxy", "shutdown"):
        assert student.browser.get(f"{room.url}/hub/api/{what}", timeout=60).status_code in (403, 404, 405), what


def test_wrong_codes_and_seats_are_refused(room):
    right = room.code("seat-04")
    wrong = right.translate(str.maketrans("23456789", "34567892")) + "A"
    assert Student(room.url, "seat-04").log_in(wrong).status_code == 403
    for seat in ("seat-00", "seat-99", "root", "../seat-01", ""):
        assert Student(room.url, seat).log_in(right).status_code in (403, 404), seat
    form = {"username": "seat-04", "password": right}  # from another page
    assert requests.post(f"{room.url}/hub/login", data=form, timeout=60, verify=False).status_code == 403


def test_codes_are_not_in_logs_or_readable_files(room, students):
    assert room.hub.folder.stat().st_mode & 0o077 == 0
    assert (room.request.files / ".codes.json").stat().st_mode & 0o077 == 0
    for file in room.hub.folder.iterdir():
        for seat in SEATS:
            code = room.code(seat)
            if file != room.hub.cards:
                assert code.encode() not in file.read_bytes(), file
                assert code.replace("-", "").encode() not in file.read_bytes(), file


def test_only_the_proxy_listens_beyond_loopback(room, students):
    assert listening(hub_processes(room)["jupyterhub"]) == {"127.0.0.1"}
    ports = [one.laddr for one in hub_processes(room)["traefik"].net_connections("inet") if one.status == "LISTEN"]
    assert {(one.ip, one.port) for one in ports} == {
        ("127.0.0.1", room.request.port),
        ("127.0.0.1", room.settings.api_port),
    }
    servers = verify.processes_of(room.settings, SEATS)
    assert set().union(*map(listening, servers)) == {"127.0.0.1"}


def test_the_proxy_sends_no_usage_data(room):
    config = (room.hub.folder / "traefik.toml").read_text()
    assert "checkNewVersion = false" in config
    assert "sendAnonymousUsage = false" in config


def test_a_starting_servers_progress_is_streamed(room):
    client = room.hub.client
    client.start(settings.CHECK_SEAT)
    states = []
    with get(
        room, f"/hub/api/users/{settings.CHECK_SEAT}/server/progress", headers=client.headers, stream=True
    ) as events:
        for line in events.iter_lines(decode_unicode=True):
            if line.startswith("data:"):
                states.append((json.loads(line[5:]), client.servers()[settings.CHECK_SEAT]))
    client.stop(settings.CHECK_SEAT)
    assert states[0][1] != "ready"
    assert states[-1][0]["ready"]


def test_students_cannot_read_others_files_or_write_to_the_kit(room, students, accounts):
    closed = [room.request.home("seat-01"), room.settings.runtime / "seat-01", room.hub.folder, room.request.key]
    closed += [room.request.files / ".codes.json", room.hub.folder / settings.TOKEN]
    kit = [paths.ROOT / name for name in ("labkit/evil.py", ".lab/evil", "notebooks/evil")]
    seen = students["seat-03"].run(f"""
import os, pathlib
for path in map(pathlib.Path, {list(map(str, closed))}):
    try: print("READ", os.listdir(path) if path.is_dir() else path.read_text())
    except PermissionError: print("refused")
for path in {list(map(str, kit))}:
    try: print("WROTE", pathlib.Path(path).write_text(""))
    except OSError: print("refused")
try: print("READ THE LOG", os.open(f"/proc/{{os.getppid()}}/fd/1", os.O_RDONLY))
except PermissionError: print("refused")
""")
    assert seen.split() == ["refused"] * 10, seen


def test_the_kits_state_goes_to_the_students_folder(room, students, accounts):
    printed = students["seat-03"].run("""
from labkit.slurm.cluster import Cluster
from labkit.system import paths
print(Cluster().link, paths.writable(paths.DATA), sep="\\n")
""")
    home = room.request.home("seat-03")
    assert [str(home) in line for line in printed.splitlines()] == [True] * 2, printed


def test_warm_starts_stopped_servers(room, students):
    room.hub.client.stop("seat-04")
    progress = []
    assert room.hub.client.warm(lambda up, of: progress.append((up, of))) == []
    assert progress[-1] == (4, 4)


def test_the_log_shows_at_once_why_a_server_does_not_start(room, students, accounts):
    """Here, the student no longer owns the folder."""
    client, home, log = room.hub.client, room.request.home("seat-04"), room.hub.folder / settings.LOG
    client.stop("seat-04")
    owner = home.stat().st_uid
    os.chown(home, 0, 0)
    try:
        threading.Thread(target=client.start, args=["seat-04"], daemon=True).start()
        assert processes.wait_until(lambda: "lab: [Errno 13] Permission denied" in log.read_text(), 60)
    finally:
        os.chown(home, owner, -1)


def test_a_dead_kernel_is_reported_and_the_server_survives(students):
    with pytest.raises(LabError, match="the kernel died"):
        students["seat-01"].run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert students["seat-01"].run("print(6 * 7)").strip() == "42"


@pytest.mark.parametrize("killed", ["jupyterhub", "traefik"])
def test_start_after_a_crash_resumes_with_servers_and_codes(room, students, killed):
    card, servers = room.code("seat-03"), {one.pid for one in verify.processes_of(room.settings, ["seat-01"])}
    hub_processes(room)[killed].send_signal(signal.SIGKILL)
    assert processes.wait_until(lambda: killed not in hub_processes(room), 10)
    with pytest.raises(LabError, match="does not answer"):
        _ = room.hub.client
    room.hub.start(room.request)
    assert room.code("seat-03") == card
    assert servers & {one.pid for one in verify.processes_of(room.settings, ["seat-01"])}
    assert set(room.hub.client.servers()) >= {"seat-01", "seat-03"}
    late = Student(room.url, "seat-03")
    assert late.log_in(card).ok
    assert late.open_lab().ok
    assert students["seat-01"].run("print(6 * 7)").strip() == "42"


def test_logging_out_soon_revokes_access_to_the_server(room, students):
    student = students["seat-02"]
    headers = student.headers
    assert get(room, "/user/seat-02/api/kernels", headers=headers).ok
    student.browser.get(f"{room.url}/hub/logout", timeout=60)

    def is_out() -> bool:
        return not get(room, "/user/seat-02/api/kernels", headers=headers, allow_redirects=False).ok

    assert processes.wait_until(is_out, student_server.LOGOUT_S + 60)


def test_a_second_start_is_refused(room):
    with pytest.raises(LabError, match="the hub is already up"):
        room.hub.start(room.request)


def test_stop_leaves_only_students_files(room, students):
    hub, folder = room.settings, str(room.hub.folder)
    students["seat-01"].run("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    students["seat-01"].run("""
import os
os.chdir(os.environ["JUPYTER_RUNTIME_DIR"])
for _ in range(2000):
    os.mkdir("d")
    os.chdir("d")
""")
    began = time.time()
    assert room.hub.stop()
    assert not room.hub.folder.exists()
    assert not hub.runtime.exists()
    assert (room.request.home("seat-01") / "00_welcome.ipynb").exists()
    assert not room.request.home(settings.CHECK_SEAT).exists()
    known = subprocess.run(["getent", "passwd", *room.request.all_seats], capture_output=True, text=True).stdout
    assert known == "" or not room.request.has_accounts
    assert not verify.processes_of(hub, room.request.all_seats)
    assert not processes.find(lambda one: processes.environ_of(one).get(settings.VARIABLE) == folder)
    assert not room.hub.stop()
    assert time.time() - began < 120
