"""The board's memory: an SQLite file, in which everything is safe that a client was told is there.

What is deleted is in no file any more: SQLite overwrites it with zeros, and has no write-ahead log, in which it would
stay, and which tells in which order figures came, and so whose they are, but a journal that is cut to nothing with each
transaction. That waits for the disk several times, so messages that come together are written in one: with one for
each, 40 seats at a message a second had their answers after 1.4 s (median, on a busy disk), and after 0.06 s so.

What has been written is in memory too, so that no message and no page reads it all.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from labkit.system.errors import LabError
from labkit_classroom.board import protocol

COMMIT_INTERVAL_S = 0.02  # the time in which messages come that are written in one transaction
FORMAT = 3  # the version of the tables
# Figures and tickets have no numbers, which would tell in which order they came, and so whose they are.
SCHEMA = """
CREATE TABLE IF NOT EXISTS room (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS seats (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, key TEXT NOT NULL UNIQUE, token BLOB NOT NULL,
    joined REAL NOT NULL, heard REAL NOT NULL, changed REAL NOT NULL, hand REAL, helped INTEGER NOT NULL,
    state TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS tickets (digest BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS figures (id BLOB PRIMARY KEY, lab TEXT NOT NULL, message TEXT NOT NULL) WITHOUT ROWID;
"""
EMPTY: dict[str, Any] = {"exercises": [], "opened": None, "guesses": [], "hand": None, "doctor": None}


class Seat(NamedTuple):
    """A seat: number, name, when it joined, was last heard of, last changed, and raised the hand that is up, its state.

    Times are the board's own; they go on when its machine's clock is set back. `helped`: whether the instructor has
    taken down the hand that the state has.
    """

    id: int
    name: str
    joined: float
    heard: float
    changed: float
    hand: float | None
    helped: bool
    state: dict[str, Any]


class Full(Exception):
    """A write that failed, as the disk has no room or cannot be written to."""


OnSeat = Callable[[Seat | None, Seat | None], None]  # as it was, and as it is: None before it came, and after it left
OnFigures = Callable[[str, dict[str, Any] | None], None]  # a lab and its figures; None when all figures are deleted


class Store:
    """The room's seats, tickets and figures, in a file and in memory.

    Parameters
    ----------
    path : Path
        The file; made if it is not there.

    Attributes
    ----------
    seats : dict
        All seats by number.
    """

    def __init__(self, path: Path) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._done: list[Callable[[], None]] = []  # what a transaction changes here, once it is safe
        self._fresh: dict[int, Seat] = {}  # seats as the transaction that is open leaves them
        self._on_seat: OnSeat = lambda before, after: None
        self._on_figures: OnFigures = lambda lab, message: None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
            # EXCLUSIVE: a file has one board. The system lets go of it with the process, however that ends.
            self._database.executescript(
                "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=TRUNCATE; PRAGMA synchronous=FULL;"
                " PRAGMA secure_delete=ON; PRAGMA temp_store=MEMORY; BEGIN EXCLUSIVE; COMMIT"
            )
            (form,), (tables,) = map(
                self._row, ("PRAGMA user_version", "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table'")
            )
            if tables and form != FORMAT:
                raise LabError(f"another version of the kit has kept a room in {path}: delete it, and open a new one.")
            self._database.executescript(f"BEGIN; {SCHEMA}; PRAGMA user_version={FORMAT}; COMMIT")
            for key, value in {
                "code": protocol.new_code(),
                "instructor": secrets.token_urlsafe(24),
                "opened": str(time.time()),
                "codes": "1",
                "plan": "[]",
                "people": "0",
            }.items():
                self._database.execute("INSERT OR IGNORE INTO room VALUES (?, ?)", (key, value))
            self._room: dict[str, str] = dict(self._database.execute("SELECT key, value FROM room"))
            columns = "id, name, joined, heard, changed, hand, helped, state"
            rows = self._database.execute(f"SELECT {columns} FROM seats ORDER BY id")
            self.seats = {row[0]: Seat._make([*row[:-2], bool(row[-2]), json.loads(row[-1])]) for row in rows}
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
                raise LabError(f"a board has {path} open: end that one first, by Ctrl-C where it runs.") from error
            raise LabError(f"cannot keep the room in {path}: {error}.") from error
        self._start = max([time.time(), *(seat.heard for seat in self.seats.values())]) - _clock()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):  # on a full disk, what the file lacks stays beside it
            self._database.close()

    def follow(self, on_seat: OnSeat, on_figures: OnFigures) -> None:
        """Call these functions with all seats and figures, and from now on with each change that is safe."""
        self._on_seat, self._on_figures = on_seat, on_figures
        for seat in self.seats.values():
            on_seat(None, seat)
        for lab, message in self._database.execute("SELECT lab, message FROM figures"):
            on_figures(lab, json.loads(message))

    def now(self) -> float:
        """Return the time as the board keeps it, in seconds: it is never set back."""
        return self._start + _clock()

    def is_code(self, given: str) -> bool:
        """Whether a text is the room's code, however it was typed."""
        return _is(protocol.plain_code(given), _digest(self["code"]))

    def is_instructor(self, given: str) -> bool:
        """Whether a text is the instructor's token."""
        return _is(given, _digest(self["instructor"]))

    def __getitem__(self, key: str) -> str:
        """Return a value of the room, a text.

        That is its `code` and how many `codes` it has had, the `instructor`'s token, the time when it was `opened`, its
        `plan`, and how many `people` are awaited.
        """
        return self._room[key]

    async def change_code(self) -> None:
        """Give the room a new code for whoever comes from now on; seats stay."""
        code = protocol.new_code()
        await self.change(code=code, codes=str(int(self["codes"]) + 1))

    async def change(self, **values: str) -> None:
        """Change values of the room."""
        with self._writing():
            for key, value in values.items():
                self._database.execute("UPDATE room SET value = ? WHERE key = ?", (value, key))
            self._done.append(lambda: self._room.update(values))
        await self._written()

    async def join(self, name: str, labs: Iterable[str]) -> tuple[str, str]:
        """Add a seat; return its name, which no other has, and its token. It can send figures of each lab once."""
        secret, now = secrets.token_urlsafe(24), self.now()
        with self._writing():
            row = self._row("SELECT seq FROM sqlite_sequence WHERE name = 'seats'")
            number = (row[0] if row else 0) + 1
            token = f"{number}.{secret}"
            name = self._free(name or f"seat {number}")
            values = (number, name, protocol.name_key(name), _digest(secret), now, now, now, json.dumps(EMPTY))
            self._database.execute("INSERT INTO seats VALUES (?, ?, ?, ?, ?, ?, ?, NULL, 0, ?)", values)
            self._database.executemany("INSERT INTO tickets VALUES (?)", _tickets(token, labs))
            self._keep(Seat(number, name, now, now, now, None, False, EMPTY))
        await self._written()
        return name, token

    def _free(self, name: str) -> str:
        """Return a name, numbered when somebody has it, or one that looks like it: some number that nobody has."""

        def numbered(number: int) -> str:
            end = f" {number}" if number > 1 else ""
            return name[: protocol.SEAT_LETTERS - len(end)].rstrip() + end

        def is_taken(number: int) -> bool:
            key = protocol.name_key(numbered(number))
            return self._row("SELECT 1 FROM seats WHERE key = ?", (key,)) is not None

        taken, free = 0, 1
        while is_taken(free):
            taken, free = free, 2 * free
        while free - taken > 1:  # with a thousand of the same name, ten looks find one
            middle = (taken + free) // 2
            taken, free = (middle, free) if is_taken(middle) else (taken, middle)
        return numbered(free)

    def seat_of(self, token: str) -> int | None:
        """Return the number of the seat that a token is of."""
        number, _, secret = token.partition(".")
        row = None
        if number.isascii() and number.isdecimal() and len(number) < 10:
            row = self._row("SELECT token FROM seats WHERE id = ?", (int(number),))
        return int(number) if row and _is(secret, row[0]) else None

    async def put(self, number: int, state: dict[str, Any]) -> bool:
        """Keep a seat's state; return whether the instructor has helped with the hand that it has."""
        seat = self._newest(number)
        if seat is None:  # removed a moment ago
            return False
        now, raised = self.now(), state["hand"]
        helped = seat.helped and raised is not None and raised == seat.state["hand"]
        hand = None if raised is None or helped else seat.hand or now
        changed = seat.changed if state == seat.state else now
        await self._put(seat._replace(heard=now, changed=changed, hand=hand, helped=helped, state=state))
        return helped

    async def help(self, number: int) -> None:
        """Take down a seat's hand; the seat hears of it with its next message."""
        seat = self._newest(number)
        if seat and seat.hand is not None:
            await self._put(seat._replace(hand=None, helped=True))

    def _newest(self, number: int) -> Seat | None:
        return self._fresh.get(number) or self.seats.get(number)

    async def _put(self, seat: Seat) -> None:
        with self._writing():
            cursor = self._database.execute(
                "UPDATE seats SET heard = ?, changed = ?, hand = ?, helped = ?, state = ? WHERE id = ?",
                (seat.heard, seat.changed, seat.hand, seat.helped, json.dumps(seat.state), seat.id),
            )
            if cursor.rowcount:  # it may leave with the same transaction
                self._fresh[seat.id] = seat
                self._keep(seat)
        await self._written()

    async def leave(self, number: int, token: str = "", labs: Iterable[str] = ()) -> None:
        """Delete all that is kept of a seat; with its token, also what would let it send figures."""
        with self._writing():
            self._database.execute("DELETE FROM seats WHERE id = ?", (number,))
            self._database.executemany("DELETE FROM tickets WHERE digest = ?", _tickets(token, labs))
            self._keep(None, number)
        await self._written()

    def has_ticket(self, ticket: str, lab: str) -> bool:
        """Whether a ticket is some seat's, for a lab of which the seat has sent no figures."""
        return self._row("SELECT 1 FROM tickets WHERE digest = ?", (_ticket_digest(ticket, lab),)) is not None

    async def add_figures(self, message: dict[str, Any]) -> None:
        """Keep a lab's closing figures, of nobody's seat, and take the ticket that they came with."""
        machine = {key: message[key] for key in ("cores", "isa", "figures")}
        with self._writing():
            self._database.execute(
                "DELETE FROM tickets WHERE digest = ?", (_ticket_digest(message["ticket"], message["lab"]),)
            )
            values = (secrets.token_bytes(16), message["lab"], json.dumps(machine))
            self._database.execute("INSERT INTO figures VALUES (?, ?, ?)", values)
            self._done.append(lambda: self._on_figures(message["lab"], machine))
        await self._written()

    async def delete_figures(self) -> None:
        """Delete the figures of all labs."""
        with self._writing():
            self._database.execute("DELETE FROM figures")
            self._done.append(lambda: self._on_figures("", None))
        await self._written()

    # Writing

    def _row(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        return self._database.execute(statement, values).fetchone()

    def _keep(self, seat: Seat | None, number: int = 0) -> None:
        """Change a seat in memory, too, when the transaction is safe."""

        def keep() -> None:
            before = self.seats.pop(number, None) if seat is None else self.seats.get(seat.id)
            if seat:
                self.seats[seat.id] = seat
            self._on_seat(before, seat)

        self._done.append(keep)

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
            return
        done, self._done = self._done, []
        self._fresh.clear()
        for change in done:
            change()
        self._tell(None)

    def _undo(self, failure: Full) -> None:
        """Undo the transaction, unless SQLite has, and tell whoever waits for it."""
        with contextlib.suppress(sqlite3.Error):
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        self._done.clear()
        self._fresh.clear()
        self._tell(failure)

    def _tell(self, failure: Full | None) -> None:
        """Tell whoever waits how the transaction has ended."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                if failure:
                    future.set_exception(failure)
                else:
                    future.set_result(None)


def _is(given: str, digest: bytes) -> bool:
    """Whether a secret is the one with a digest; in constant time."""
    return hmac.compare_digest(_digest(given), digest)


def _tickets(token: str, labs: Iterable[str]) -> list[tuple[bytes]]:
    """Return the digests of a seat's tickets: nobody can tell from them whose they are."""
    return [(_ticket_digest(protocol.ticket(token, lab), lab),) for lab in labs]


def _ticket_digest(ticket: str, lab: str) -> bytes:
    return _digest(f"{lab} {ticket}")


def _clock() -> float:
    """Return seconds that go on whatever the clock is set to, and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
