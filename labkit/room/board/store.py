"""The board's memory: an SQLite file, in which everything is safe that a client was told is there."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from labkit.room import protocol
from labkit.system.errors import LabError

COMMIT_INTERVAL_S = 0.02  # messages that come in so short a time are written together
CODE_LETTERS = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"  # without those that look alike
CODE_LENGTH = 6
SCHEMA = """
CREATE TABLE IF NOT EXISTS room (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS seats (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, token BLOB NOT NULL, joined REAL NOT NULL, heard REAL NOT NULL,
    changed REAL NOT NULL, state TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS figures (id INTEGER PRIMARY KEY, lab TEXT NOT NULL, message TEXT NOT NULL);
"""


class Seat(NamedTuple):
    """A seat: its number and name, when it joined, was last heard of and last changed (Unix time), and its state."""

    id: int
    name: str
    joined: float
    heard: float
    changed: float
    state: dict[str, Any]


class Full(Exception):
    """The disk has no room, or can't be written to: what was sent is not kept."""


class Store:
    """What the board knows.

    Parameters
    ----------
    path : Path
        Its file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
            # EXCLUSIVE: a file has one board. The system lets go of it with the process, however that ends.
            self._database.executescript(
                f"PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                f" PRAGMA secure_delete=ON; {SCHEMA}"
            )
            for key, value in {
                "code": new_code(),
                "instructor": secrets.token_urlsafe(24),
                "opened": str(time.time()),
            }.items():
                self._database.execute("INSERT OR IGNORE INTO room VALUES (?, ?)", (key, value))
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise LabError(f"a board has {path} open: end that one first, by Ctrl-C where it runs.") from error
            raise LabError(f"cannot keep the room in {path}: {error}.") from error
        self._waiting: list[asyncio.Future[None]] = []
        self._transactions = 0

    def close(self) -> None:
        """Close its file."""
        with contextlib.suppress(sqlite3.Error):  # on a full disk, what the file lacks stays beside it
            self._database.close()

    @property
    def version(self) -> tuple[int, int]:
        """What is another when anything that is kept may be: rows changed, and transactions ended, undone ones too."""
        return self._database.total_changes, self._transactions

    def is_code(self, given: str) -> bool:
        """Whether a text is the room's code, however it was typed."""
        return _is(protocol.plain_code(given), _digest(self["code"]))

    def is_instructor(self, given: str) -> bool:
        """Whether a text is the instructor's token."""
        return _is(given, _digest(self["instructor"]))

    def __getitem__(self, key: str) -> str:
        """Return what is kept of the room under a name: its `code`, the `instructor`'s token, when it was `opened`."""
        return self._database.execute("SELECT value FROM room WHERE key = ?", (key,)).fetchone()[0]

    async def join(self, name: str) -> tuple[str, str]:
        """Add a seat; return its name and its token."""
        secret, now = secrets.token_urlsafe(24), time.time()
        empty = json.dumps({"exercises": [], "hand": None, "doctor": None})
        with self._writing():
            cursor = self._database.execute(
                "INSERT INTO seats (name, token, joined, heard, changed, state) VALUES (?, ?, ?, ?, ?, ?)",
                (name, _digest(secret), now, now, now, empty),
            )
            number = cursor.lastrowid
            name = name or f"seat {number}"
            self._database.execute("UPDATE seats SET name = ? WHERE id = ?", (name, number))
        await self._written()
        return name, f"{number}.{secret}"

    def seat_of(self, token: str) -> int | None:
        """Return the number of the seat that a token is of."""
        number, _, secret = token.partition(".")
        row = None
        if number.isascii() and number.isdecimal() and len(number) < 10:
            row = self._database.execute("SELECT token FROM seats WHERE id = ?", (int(number),)).fetchone()
        return int(number) if row and _is(secret, row[0]) else None

    async def put(self, number: int, state: dict[str, Any]) -> None:
        """Keep a seat's state."""
        now, text = time.time(), json.dumps(state)
        with self._writing():
            self._database.execute(
                "UPDATE seats SET heard = ?1, changed = CASE state WHEN ?2 THEN changed ELSE ?1 END, state = ?2"
                " WHERE id = ?3",
                (now, text, number),
            )
        await self._written()

    async def leave(self, number: int) -> None:
        """Delete all that is kept of a seat."""
        with self._writing():
            self._database.execute("DELETE FROM seats WHERE id = ?", (number,))
        await self._written()

    async def add_figures(self, message: dict[str, Any]) -> None:
        """Keep a lab's closing figures, of nobody's seat."""
        kept = json.dumps({key: message[key] for key in ("cores", "isa", "figures")})
        with self._writing():
            self._database.execute("INSERT INTO figures (lab, message) VALUES (?, ?)", (message["lab"], kept))
        await self._written()

    def count(self, table: Literal["seats", "figures"]) -> int:
        """Return how many there are."""
        return self._database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]

    def seats(self) -> list[Seat]:
        """Return all seats."""
        rows = self._database.execute("SELECT id, name, joined, heard, changed, state FROM seats ORDER BY id")
        return [Seat._make([*row[:-1], json.loads(row[-1])]) for row in rows]

    def figures(self) -> list[tuple[str, dict[str, Any]]]:
        """Return all closing figures, each with its lab."""
        rows = self._database.execute("SELECT lab, message FROM figures ORDER BY lab, message")  # not as they came
        return [(lab, json.loads(message)) for lab, message in rows]

    # Writing

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Write as a part of the transaction that is open; when that fails, undo it all, and tell whoever waits."""
        try:
            if not self._database.in_transaction:
                self._database.execute("BEGIN IMMEDIATE")
            yield
        except sqlite3.Error as error:
            full = Full(str(error))
            self._undo(full)
            raise full from error

    async def _written(self) -> None:
        """Wait until what was written is safe.

        Raises
        ------
        Full
            When it is not.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(COMMIT_INTERVAL_S, self._commit)
        await future

    def _commit(self) -> None:
        try:
            if self._database.in_transaction:
                self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._undo(Full(str(error)))
        else:
            self._tell(None)

    def _undo(self, failure: Full) -> None:
        """Undo the transaction, unless SQLite has, and tell whoever waits for it."""
        with contextlib.suppress(sqlite3.Error):
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        self._tell(failure)

    def _tell(self, failure: Full | None) -> None:
        """Tell whoever waits how the transaction has ended."""
        self._transactions += 1
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                if failure:
                    future.set_exception(failure)
                else:
                    future.set_result(None)


def new_code(length: int = CODE_LENGTH) -> str:
    """Return a code that is easy to read out and to type; by default as long as a room's."""
    return "".join(secrets.choice(CODE_LETTERS) for _ in range(length))


def _is(given: str, digest: bytes) -> bool:
    """Whether a secret is the one with a digest; in constant time."""
    return hmac.compare_digest(_digest(given), digest)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
