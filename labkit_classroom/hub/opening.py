"""What an instructor asks for becomes a hub: defaults for this machine, the check before anybody is let in, warm-up."""

import contextlib
import errno
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labkit.exercises import sources
from labkit.system import addresses, lease, paths
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit_classroom.board import host
from labkit_classroom.board.store import Store
from labkit_classroom.hub import ahead, check, jobs, memory, settings
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.control import Hub
from labkit_classroom.hub.memory import GIB
from labkit_classroom.hub.settings import Request, State

FILES = paths.ROOT / "students"
SYSTEMD_IS_UP = Path("/run/systemd/system")  # the folder that is there where systemd runs: sd_booted(3)
PRIVATE = (Path("/tmp"), Path("/var/tmp"))  # folders of which each unit has its own: PrivateTmp of systemd.exec(5)
MIN_CORES = 2.0  # CPUs of each student, where the machine has them: ranks need two
MIN_TASKS, TASKS_PER_CPU = 2048, 64  # threads of each student: TensorFlow makes threads for each CPU in each rank
CHECK_TIMEOUT_S = 300.0
POLL_INTERVAL_S = 1.0


def isolation() -> str:
    """Return the strongest isolation of students that this machine has."""
    if os.geteuid() != 0:
        return settings.NONE
    return settings.SYSTEMD if SYSTEMD_IS_UP.is_dir() else settings.ACCOUNTS


def settle(
    students: int,
    labs: Sequence[str],
    address: str,
    port: int,
    *,
    board_port: int = 0,
    tls: tuple[Path, Path] | None = None,
    memory_gib: float = 4.0,
    cores: float | None = None,
    students_files: Path = FILES,
    keep_apart: str | None = None,
    divide: bool = False,
    hours: float = jobs.HOURS,
    name: str = "",
    timetable: Sequence[str] = (),
) -> Request:
    """Return the request for a hub, with this machine's defaults.

    Raises
    ------
    LabError
        When this machine cannot fulfil it.
    """
    if not all(map(math.isfinite, (memory_gib, cores or 0, hours))):
        raise LabError("--memory, --cores and --hours take numbers.")
    ahead.refuse_address(address)
    _check_folder(students_files)
    machine = this_machine()
    how = keep_apart or isolation()
    if how not in (settings.SYSTEMD, settings.ACCOUNTS, settings.SLURM, settings.NONE):
        raise LabError(f"--isolation is systemd, accounts, slurm or none, not {how}.")
    if how in (settings.SYSTEMD, settings.ACCOUNTS) and os.geteuid() != 0:
        raise LabError(f"--isolation {how} makes accounts: run it as root, or leave the option out.")
    if how == settings.SYSTEMD and not SYSTEMD_IS_UP.is_dir():
        raise LabError("--isolation systemd takes a machine that systemd runs: leave the option out.")
    if how == settings.SYSTEMD:
        _refuse_private(students_files)
    slurm = jobs.find() if how == settings.SLURM else None
    if slurm:
        cores = jobs.check_cores(slurm, cores)
    elif cores is None:
        cores = min(machine.usable_cores, max(MIN_CORES, machine.usable_cores / 4))
    division = lease.divide(machine, students) if divide and not slurm else None  # a job's cores are its own
    if division and cores:
        cores = max(cores, division.cores)  # or the quota would hold figures back
    return Request(
        files=students_files.absolute(),
        students=students,
        labs=tuple(sources.find(lab).stem[:2] for lab in labs),
        isolation=how,
        memory=int(memory_gib * GIB),
        cores=cores,
        tasks=max(MIN_TASKS, TASKS_PER_CPU * len(machine.cpus)),
        address=address,
        port=port,
        board_port=board_port,
        cert=str(tls[0].absolute()) if tls else "",
        key=str(tls[1].absolute()) if tls else "",
        cpus=division.editing if division else (),
        hours=hours if slurm else 0,
        name=name,
        timetable=tuple(timetable),
    )


