"""Boards in a thread or a separate process, and seats that talk to them."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import requests

from labkit.exercises.catalogue import Exercise, LabInfo, Question
from labkit_classroom.board import app, timetable
from labkit_classroom.board.room import Room
from labkit_classroom.board.store import Store

QUESTIONS = (
    Question("03", 1, "oneDNN against Eigen", "×"),
    Question("07", 1, "what limits it", choices=("arithmetic", "memory")),
)


def lab(name: str, title: str, *exercises: str, question: Question) -> LabInfo:
    """Return a lab with one question, and exercises with these titles."""
    numbered = {number: Exercise(number, "", "", "", "", "1", text) for number, text in enumerate(exercises, 1)}
    return LabInfo(name, title, (), numbered, (question,))


LABS = (
    lab("03_resnet50", "03 · ResNet-50", "One run", "Two runs", question=QUESTIONS[0]),
    lab("07_horovod_mnist", "07 · Horovod", "Shards", "A `rate`", "The script", question=QUESTIONS[1]),
)
HEADERS = {"Content-Type": "application/json"}
EMPTY = {"exercises": [], "opened": None, "guesses": [], "doctor": None}


class Board:
    """A board on a free loopback port."""

    def __init__(self, path: Path, plan: timetable.Plan = (), people: int = 0) -> None:
        self.path, self.plan, self.people = path, plan, people
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        ready = threading.Event()

        async def serve() -> None:
            self.store = Store(self.path)
            self.store.change(people=self.people)
            self.code, self.instructor = self.store.room["code"], self.store.room["instructor"]
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            server = app.serve(Room(self.store, LABS, self.plan, self.url), "127.0.0.1", self.port)
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

    def seats(self) -> list:
        """Return the stored seats."""
        return list(self.store.seats.values())

    def join(self, seat: str = "") -> "Seat":
        answer = requests.post(f"{self.url}/api/seats", json={"code": self.code, "seat": seat}, timeout=60)
        assert answer.status_code == 201, answer.text
        return Seat(self, **answer.json())

    @property
    def authorized(self) -> dict[str, str]:
        """The instructor's headers."""
        return {"Authorization": f"Bearer {self.instructor}"}

    def order(self, method: str, path: str) -> int:
        """Send an order as the instructor's page does; return the status."""
        return requests.request(method, f"{self.url}/api/{path}", headers=self.authorized, timeout=60).status_code

    def wall(self) -> dict[str, Any]:
        return requests.get(f"{self.url}/view/wall", timeout=60).json()

    def shown(self) -> dict[str, Any]:
        answer = requests.get(f"{self.url}/view/instructor", headers=self.authorized, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()


SERVE = """
import json, sys
from pathlib import Path
from labkit_classroom.board import host
folder, address, port, *tls = sys.argv[1:]
host.FOLDER = Path(folder)
opened = lambda room: print(json.dumps(room), flush=True)
host.open_room(address, int(port), [], tuple(map(Path, tls)) or None, opened)
"""


class BoardProcess:
    """A board as served by `./lab room open`, in a separate process."""

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
        """Start it, and wait until it is ready."""
        self._process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.url, self.code, self.instructor = json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    join, shown, wall, authorized, order = Board.join, Board.shown, Board.wall, Board.authorized, Board.order


class Seat:
    """A seat at a board."""

    def __init__(self, board: Board | BoardProcess, seat: str, token: str) -> None:
        self.board, self.name, self.token, self.headers = board, seat, token, {"Authorization": f"Bearer {token}"}
        self.number = int(token.partition(".")[0])

    def put(self, state: Any = None, **changes: Any) -> requests.Response:
        message = EMPTY | changes if state is None else state
        return requests.put(f"{self.board.url}/api/seat", json=message, headers=self.headers, timeout=60)

    def hand(self, lab: str = "07", exercise: int = 2) -> str:
        """Raise or lower the hand; return its state."""
        place = {"lab": lab, "exercise": exercise}
        return requests.put(f"{self.board.url}/api/seat/hand", json=place, headers=self.headers, timeout=60).json()[
            "hand"
        ]

    def leave(self) -> requests.Response:
        return requests.delete(f"{self.board.url}/api/seat", headers=self.headers, timeout=60)


def guessed(guess: Any, here: Any = None, lab: str = "03", number: int = 1) -> dict[str, Any]:
    """Return a message's guess and result."""
    return {"lab": lab, "number": number, "guess": guess, "here": here}


def at(exercise: int, verdict: str = "passed", hint: int = 0, minute: str = "2026-12-01T09:41") -> dict[str, Any]:
    """Return a message's verdict on an exercise of lab 07."""
    return {"lab": "07", "exercise": exercise, "verdict": verdict, "hint": hint, "minute": minute}
