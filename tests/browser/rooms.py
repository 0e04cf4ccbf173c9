"""Example rooms: people at various points in labs, on machines with results."""

import random
from concurrent.futures import ThreadPoolExecutor

from room_board import Board, at, guessed

VERDICTS = ("passed", "passed", "passed", "not yet")


def fill(board: Board, people: int, results: bool = True) -> None:
    """Fill a board with people in lab 07; one in nine raises a hand, and one machine lacks a compiler."""

    def add(number: int) -> None:
        chance = random.Random(number)
        exercises = [
            at(exercise, chance.choice(VERDICTS), hint=chance.randrange(4), minute=f"2026-12-01T09:{10 + exercise}")
            for exercise in range(1, chance.randrange(2, 5))
        ]
        because = ["compiler"] if number == 2 else []
        doctor = [{"lab": "07 Horovod", "status": "fail" if because else "ok", "because": because}]
        opened = {"lab": "03", "minute": f"2026-12-01T09:{10 + number % 50}"} if number % 7 == 3 else None
        here = round(chance.uniform(1.2, 3), 2) if results and number % 6 else None
        guesses = [guessed(chance.choice((1.5, 2, 2, 3, 10)), here)]
        seat = board.join(f"{'ABCDEFGH'[number % 8]}{number // 8 + 1}")
        state = {"exercises": exercises, "opened": opened, "guesses": guesses, "doctor": doctor}
        assert seat.put(**state).status_code == 204
        if number % 9 == 4:
            seat.hand()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(people)))
