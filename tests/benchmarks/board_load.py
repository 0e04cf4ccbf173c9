"""Measures the room's board under load: what an event takes, what an outage loses, and where it breaks.

python tests/benchmarks/board_load.py --seats 40 --seconds 60

For maintainers; no test runs it. Board and seats share this machine: measure on an idle one. All seats come from one
address, as from behind one router. A seat has a connection for each message, as the real sender has, and as there the
last state wins and is sent again until the board has it; unlike there, it sends at once.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
from room_board import EMPTY, BoardProcess, at, guessed

from labkit.system.load import watch
from labkit_classroom.board.sender import LOOK_INTERVAL_S, MAX_PAUSE_S

LIMIT_MS = 100.0  # that 95% of the events may take
ANSWER_TIMEOUT_S = 10.0
FIRST_RATE, STEP_S = 0.5, 15  # events a second of a seat, and for how long, in search of where it breaks
SETTLE_S = 60  # in which every last state must have arrived


def encode(number: int) -> dict[str, Any]:
    """Return an event's number as what a hand is raised at, which comes back on the instructor's page."""
    return {"lab": f"{number // 20:02d}", "exercise": 1 + number % 20}


def decode(hand_at: str) -> int:
    """Return an event's number from the instructor's page; 0 before the first."""
    lab, _, exercise = hand_at.partition(" · ")
    return 20 * int(lab) + int(exercise) - 1 if exercise else 0


class Seat:
    """A seat that has events, and sends the newest until the board has it."""

    def __init__(self, load: "Load", token: str) -> None:
        self.load, self.token = load, token
        self.newest = self.confirmed = 0
        self.happened: dict[int, float] = {}  # when each event was, until a page has shown it

    async def live(self, first: float, until: float) -> None:
        """Have events at the load's rate, the first at a time of its own, and send them."""
        wakes = asyncio.Event()
        sending = asyncio.create_task(self._send(wakes))
        due = first
        while due < until:
            await asyncio.sleep(max(0, due - time.perf_counter()))
            self.newest += 1
            self.happened[self.newest] = time.perf_counter()
            wakes.set()
            due += 1 / self.load.rate
        deadline = time.perf_counter() + SETTLE_S
        while self.confirmed < self.newest and time.perf_counter() < deadline:
            await asyncio.sleep(0.05)
        sending.cancel()

    async def _send(self, wakes: asyncio.Event) -> None:
        pause = LOOK_INTERVAL_S
        while True:
            await wakes.wait()
            wakes.clear()
            while self.confirmed < self.newest:
                number, began = self.newest, time.perf_counter()
                status = await self.put(number)
                if status == 204:
                    self.load.answers.append(time.perf_counter() - began)
                    self.confirmed, pause = number, LOOK_INTERVAL_S
                else:
                    self.load.failures[status] = self.load.failures.get(status, 0) + 1
                    pause = min(2 * pause, MAX_PAUSE_S)
                    await asyncio.sleep(pause)

    async def put(self, number: int) -> int:
        """Send a state; return the status, 0 when there is no answer."""
        guesses = [guessed(number % 7, number % 5, lab, 1 + one) for lab in ("03", "07") for one in range(6)]
        state = EMPTY | {"exercises": [at(1 + one) for one in range(20)], "guesses": guesses, "hand": encode(number)}
        body = json.dumps(state).encode()
        head = f"PUT /api/seat HTTP/1.1\r\nHost: board\r\nAuthorization: Bearer {self.token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.load.board.port)
                with contextlib.closing(writer):
                    writer.write(head.encode() + body)
                    return int((await reader.readline()).split()[1])
        except (OSError, TimeoutError, IndexError):
            return 0


