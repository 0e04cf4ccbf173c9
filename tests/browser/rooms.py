"""Rooms to look at: people who are somewhere in a lab, and machines that have measured something."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from room_board import Board, at, guessed

CORES = (2, 2, 4, 4, 4, 6, 8, 8, 8, 12, 16, 64)
ISA = (["AVX", "AVX2"], ["AVX", "AVX2", "AVX-512", "VNNI"], ["AVX", "AVX2", "AVX-512", "VNNI", "BF16", "AMX"])
VERDICTS = ("passed", "passed", "passed", "not yet")


def fill(board: Board, people: int) -> None:
    """Have people join who are somewhere in lab 07, one in nine with a raised hand, and one without a machine."""

    def come(number: int) -> None:
        chance = random.Random(number)
        exercises = [
            at(exercise, chance.choice(VERDICTS), hint=chance.randrange(4), minute=f"2026-12-01T09:{10 + exercise}")
            for exercise in range(1, chance.randrange(2, 5))
        ]
        hand = {"lab": "07", "exercise": 2} if number % 9 == 4 else None
        doctor = [
            {"lab": "07 Horovod", "status": "fail" if number == 2 else "ok", "because": ["compiler"] * (number == 2)}
        ]
        opened = {"lab": "03", "minute": f"2026-12-01T09:{10 + number}"} if number % 7 == 3 else None
        guesses = [guessed(chance.choice((1.5, 2, 2, 3, 10)), chance.uniform(1.2, 2.6) if number % 3 else None)]
        seat = board.join(f"{'ABCDEFGH'[number % 8]}{number // 8 + 1}")
        state = {"exercises": exercises, "opened": opened, "guesses": guesses, "hand": hand, "doctor": doctor}
        assert seat.put(**state).status_code == 204

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come, range(people)))


def machines(count: int, seed: int = 1) -> list[tuple[str, dict[str, Any]]]:
    """Return the closing figures of machines, as their seats send them, with the labs they are of."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        cores, kind = chance.choice(CORES), chance.randrange(3)
        speed = cores**0.8 * (1.0, 1.7, 2.1)[kind] * chance.uniform(0.85, 1.15)
        ratio = (1.5, 1.8, 2.0)[kind] * chance.uniform(0.8, 1.2)
        figures = [
            ("default → MKL-DNN (Intel, batch 16)", ratio, "×"),
            ("training, onednn, batch 8", 6 * speed, "images/s"),
            ("training, openmp-kmp-bf16, batch 8", (6, 7, 20)[kind] * speed, "images/s"),
            ("as set → 4 threads", chance.uniform(0.2, 1.1), "×"),
        ]
        found.append(("03", _message(cores, kind, figures)))
        if number % 2:
            weak = 100 * cores**-0.12 * chance.uniform(0.9, 1.05)
            found.append(("07", _message(cores, kind, [("weak: this CNN, on all cores", weak, "%")])))
    return found


def _message(cores: int, kind: int, figures: list[tuple[str, float, str]]) -> dict[str, Any]:
    listed = [{"name": name, "value": round(value, 2), "unit": unit} for name, value, unit in figures]
    return {"cores": cores, "isa": ISA[kind], "figures": listed}


def send_figures(board: Board, sent: list[tuple[str, dict[str, Any]]]) -> None:
    """Have machines send their closing figures."""

    def send(one: tuple[str, dict[str, Any]]) -> None:
        answer = board.send_figures({"lab": one[0], **one[1]})
        assert answer.status_code == 204, answer.text

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, sent))