def _check_folder(students_files: Path) -> None:
    """Refuse a path that is no folder, and cannot become one."""
    try:
        if not stat.S_ISDIR(students_files.stat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except FileNotFoundError:  # it is made
        pass
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise LabError(f"--files {str(students_files)!r:.80} can be no folder of students' folders: {told}.") from error


def _refuse_private(students_files: Path) -> None:
    """Refuse a folder that systemd hides from a student's unit, which has a /tmp of its own."""
    for path in (paths.ROOT, Path(sys.executable).resolve(), students_files.absolute()):
        if any(path.is_relative_to(private) for private in PRIVATE):
            raise LabError(f"{path} is where systemd gives each student a folder of their own: put it in /opt, say.")


def division(hub: State) -> lease.Division | None:
    """Return the division of a hub's cores into slots; None without."""
    return lease.divide(this_machine(), hub.request.students) if hub.request.cpus else None


def _room(request: Request) -> tuple[dict[str, str], str]:
    """Return the variables from which `./lab join` knows the room, and the address of the instructor's page."""
    host.FOLDER.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = Store(host.FOLDER / host.FILE)
    try:
        base = addresses.url(request.address, request.board_port, bool(request.cert))
        return {"LAB_ROOM": base, "LAB_ROOM_CODE": store["code"]}, f"{base}/instructor#{store['instructor']}"
    finally:
        store.close()


def verify(hub: Hub) -> tuple[list[check.Row], int]:
    """Return the limits of a server of a running hub, and the bytes that it takes with an idle kernel."""
    state = hub.state
    assert state
    seen, server = check.read_back(Client(state), CHECK_TIMEOUT_S)
    return check.judge(state, seen), server


def open_checked(
    hub: Hub, request: Request, new_codes: bool = False, variables: Mapping[str, str] | None = None
) -> tuple[list[check.Row], int]:
    """Start a hub, see `Hub.start`, and let students in when a server is held to all that was asked for.

    One that was killed before it was open, or whose `./lab hub up` was, goes on from there.

    Raises
    ------
    LabError
        When it is not; then nothing is left of a new hub, and one that was killed stays closed.
    """
    of_room: dict[str, str] = {}
    instructor = ""
    if request.board_port and not hub.state:  # one that was killed goes on with its room, whose board may still be up
        of_room, instructor = _room(request)
    new = hub.start(request, new_codes, {**(variables or {}), **of_room}, instructor)
    try:
        rows, server = verify(hub)
        if broken := [f"{row.what}: asked {row.asked}, found {row.found}" for row in rows if not row.holds]:
            raise LabError(
                "the room stays closed, as a student's server is not held to what was asked. "
                f"{'; '.join(broken)}. Mend that, or ask for less: --memory 0 and --cores 0 set no such limit."
            )
    except BaseException:
        if new:
            hub.stop()
        raise
    hub.open()
    return rows, server


def capacity(request: Request, server: int, labs: Sequence[str]) -> list[str]:
    """Return sentences on how many students fit: by Slurm's CPUs, or by the memory of each lab that was measured."""
    if request.isolation == settings.SLURM:
        return [f"{jobs.capacity(jobs.find(), request)}; others wait in its queue."]
    peaks, machine = memory.known_labs(), this_machine()
    sentences = []
    for lab in labs:
        if lab in peaks:
            fit = check.carries(machine, server + peaks[lab])
            sentences.append(
                f"Lab {lab}: {fit} students at a time fit into memory, {server / GIB:.2f} GiB for a server and "
                f"{peaks[lab] / GIB:.2f} GiB at the peak of the lab, run small."
            )
        else:
            sentences.append(f"Lab {lab}: its memory was not measured here: ./lab hub check --labs {lab}")
    return sentences


def warm(client: Client, timeout: float, on_progress: Callable[[int, int], None]) -> list[str]:
    """Start the server of each seat; return the seats whose server did not start.

    Parameters
    ----------
    client : Client
        Of the hub.
    timeout : float
        Seconds for all of them.
    on_progress : callable
        Is given how many are up, and of how many, whenever that changes.
    """
    seats, deadline = client.hub.request.seats, time.monotonic() + timeout
    for seat in seats:
        with contextlib.suppress(LabError):  # it is told at the end, with the others that did not start
            client.start(seat)
    shown = -1
    while time.monotonic() < deadline:
        servers = client.servers()
        up = sum(servers.get(seat) == "ready" for seat in seats)
        if up != shown:
            on_progress(up, len(seats))
            shown = up
        if not any(servers.get(seat) not in (None, "ready") for seat in seats):
            break
        time.sleep(POLL_INTERVAL_S)
    servers = client.servers()
    return [seat for seat in seats if servers.get(seat) != "ready"]
