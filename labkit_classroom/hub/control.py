"""A hub is started, goes on after it was killed, and is taken down with all that it made."""

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TextIO

import psutil

from labkit.system import addresses, files, lease, locks, paths, processes
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit_classroom.hub import accounts, ahead, cgroups, codes, hub_log, jobs, runtime, settings
from labkit_classroom.hub.authenticator import OPEN
from labkit_classroom.hub.client import Client
from labkit_classroom.hub.configuration import TOKEN
from labkit_classroom.hub.settings import VARIABLE, Request, State

CONFIG = paths.ENV / "jupyterhub" / "jupyterhub_config.py"
LOCK, ATTENDED, CARDS = "hub.pid", "up.lock", "seats.html"
RUN, TMP = (
    Path("/run"),
    Path("/tmp"),
)  # folders for the sockets of root, and of others: the path of one has 107 characters at most
PREFIX = "lab-hub-"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0
LOCK_TIMEOUT_S = 2.0  # seconds for the kernel to free a killed process's lock


class Hub:
    """A hub, and the folder in which it keeps everything; only its owner can enter it."""

    def __init__(self, folder: Path = settings.FOLDER) -> None:
        self.folder = folder.absolute()
        self._attended: TextIO | None = None  # locked while this process starts the hub and looks at it

    @property
    def state(self) -> State | None:
        """The hub's state; None when there is no hub."""
        return settings.load(self.folder)

    @property
    def cards(self) -> Path:
        """The page with all codes."""
        return self.folder / CARDS

    @property
    def is_open(self) -> bool:
        """Whether students may log in."""
        return (self.folder / OPEN).exists()

    def pid(self) -> int | None:
        """Return JupyterHub's process, if it lives."""
        return locks.holder(self.folder / LOCK)

    def start(
        self,
        request: Request,
        new_codes: bool = False,
        variables: Mapping[str, str] | None = None,
        instructor: str = "",
    ) -> bool:
        """Start the hub, with nobody let in yet; return whether it is new, and does not go on after it was killed.

        Parameters
        ----------
        request : Request
            What the hub is asked for.
        new_codes : bool
            Whether cards that were printed for these students' files become void.
        variables : mapping of str to str, optional
            Set in every student's server of a new hub, beside its own.
        instructor : str
            The address of the board's page for the instructor, of a new hub.

        Raises
        ------
        LabError
            When it is up already, was another one, or does not come up; of a new one, nothing is left then.
        """
        self._attend()
        if not self.is_open:
            self._kill_jupyterhub()
        with self._locked() as lock:
            killed = self.state
            if killed and killed.request != request:
                raise LabError(
                    "a hub of other settings was here and has ended: ./lab hub down clears it, then start anew."
                )
            try:
                division = lease.divide(this_machine(), request.students) if request.cpus else None
                hub = killed or self._new(request, division, variables or {}, instructor)
                self._prepare(hub, division, lock, new=not killed, new_codes=new_codes)
                self._launch(hub, lock)
            except BaseException:
                if not killed:
                    processes.despite_interrupts(self._end)
                raise
        return not killed

    def open(self) -> None:
        """Let students log in."""
        (self.folder / OPEN).touch(mode=0o600)
        self._leave()

    def stop(self, delete_files: bool = False) -> bool:
        """End the hub, its processes, accounts, units and files but the students'; return whether there was one."""
        self._leave()
        hub = self.state
        if hub or self.folder.exists():
            self._end_jupyterhub()
            with self._locked():
                self._end(delete_files)
        return hub is not None

    def _attend(self) -> None:
        """Say to others that this process starts the hub and looks at it, until it opens or leaves it, or ends.

        Raises
        ------
        LabError
            When another does.
        """
        self._leave()
        with files.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            attended = (self.folder / ATTENDED).open("w")
        if not locks.try_lock(attended):
            attended.close()
            raise LabError("another ./lab hub up starts it, and looks at it: ./lab hub status shows it.")
        self._attended = attended

    def _leave(self) -> None:
        if self._attended:
            self._attended.close()
            self._attended = None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[TextIO]:
        """Let nobody else start or end the hub during the block; JupyterHub inherits the lock."""
        with files.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.folder / LOCK).open("a+")
        with lock:
            if not processes.wait_until(lambda: locks.try_lock(lock), LOCK_TIMEOUT_S):
                if self.pid():
                    raise LabError("the hub is up: ./lab hub status shows it, ./lab hub down ends it.")
                raise LabError(f"another ./lab hub starts or ends it: `fuser -v {shlex.quote(lock.name)}` shows which.")
            lock.truncate(0)
            yield lock

    def _kill_jupyterhub(self) -> None:
        """End JupyterHub as a crash does, if it lives: the servers go on."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid := self.pid():
                psutil.Process(pid).kill()

    def _end_jupyterhub(self) -> None:
        """End JupyterHub, if it lives, and the servers with it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid := self.pid():
                jupyterhub = psutil.Process(pid)
                jupyterhub.terminate()
                if not processes.wait_until(lambda: not processes.lives(jupyterhub), STOP_TIMEOUT_S):
                    jupyterhub.kill()

    def _end(self, delete_files: bool = False) -> None:
        """End all processes of the hub, and remove what it made: its folder, which tells what that is, comes last."""
        self._end_jupyterhub()
        if hub := self.state:
            self._clear(hub)
            runtime.remove(hub)
            if delete_files:
                _delete_files(hub.request)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _new(
        self, request: Request, division: lease.Division | None, variables: Mapping[str, str], instructor: str
    ) -> State:
        """Return a hub that is not there yet, with a name and a port that no other has."""
        place = (RUN if os.geteuid() == 0 else TMP) / f"{PREFIX}{secrets.token_hex(4)}"
        today = date.today().isoformat()
        hub = State(request, self.folder, place, variables=dict(variables), instructor=instructor, first_day=today)
        if division:
            hub.variables.update(lease.variables(division, hub.slots))
        if request.isolation == settings.SLURM:
            hub.variables.update(jobs.variables(jobs.find()))
            address = jobs.hub_address(hub.variables)
            hub = replace(hub, hub_address=address, hub_port=addresses.free_ports(1, address)[0])
        return hub

    def _prepare(self, hub: State, division: lease.Division | None, lock: TextIO, new: bool, new_codes: bool) -> None:
        """Make what a hub needs on this machine."""
        request = hub.request
        if new:
            self._write_private(TOKEN, secrets.token_hex(32))
        if new or new_codes:
            of_seats = codes.make(self.folder, request.files, request.seats, new_codes)
            self._write_private(CARDS, codes.page(request.url, of_seats))
        if new:
            hub.save()  # from now on it can go on, should this be killed
        if request.has_accounts:
            accounts.make(hub, lock)
        else:
            for seat in (settings.CHECK_SEAT, *request.seats):
                with files.writing(request.home(seat)):
                    request.home(seat).mkdir(parents=True, exist_ok=True, mode=0o700)
        runtime.make(hub, division)

    def _write_private(self, name: str, content: str) -> None:
        files.write(self.folder / name, content)
        (self.folder / name).chmod(0o600)

    def _launch(self, hub: State, lock: TextIO) -> None:
        """Start JupyterHub, which lets nobody in yet, and wait until it answers."""
        (self.folder / OPEN).unlink(missing_ok=True)  # of one that was killed
        processes.end_all(
            lambda: self._processes(servers=False)
        )  # of one that was killed: its proxy and its board have the ports
        ahead.refuse_taken(hub.request.address, hub.request.port, hub.request.board_port)
        (self.folder / hub_log.LOG).touch(mode=0o600)

        def prepare() -> None:
            locks.sign(lock)  # by the new process, which then can be found whatever becomes of this one
            if hub.request.cpus:
                os.sched_setaffinity(0, hub.request.cpus)  # its servers inherit it

        with (self.folder / hub_log.LOG).open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)],
                cwd=self.folder,
                env={**os.environ, VARIABLE: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock.fileno(),),  # it has the lock for as long as it lives
                preexec_fn=prepare,
                start_new_session=True,
            )
        client = Client(hub)
        up = processes.wait_until(lambda: process.poll() is not None or client.answers(), START_TIMEOUT_S)
        if not up or process.poll() is not None:
            raise LabError(
                "\n  ".join(["JupyterHub did not come up. Its last words:", *hub_log.last_words(self.folder)])
            )

    def _processes(self, servers: bool) -> list[psutil.Process]:
        """Return the hub's living processes, with or without those of students."""
        spared = {os.getpid(), *(process.pid for process in psutil.Process().parents())}

        def is_ours(process: psutil.Process) -> bool:
            environ = processes.environ_of(process)
            return (
                process.pid not in spared
                and environ.get(VARIABLE) == str(self.folder)
                and (servers or "LAB_SEAT" not in environ)
            )

        return processes.find(is_ours)

    def _clear(self, hub: State) -> None:
        """End the hub's units, jobs and processes, and remove its accounts and groups."""
        if hub.request.isolation == settings.SYSTEMD:
            for verb in ("stop", "reset-failed"):  # systemd keeps a unit that failed until it is told to forget it
                subprocess.run(["systemctl", verb, hub.account("*")], capture_output=True, timeout=120)
            for left in Path("/run").glob(hub.account("*")):
                shutil.rmtree(left, ignore_errors=True)
        if hub.request.isolation == settings.SLURM:
            jobs.cancel_all(hub)
        if hub.request.has_accounts:
            processes.end_users({account.pw_uid for account in accounts.ours(hub)})
        processes.end_all(lambda: self._processes(servers=True))
        if hub.request.has_accounts:
            accounts.remove(hub)
            for name in cgroups.names(hub.account("")):
                cgroups.remove(name)
        shutil.rmtree(hub.request.home(settings.CHECK_SEAT), ignore_errors=True)


def _delete_files(request: Request) -> None:
    """Delete the students' folders and their codes."""
    for seat in request.seats:
        shutil.rmtree(request.home(seat), ignore_errors=True)
    codes.forget(request.files)
    with contextlib.suppress(OSError):  # there is something else in it
        request.files.rmdir()
