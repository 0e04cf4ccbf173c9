"""What a seat had sent is in none of the board's files once the seat has left, or was removed."""

import asyncio
import json
import random
import sqlite3
from pathlib import Path

import pytest
from room_board import EMPTY, at, guessed

from labkit.system.errors import LabError
from labkit_classroom.board import protocol
from labkit_classroom.board.store import Store

MESSAGE = {"lab": "07", "cores": 2, "isa": ["AVX2"], "figures": [{"name": "x", "value": 1.5, "unit": "×"}]}


def kept(folder: Path) -> bytes:
    """Return all bytes of all files in a folder."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def telling(number: int, size: int = 3) -> dict:
    """Return a state in which a seat's own number can be found again."""
    doctor = [{"lab": f"0{lab} of person{number:04d}!", "status": "fail", "because": []} for lab in range(size)]
    guesses = [guessed(float(f"{number}.123456789"), number=1 + one) for one in range(size)]
    return EMPTY | {"exercises": [at(1 + one) for one in range(size)], "doctor": doctor, "guesses": guesses}


@pytest.mark.slow
class TestOfAProcess:
    def test_it_is_gone_while_the_board_runs_after_a_kill_and_after_it_was_closed(self, board_process):
        seats = [board_process.join(f"Person{number}") for number in range(6)]
        for number, seat in enumerate(seats):
            assert seat.put(telling(number)).status_code == 204
            assert board_process.send_figures(MESSAGE, seat).status_code == 204
        folder = board_process.folder
        assert b"Person2" in kept(folder)
        assert b"person0002!" in kept(folder)
        assert b"2.123456789" in kept(folder)

        assert seats[2].leave().status_code == 204
        for _ in range(2):
            found = kept(folder)
            for word in (b"Person2", b"person2", b"person0002!", b"2.123456789"):
                assert word not in found
            assert b"Person3" in found
            board_process.kill()
            board_process.start()
        assert seats[3].leave().status_code == 204
        board_process.kill()
        assert b"Person3" not in kept(folder)

    def test_a_room_of_an_earlier_kit_is_refused_in_one_line(self, tmp_path):
        path = tmp_path / "board.sqlite"
        database = sqlite3.connect(path)
        database.executescript("PRAGMA journal_mode=WAL; CREATE TABLE seats (id INTEGER PRIMARY KEY, name TEXT)")
        database.close()
        with pytest.raises(LabError, match="another version of the kit") as error:
            Store(path)
        assert "\n" not in str(error.value)


@pytest.mark.slow  # each transaction reaches the disk
def test_whatever_the_order_nothing_of_who_has_left_is_in_any_file(tmp_path):
    """SQLite moves rows about as its pages fill up and empty."""
    chance = random.Random(1)

    async def live() -> None:
        store = Store(tmp_path / "board.sqlite")
        there: dict[int, str] = {}
        for number in range(1, 60):
            _, token = await store.join(f"Person{number:04d}!", ("03", "07"))
            there[number] = token
            for _ in range(2):
                who = chance.choice([*there])
                await store.put(who, telling(who, size=chance.randrange(9)))
            if len(there) > 12:
                gone = [there.pop(who) and who for who in chance.sample([*there], 6)]
                await asyncio.gather(*(store.leave(who) for who in gone))
                found = kept(tmp_path).lower()
                assert [who for who in gone if f"person{who:04d}!".encode() in found] == []
                assert [who for who in gone if f" {who}.123456789".encode() in found] == []
        store.close()

    asyncio.run(live())


def test_the_file_tells_neither_whose_figures_are_nor_in_which_order_they_came(board):
    seats = [board.join(f"S{number}") for number in range(12)]
    for number, seat in enumerate(seats):
        message = MESSAGE | {"figures": [{"name": "x", "value": number, "unit": "×"}]}
        assert board.send_figures(message, seat).status_code == 204
    values = [json.loads(message)["figures"][0]["value"] for (message,) in board.sql("SELECT message FROM figures")]
    assert sorted(values) == list(range(12))
    assert values != sorted(values)
    shown = [machine["figures"][0]["value"] for machine in board.wall()["figures"]["07"]]
    assert sorted(shown) == list(range(12))
    assert shown != sorted(shown)
    found = kept(board.path.parent)
    for seat in seats:
        for lab in ("03", "07"):
            ticket = protocol.ticket(seat.token, lab)
            assert ticket.encode() not in found
            assert bytes.fromhex(ticket) not in found


def test_who_leaves_can_send_no_figures_any_more(board):
    seat = board.join()
    assert seat.leave().status_code == 204
    assert board.send_figures(MESSAGE, seat).status_code == 403
    assert board.sql("SELECT COUNT(*) FROM tickets") == [(0,)]
