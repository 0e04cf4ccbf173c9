"""The board's storage: the room's settings and its seats, in SQLite and in memory.

Stored data survives the process. Writes do not wait for the disk: a power failure may lose the last seconds, and seats
send their whole state again within a minute. Deleted entries are overwritten with zeros, and each deletion truncates
the write-ahead log, so no file contains data of a seat that has left.
"""

import hashlib
import hmac
import json
import re
import secrets
import sqlite3
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit.system.errors import LabError
from labkit_classroom.board import protocol

FORMAT = 5  # the table's version
ROOM = "room"  # key of the room's settings; other keys are seat numbers


def _empty() -> dict[str, Any]:
    return {"exercises": [], "opened": None, "guesses": [], "doctor": None}


@dataclass(frozen=True)
class Seat:
    """A seat; times are in seconds since 1970."""

    id: int
    name: str
    token: str  # SHA-256 of the token's secret part
    heard: float  # when it last sent something
    changed: float  # when it last sent something new
    hand: dict[str, Any] | None = None  # a raised hand: lab and exercise, and `at`, when it was raised
    state: dict[str, Any] = field(default_factory=_empty)  # its latest state (`protocol.STATE`)


class Store:
    """A room's settings and seats.

    Parameters
    ----------
    path : Path
        The file; created if missing.

    Attributes
    ----------
    room : dict
        The `code` and the number of `codes` so far, the `instructor`'s token, when the room was `opened`, its `plan`,
        the number of `people` expected and of those who have `joined` so far, and the question `held` on the wall, if
        any. Change it with `change`.
    seats : dict
        All seats by number.
    version : int
        Increases with each change.
    """

    def __init__(self, path: Path) -> None:
        self.version = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
            # EXCLUSIVE: one board per file. The lock is released when the process ends.
            self._database.executescript(
                "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
                " PRAGMA secure_delete=ON; PRAGMA temp_store=MEMORY; BEGIN EXCLUSIVE; COMMIT"
            )
            tables = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            if tables and self._database.execute("PRAGMA user_version").fetchone() != (FORMAT,):
                raise LabError(f"{path} is from another version of the kit: delete it and open a new room.")
            columns = "key TEXT PRIMARY KEY, value TEXT NOT NULL"
            self._database.executescript(
                f"CREATE TABLE IF NOT EXISTS entries ({columns}); PRAGMA user_version={FORMAT}"
            )
            entries = {key: json.loads(text) for key, text in self._database.execute("SELECT key, value FROM entries")}
            self.room: dict[str, Any] = entries.pop(ROOM, {})
            self.seats = {seat["id"]: Seat(**seat) for seat in sorted(entries.values(), key=lambda seat: seat["id"])}
            if not self.room:
                settings = {"codes": 1, "joined": 0, "people": 0, "plan": [], "opened": time.time()}
                self.change(code=protocol.new_code(), instructor=secrets.token_urlsafe(24), **settings)
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise LabError(f"another board is using {path}: stop it first, with Ctrl-C in its terminal.") from error
            raise LabError(f"cannot store the room in {path}: {error}.") from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def change(self, **values: Any) -> None:
        """Change the room's settings."""
        self._write(ROOM, self.room | values)
        self.room |= values

    def change_code(self) -> None:
        """Give the room a new code; existing seats stay."""
        self.change(code=protocol.new_code(), codes=self.room["codes"] + 1)

    def is_code(self, text: str) -> bool:
        """Whether a text is the room's code, however it was typed."""
        return hmac.compare_digest(_digest(protocol.plain_code(text)), _digest(self.room["code"]))

    def is_instructor(self, text: str) -> bool:
        """Whether a text is the instructor's token."""
        return hmac.compare_digest(_digest(text), _digest(self.room["instructor"]))

    def join(self, name: str) -> tuple[str, str]:
        """Add a seat; return its name, with a number appended if it is taken, and its token."""
        secret, now, number = secrets.token_urlsafe(24), time.time(), self.room["joined"] + 1
        if not name or name in {seat.name for seat in self.seats.values()}:
            name = f"{name[: protocol.SEAT_LETTERS - 10] or 'seat'} {number}"
        self.change(joined=number)  # first, so that no number is used twice
        self._save(Seat(number, name, _digest(secret), now, now))
        return name, f"{number}.{secret}"

    def seat_of(self, token: str) -> Seat | None:
        """Return the seat a token belongs to."""
        number, _, secret = token.partition(".")
        seat = self.seats.get(int(number)) if re.fullmatch("[0-9]{1,9}", number) else None
        return seat if seat and hmac.compare_digest(_digest(secret), seat.token) else None

    def put(self, seat: Seat, state: dict[str, Any]) -> None:
        """Store a seat's state."""
        now = time.time()
        changed = seat.changed if state == seat.state else now
        self._save(replace(seat, heard=now, changed=changed, state=state))

    def move_hand(self, number: int, place: dict[str, Any] | None) -> bool:
        """Raise a seat's hand at a lab and exercise; lower it if it is up or `place` is None."""
        seat = self.seats[number]
        is_up = place is not None and seat.hand is None
        self._save(replace(seat, hand=place | {"at": time.time()} if place and is_up else None))
        return is_up

    def leave(self, number: int) -> None:
        """Delete everything stored about a seat."""
        self._database.execute("DELETE FROM entries WHERE key = ?", (str(number),))
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.seats.pop(number, None)
        self.version += 1

    def _save(self, seat: Seat) -> None:
        self._write(str(seat.id), asdict(seat))
        self.seats[seat.id] = seat

    def _write(self, key: str, value: dict[str, Any]) -> None:
        self._database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (key, json.dumps(value)))
        self.version += 1


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
