"""Load-test a room's board: response times to seats and pages, and data lost when it is killed.

python tests/benchmarks/board_load.py --seats 40 --seconds 30

For maintainers; not run by tests. Board and seats share this machine: measure on an idle one.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import requests
from room_board import BoardProcess, Seat, at, guessed


class Load:
    """Seats that send new states at a rate, and pages that poll every two seconds.

    Attributes
    ----------
    answers, pages : list of float
        Response times in seconds, for seats and for pages.
    statuses : Counter
        Status codes for seats; 0 for no response.
    """

    def __init__(self, board: BoardProcess, seats: int, rate: float, pages: int) -> None:
        self.board, self.rate, self.n_pages = board, rate, pages
        self.answers: list[float] = []
        self.pages: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.seats = [board.join(f"S{number}") for number in range(seats)]
        self.confirmed = dict.fromkeys((seat.name for seat in self.seats), 0)

    def run(self, seconds: float) -> None:
        """Generate load for some seconds."""
        until = time.monotonic() + seconds
        workers = [threading.Thread(target=self._live, args=(seat, until)) for seat in self.seats]
        workers += [threading.Thread(target=self._watch, args=(until,)) for _ in range(self.n_pages)]
        for worker in workers:
            worker.start()
            time.sleep(1 / self.rate / len(workers))
        for worker in workers:
            worker.join()

    def _live(self, seat: Seat, until: float) -> None:
        number = 0
        while time.monotonic() < until:
            number += 1
            exercises = [at(1 + index, hint=number % 20) for index in range(1 + number % 20)]
            guesses = [guessed(number % 7, number % 5, lab) for lab in ("03", "07")]
            began = time.monotonic()
            try:
                status = seat.put(exercises=exercises, guesses=guesses).status_code
            except requests.RequestException:
                status = 0
            self.answers.append(time.monotonic() - began)
            self.statuses[status] += 1
            if status == 204:
                self.confirmed[seat.name] = len(exercises)
            time.sleep(max(0.0, 1 / self.rate - (time.monotonic() - began)))

    def _watch(self, until: float) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            self.board.shown()
            self.pages.append(time.monotonic() - began)
            time.sleep(2)


def describe(times: list[float]) -> str:
    """Return median, 95th percentile and maximum."""
    p95 = statistics.quantiles(times, n=20, method="inclusive")[-1]
    return f"p50 {1e3 * statistics.median(times):.0f} ms, p95 {1e3 * p95:.0f} ms, max {1e3 * max(times):.0f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seats", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.5, help="states per second and seat (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--pages", type=int, default=5, help="open pages (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        board = BoardProcess(Path(folder) / "room")
        try:
            load = Load(board, args.seats, args.rate, args.pages)
            load.run(args.seconds)
            used = psutil.Process(board.pid).cpu_times()
            board.kill()
            board.start()
            lost = sum(load.confirmed[row["seat"]] != row["passed"] for row in board.shown()["seats"])
        finally:
            board.kill()
    print(f"{args.seats} seats × {args.rate:g} states/s × {args.seconds:g} s, {args.pages} pages")
    print(f"  seats: {describe(load.answers)}; statuses {dict(load.statuses)}")
    print(f"  pages: {describe(load.pages)}")
    print(f"  the board used {used.user + used.system:.1f} s of CPU time; a kill lost the states of {lost} seats")


if __name__ == "__main__":
    main()