class Load:
    """So many seats and viewers at a board, for some time.

    Attributes
    ----------
    answers, shown : list of float
        Seconds from each PUT to its answer, and from each event to a page that shows it.
    failures : dict
        How many PUTs got another answer than 204, by their status; 0 is none at all.
    """

    def __init__(self, board: BoardProcess, seats: int, rate: float, viewers: int) -> None:
        self.board, self.rate, self.viewers = board, rate, viewers
        self.answers: list[float] = []
        self.shown: list[float] = []
        self.failures: dict[int, int] = {}
        joined = [board.join(f"S{number}").headers["Authorization"].split()[1] for number in range(seats)]
        self.seats = [Seat(self, token) for token in joined]

    async def run(self, seconds: float, outage: float = 0) -> None:
        """Run it, with an outage in its middle."""
        begin = time.perf_counter() + 0.5
        spread = 1 / self.rate / len(self.seats)
        viewers = [asyncio.create_task(self._view()) for _ in range(self.viewers)]
        living = [
            asyncio.create_task(seat.live(begin + number * spread, begin + seconds))
            for number, seat in enumerate(self.seats)
        ]
        if outage:
            await asyncio.sleep(seconds / 3)
            self.board.kill()
            await asyncio.sleep(outage)
            await asyncio.to_thread(self.board.start)
        await asyncio.gather(*living)
        await asyncio.sleep(1)
        for viewer in viewers:
            viewer.cancel()

    async def _view(self) -> None:
        """Follow the instructor's page, and connect again as a browser does."""
        request = (
            "GET /view/instructor HTTP/1.1\r\nHost: board\r\nAccept: text/event-stream\r\n"
            f"Authorization: Bearer {self.board.instructor}\r\n\r\n"
        )
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.board.port, limit=2**25)
                with contextlib.closing(writer):
                    writer.write(request.encode())
                    while line := await reader.readline():
                        if line.startswith(b"data: "):
                            self._see(json.loads(line[6:]), time.perf_counter())
            await asyncio.sleep(1)

    def _see(self, page: dict, now: float) -> None:
        """Count what is shown for the first time."""
        for row in page["seats"]:
            seat = self.seats[int(row["seat"][1:])]
            for number in [one for one in seat.happened if one <= decode(row["hand_at"])]:
                self.shown.append(now - seat.happened.pop(number))

    def lost(self) -> int:
        """Return how many seats' last state is not on the board."""
        rows = {row["seat"]: decode(row["hand_at"]) for row in self.board.shown()["seats"]}
        return sum(rows[f"S{number}"] != seat.newest for number, seat in enumerate(self.seats))


def p95(times: list[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return 1e3 * statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else float("nan")


def describe(times: list[float]) -> str:
    """Return median, 95th percentile and maximum."""
    if len(times) < 2:
        return "none"
    return f"p50 {1e3 * statistics.median(times):.0f} ms, p95 {p95(times):.0f} ms, max {1e3 * max(times):.0f} ms"


def measure(title: str, seats: int, rate: float, viewers: int, seconds: float, outage: float = 0) -> bool:
    """Run a load at a board of its own, print what it took, and return whether the board bore it."""
    with tempfile.TemporaryDirectory() as folder:
        board = BoardProcess(Path(folder) / "room")
        try:
            load = Load(board, seats, rate, viewers)
            with watch(title):
                asyncio.run(load.run(seconds, outage))
            used = psutil.Process(board.pid).cpu_times()
            lost = load.lost()
        finally:
            board.kill()
    failed = (
        ", ".join(f"{count} × {status or 'no answer'}" for status, count in sorted(load.failures.items())) or "none"
    )
    print(f"{title}: {seats} seats × {rate:g} events/s × {seconds:g} s, {viewers} pages")
    print(f"  PUT to answer:  {describe(load.answers)}; {len(load.answers) / seconds:.0f}/s")
    print(f"  event to page:  {describe(load.shown)}")
    print(f"  the board took {used.user + used.system:.1f} s of a core" + " since it was back" * bool(outage))
    print(f"  other answers:  {failed};  seats whose last state is lost: {lost}", flush=True)
    return p95(load.answers) < LIMIT_MS and not lost and (bool(outage) or not load.failures)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seats", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1.0, help="events a second of each seat (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--viewers", type=int, default=5, help="open pages (default: %(default)s)")
    parser.add_argument("--outage", type=float, default=30, help="seconds without a board; 0: none (default: 30)")
    parser.add_argument("--many", type=int, default=200, help="seats for where it breaks; 0: not (default: 200)")
    options = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores for board and seats; load average {os.getloadavg()[0]:.1f}")
    measure("steady", options.seats, options.rate, options.viewers, options.seconds)
    if options.outage:
        seconds = options.outage + options.seconds
        measure(
            f"board killed, back after {options.outage:g} s",
            options.seats,
            options.rate,
            options.viewers,
            seconds,
            options.outage,
        )
    rate = FIRST_RATE
    while options.many and measure("where it breaks", options.many, rate, options.viewers, STEP_S):
        rate *= 2
    if options.many:
        print(f"It breaks at {options.many} seats × {rate:g} events/s: {options.many * rate:g} events/s")


if __name__ == "__main__":
    main()
