"""Client for JupyterHub's REST API: start, stop and list servers."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import urllib3

from labkit.system import terminal
from labkit.system.errors import LabError
from labkit_classroom.hub.settings import LOG, SYSTEMD, TOKEN, Settings

TIMEOUT_S = 30.0
POLL_S = 0.5
LOG_LINES = 8
CONCURRENT_STARTS = 4  # in `warm`


class Client:
    """Sends requests to a hub, with the token from its folder."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.headers = {"Authorization": f"token {(folder / TOKEN).read_text(encoding='utf-8')}"}

    def answers(self) -> bool:
        """Whether JupyterHub answers, directly and through its proxy."""
        try:
            self.servers()
            return _request("GET", f"{self.settings.url}/hub/health", timeout=5).ok
        except (requests.RequestException, LabError):
            return False

    def servers(self) -> dict[str, str]:
        """Return each server's state by seat: "ready" or, for example, "spawn" while it is starting."""
        users = self._ask("GET", "users").json()
        servers = {user["name"]: user["servers"].get("") for user in users}
        return {
            seat: "ready" if server["ready"] else server["pending"] or "" for seat, server in servers.items() if server
        }

    def start(self, seat: str) -> None:
        """Begin to start a seat's server, unless it is running."""
        self._ask("POST", f"users/{seat}/server", allowed=(400, 500))  # 400: already running; 500: failed at once

    def wait(self, seat: str, timeout: float) -> None:
        """Wait until a seat's server is up.

        Raises
        ------
        LabError
            If it isn't up in time.
        """
        deadline = time.monotonic() + timeout
        while (state := self.servers().get(seat)) != "ready":
            if state is None or time.monotonic() > deadline:
                journal = f"; see journalctl -u {self.settings.unit(seat)}" if self.settings.mode == SYSTEMD else ""
                raise failure(f"the server of {seat} did not start{journal}.", self.folder)
            time.sleep(POLL_S)

    def stop(self, seat: str) -> None:
        """Stop a seat's server, and wait until it has ended."""
        self._ask("DELETE", f"users/{seat}/server", allowed=(400, 404))
        deadline = time.monotonic() + TIMEOUT_S
        while seat in self.servers() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def warm(self, on_progress: Callable[[int, int], None]) -> list[str]:
        """Start all seats' servers, a few at a time; return the seats whose server did not start.

        Parameters
        ----------
        on_progress : callable
            Called with the number of servers that are up, and of all seats, whenever the former changes.
        """
        seats = self.settings.seats
        waiting, shown = list(seats), -1
        while True:
            servers = self.servers()
            up = sum(servers.get(seat) == "ready" for seat in seats)
            if up != shown:
                on_progress(up, len(seats))
                shown = up
            starting = sum(servers.get(seat) not in (None, "ready") for seat in seats)
            if not starting and not waiting:
                return [seat for seat in seats if servers.get(seat) != "ready"]
            for seat in waiting[: CONCURRENT_STARTS - starting]:
                waiting.remove(seat)
                self.start(seat)
            time.sleep(POLL_S)

    def _ask(self, method: str, path: str, allowed: tuple[int, ...] = ()) -> requests.Response:
        try:
            reply = _request(method, f"{self.settings.hub_url}/hub/api/{path}", headers=self.headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise LabError("the hub does not answer: ./lab hub up restarts it.") from error
        if not reply.ok and reply.status_code not in allowed:
            raise LabError(f"the hub refused {method} {path}: {reply.status_code} {reply.text[:200]}")
        return reply


def _request(method: str, url: str, **options: Any) -> requests.Response:
    """Send a request to this machine, whose certificate may be for another name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
        with requests.Session() as session:
            session.trust_env = False  # an internet proxy does not reach this machine
            return session.request(method, url, verify=False, **options)


def failure(message: str, folder: Path) -> LabError:
    """Return an error with the kit's own last message in the hub's log or, failing that, the log's last lines."""
    lines = (folder / LOG).read_text(errors="replace", encoding="utf-8").splitlines()
    last = [line for line in lines if line.startswith("lab: ")][-1:] or lines[-LOG_LINES:]
    return LabError("\n  ".join([message, f"The last lines of {LOG}:", *map(terminal.sanitize, last)]))
