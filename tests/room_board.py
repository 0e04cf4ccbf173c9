"""Boards that serve in a thread of the test, or in a process of their own, and seats that talk to them."""

import asyncio
import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import requests

from labkit_classroom.board import app, protocol, timetable, views
from labkit_classroom.board.questions import Question
from labkit_classroom.board.store import Store

LABS = (
    views.Lab("03", "03 · ResNet-50", ("One run", "Two runs")),
    views.Lab("07", "07 · Horovod", ("Shards", "A rate", "The script")),
)
ASKED = (
    Question("03", 1, "oneDNN against Eigen", "×"),
    Question("07", 1, "what limits it", choices=("arithmetic", "memory")),
)
HEADERS = {"Content-Type": "application/json"}
EMPTY = {"exercises": [], "opened": None, "guesses": [], "hand": None, "doctor": None}


class Board:
    """A board on a free port of loopback; what it keeps is in a file."""

    def __init__(self, path: Path, port: int = 0, plan: timetable.Plan = (), people: int = 0) -> None:
        self.path, self.plan, self.people = path, plan, people
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        ready = threading.Event()
        self.store: Store | None = None

        async def serve() -> None:
            self.store = Store(self.path)
            self.code, self.instructor = self.store["code"], self.store["instructor"]
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            await self.store.change(people=str(self.people))
            joining = views.Joining(self.url, f"./lab join {self.url}")
            room = app.Room(self.store, LABS, self.plan, ASKED, joining)
            server = app.serve(room, "127.0.0.1", self.port)
            ready.set()
            await self._over.wait()
            server.stop()
            await server.close_all_connections()
            self.store.close()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        assert ready.wait(10)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(10)

    def sql(self, statement: str) -> list[tuple]:
        """Run a statement where the board runs its own."""

        async def run() -> list[tuple]:
            return self.store._database.execute(statement).fetchall()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(5)

    def do(self, work: Awaitable) -> Any:
        """Run a coroutine where the board runs its own."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(5)

    def seats(self) -> list:
        """Return what the board keeps of each seat."""
        return list(self.store.seats.values())

    def age(self, number: int, seconds: float) -> None:
        """Have a seat changed, heard of, and its hand raised, so much earlier."""

        async def run() -> None:
            seat = self.store.seats[number]
            hand = seat.hand and seat.hand - seconds
            self.store._keep(seat._replace(changed=seat.changed - seconds, heard=seat.heard - seconds, hand=hand))
            self.store._commit()

        self.do(run())

    def join(self, seat: str = "") -> "Seat":
        answer = requests.post(f"{self.url}/api/seats", json={"code": self.code, "seat": seat}, timeout=5)
        assert answer.status_code == 201, answer.text
        return Seat(self, **answer.json())

    def send_figures(self, message: dict[str, Any], seat: "Seat | None" = None) -> requests.Response:
        """Send closing figures from a seat, by default from a new one."""
        seat = seat or self.join()
        ticket = protocol.ticket(seat.token, message["lab"])
        return requests.post(f"{self.url}/api/figures", json={"ticket": ticket, **message}, timeout=5)

    @property
    def authorized(self) -> dict[str, str]:
        """Return the instructor's headers."""
        return {"Authorization": f"Bearer {self.instructor}"}

    def wall(self) -> dict[str, Any]:
        return requests.get(f"{self.url}/view/wall", timeout=5).json()

    def shown(self) -> dict[str, Any]:
        answer = requests.get(f"{self.url}/view/instructor", headers=self.authorized, timeout=5)
        assert answer.status_code == 200, answer.text
        return answer.json()


SERVE = """
import json, sys
from pathlib import Path
from labkit_classroom.board import host
from labkit_classroom.board import views
from labkit_classroom.board.questions import Question
folder, address, port, *tls = sys.argv[1:]
host.FOLDER = Path(folder)
host.labs = lambda: (views.Lab("03", "03 · ResNet-50", ("",) * 2), views.Lab("07", "07 · Horovod", ("",) * 3))
host.asked = lambda plan: tuple(Question(lab, number, "?", "×") for lab in ("03", "07") for number in range(1, 7))
opened = lambda what: print(json.dumps(what), flush=True)
host.open_room(address, int(port), [], tuple(map(Path, tls)) or None, opened)
"""


class BoardProcess:
    """A board as `./lab room open` serves it, in a process of its own; what it keeps is in a folder."""

    def __init__(self, folder: Path, address: str = "127.0.0.1", tls: tuple[Path, Path] | tuple[()] = ()) -> None:
        self.folder, self.address, self.tls = folder, address, tls
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as free:
            free.bind((address, 0))
            self.port = free.getsockname()[1]
        self.start()

    def command(self, port: int = 0) -> list[str]:
        """Return the command that serves this folder."""
        return [sys.executable, "-c", SERVE, *map(str, (self.folder, self.address, port or self.port, *self.tls))]

    def start(self) -> None:
        """Start it; it is ready when this returns."""
        self._process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.url, self.code, self.instructor = json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def limit_files(self, size: int | None) -> None:
        """Let it write files up to a size in bytes only, as on a full disk; None takes that back."""
        limits = (resource.RLIM_INFINITY if size is None else size, resource.RLIM_INFINITY)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, limits)

    join, shown, authorized, send_figures = Board.join, Board.shown, Board.authorized, Board.send_figures


class Seat:
    """A seat at a board."""

    def __init__(self, board: Board | BoardProcess, seat: str, token: str) -> None:
        self.board, self.name, self.token, self.headers = board, seat, token, {"Authorization": f"Bearer {token}"}

    def put(self, state: Any = None, **changes: Any) -> requests.Response:
        message = EMPTY | changes if state is None else state
        return requests.put(f"{self.board.url}/api/seat", json=message, headers=self.headers, timeout=5)

    def leave(self) -> requests.Response:
        return requests.delete(f"{self.board.url}/api/seat", headers=self.headers, timeout=5)


def guessed(guess: Any, here: Any = None, lab: str = "03", number: int = 1) -> dict[str, Any]:
    """Return a guess, and what was measured beside it, as they are sent."""
    return {"lab": lab, "number": number, "guess": guess, "here": here}


def at(exercise: int, verdict: str = "passed", hint: int = 0, minute: str = "2026-12-01T09:41") -> dict[str, Any]:
    """Return how an exercise of lab 07 stands, as it is sent."""
    return {"lab": "07", "exercise": exercise, "verdict": verdict, "hint": hint, "minute": minute}
