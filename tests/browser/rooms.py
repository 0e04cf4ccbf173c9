"""Example rooms: people at various points in labs, on machines with results."""

import random
from concurrent.futures import ThreadPoolExecutor

from room_board import Board, at, guessed

MACHINES = ((2, "AVX2"), (4, "AVX-512"), (4, "AVX2"), (8, "AVX-512"), (8, "AMX"), (16, "AMX"), (64, "AMX"))
SPEED = {"AVX2": 1.5, "AVX-512": 1.8, "AMX": 2.0}
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
        cores, isa = MACHINES[number % 7 if number % 3 else number % 2]
        here = round(SPEED[isa] * cores**0.1 * chance.uniform(0.8, 1.2), 2) if results and number % 6 else None
        guesses = [guessed(chance.choice((1.5, 2, 2, 3, 10)), here)]
        seat = board.join(f"{'ABCDEFGH'[number % 8]}{number // 8 + 1}")
        machine = {"cores": cores, "isa": isa}
        state = {"exercises": exercises, "opened": opened, "guesses": guesses, "machine": machine, "doctor": doctor}
        assert seat.put(**state).status_code == 204
        if number % 9 == 4:
            seat.hand()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(people)))
