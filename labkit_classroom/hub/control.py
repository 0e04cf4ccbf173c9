"""Start a hub, restart it after a crash, and remove everything it created."""

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil

from labkit.system import addresses, files, locks, processes
from labkit.system.errors import LabError
from labkit.system.machine import this_machine
from labkit_classroom.board import host
from labkit_classroom.hub import accounts, codes, settings, verify
from labkit_classroom.hub.client import Client, failure
from labkit_classroom.hub.partition import partition
from labkit_classroom.hub.settings import Settings

CONFIG = Path(__file__).with_name("jupyterhub_config.py")
CARDS, LOCK = "seats.html", "lock"
RUNTIME = Path("/var/lib/lab-hub")  # where seats have accounts: a machine can have one such hub
START_TIMEOUT_S, STOP_TIMEOUT_S = 90.0, 120.0


class Hub:
    """A hub and its folder, which only its owner can enter."""

    def __init__(self, folder: Path = settings.FOLDER) -> None:
        self.folder = folder.absolute()

    @property
    def settings(self) -> Settings | None:
        """The hub's settings; None if there is no hub."""
        return settings.load(self.folder)

    @property
    def cards(self) -> Path:
        """The page with all codes."""
        return self.folder / CARDS

    @property
    def is_open(self) -> bool:
        """Whether students may log in."""
        return (self.folder / settings.OPEN).exists()

    @property
    def client(self) -> Client:
        """The client of a hub that is up.

        Raises
        ------
        LabError
            If it isn't.
        """
        hub = self.settings
        if not hub:
            raise LabError("no hub is up: ./lab hub up --students 40 starts one.")
        if not (client := Client(hub, self.folder)).answers():
            raise LabError("the hub does not answer: the same ./lab hub up restarts it, ./lab hub down removes it.")
        return client

    def start(self, request: Settings) -> list[verify.Row]:
        """Start the hub, or restart it after a crash; open it if a server has all requested properties.

        Running servers are taken over, and printed cards stay valid.

        Returns
        -------
        list of verify.Row
            The verified properties of a server.

        Raises
        ------
        LabError
            If the hub is up, has other settings, does not start, or a server lacks a requested property; a new hub is
            then removed.
        """
        with self._locked():
            before = self.settings
            if before and self.is_open and Client(before, self.folder).answers():
                raise LabError("the hub is already up: ./lab hub status shows it, ./lab hub down stops it.")
            if before and before != request:
                raise LabError("there is a hub with other settings: ./lab hub down removes it.")
            try:
                hub = before or self._new(request)
                (self.folder / settings.OPEN).unlink(missing_ok=True)
                processes.end_all(self._processes)  # left over from a crash, and using the ports
                _check_address(hub)
                self._prepare(hub)
                self._launch(hub)
                rows = verify.verify(self.client)
            except BaseException:
                if not before:
                    self._remove()
                raise
            (self.folder / settings.OPEN).touch(mode=0o600)
        return rows

    def stop(self) -> bool:
        """Stop the hub and its servers, and remove all but students' files; return whether there was a hub."""
        if not self.settings:
            return False
        with self._locked():
            self._remove()
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other commands from starting or stopping the hub during the block."""
        with files.writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.folder / LOCK).open("wb") as lock:
            if not locks.try_lock(lock):
                raise LabError("another ./lab hub command is starting or stopping the hub.")
            yield

    def _remove(self) -> None:
        """End and remove everything; the folder with the settings goes last."""
        if hub := self.settings:
            processes.end_all(self._processes)
            if hub.mode == settings.SYSTEMD:
                for verb in ("stop", "reset-failed"):
                    subprocess.run(
                        ["systemctl", verb, *map(hub.unit, hub.all_seats)], capture_output=True, timeout=STOP_TIMEOUT_S
                    )
            processes.end_all(lambda: verify.processes_of(hub, hub.all_seats))
            if hub.has_accounts:
                accounts.remove(hub)
            _delete(hub.runtime, hub.home(settings.CHECK_SEAT))
        _delete(self.folder)

    def _new(self, request: Settings) -> Settings:
        """Complete and save the settings of a new hub."""
        room = host.running_room()
        variables = {"LAB_ROOM": room.base, "LAB_ROOM_CODE": room.code} if room else {}
        cpus: tuple[int, ...] = ()
        if request.has_accounts:
            try:
                RUNTIME.mkdir(mode=0o711)
            except FileExistsError as error:
                raise LabError(
                    f"{RUNTIME} belongs to another hub on this machine: run ./lab hub down where it was started. "
                    "If that hub is gone, delete the folder."
                ) from error
            with contextlib.suppress(LabError):  # too few cores for slots
                parts = partition(this_machine(), request.students)
                cpus, variables = parts.editing, variables | parts.variables
        runtime = RUNTIME if request.has_accounts else Path(tempfile.mkdtemp(prefix="lab-hub-", dir="/tmp"))
        hub_port, api_port = addresses.free_ports(2)
        hub = replace(request, runtime=runtime, hub_port=hub_port, api_port=api_port, cpus=cpus, variables=variables)
        hub.save(self.folder)
        return hub

    def _prepare(self, hub: Settings) -> None:
        """Create missing files, folders and accounts."""
        if not (self.folder / settings.TOKEN).exists():
            self._write_private(settings.TOKEN, secrets.token_hex(32))
        with files.writing(hub.files):
            hub.files.mkdir(parents=True, exist_ok=True)
        self._write_private(CARDS, codes.page(hub.url, codes.make(hub.files, hub.seats)))
        if hub.has_accounts:
            accounts.make(hub)
            for seat in hub.all_seats:
                accounts.make_private(hub.runtime / seat, seat)

    def _launch(self, hub: Settings) -> None:
        """Start JupyterHub and wait until it answers."""
        log = self.folder / settings.LOG
        log.touch(mode=0o600)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # traefik; for terminals, mpirun
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)],
                cwd=self.folder,
                env={**os.environ, settings.VARIABLE: str(self.folder), "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        client = Client(hub, self.folder)
        up = processes.wait_until(lambda: process.poll() is not None or client.answers(), START_TIMEOUT_S)
        if not up or process.poll() is not None:
            raise failure("JupyterHub did not start.", self.folder)

    def _processes(self) -> list[psutil.Process]:
        """Return the processes of JupyterHub and its proxy."""
        return processes.find(lambda process: processes.environ_of(process).get(settings.VARIABLE) == str(self.folder))

    def _write_private(self, name: str, content: str) -> None:
        (self.folder / name).touch(mode=0o600)
        files.write(self.folder / name, content)


def _delete(*folders: Path) -> None:
    """Delete folders, however deeply nested: `shutil.rmtree` recurses on Python 3.11."""
    subprocess.run(["rm", "-rf", "--", *folders], capture_output=True)


def _check_address(request: Settings) -> None:
    try:
        addresses.listen(request.address, request.port).close()
    except (OSError, UnicodeError) as error:
        raise LabError(
            f"cannot listen on {request.address}, port {request.port} ({error}): choose an address of this "
            "machine and a free port with --address HOST:PORT."
        ) from error
