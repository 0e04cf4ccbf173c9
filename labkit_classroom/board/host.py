"""The instructor's side: opens a board, reports on the one that runs, and closes the room."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from labkit.exercises import catalogue
from labkit.system import addresses, files, paths
from labkit.system.errors import LabError
from labkit_classroom.board import app, elapsed, seat, timetable
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.results import Results, questions_in_order
from labkit_classroom.board.room import Room, RoomCounts
from labkit_classroom.board.store import Store
from labkit_classroom.board.timetable import Planned
from labkit_classroom.lecture.agenda import Day

FOLDER = paths.STATE / "room"
FILE = "board.sqlite"
RUNNING = "running.json"  # where the board that runs is reached, and the instructor's token


class Opened(NamedTuple):
    """An open room: the board's address, the room's code, the instructor's token."""

    base: str
    code: str
    token: str

    @property
    def wall(self) -> str:
        """The wall's address."""
        return f"{self.base}/#{self.code}"

    @property
    def instructor(self) -> str:
        """The address of the instructor's page."""
        return f"{self.base}/instructor#{self.token}"


def tls_files(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Return the files with a certificate and its key; None without.

    Raises
    ------
    LabError
        When one is missing, or is no file that can be read.
    """
    if not cert and not key:
        return None
    if not cert or not key:
        raise LabError("https takes both --cert and --key.")
    for file in (cert, key):
        files.open_regular(file).close()  # a pipe would be waited for
    return cert, key


def plan_of(days: Sequence[Day]) -> tuple[Planned, ...]:
    """Return the parts of a timetable, labs section by section."""
    planned = []
    for entry in (entry for day in days for entry in day.entries):
        if not entry.sections:
            planned.append(Planned(entry.part.title, entry.begin, entry.end))
            continue
        lab = catalogue.find(entry.part.lab)
        ends = [*(begin for begin, _ in entry.sections[1:]), entry.end]
        for (begin, section), end in zip(entry.sections, ends, strict=True):
            title = f"Lab {lab.number} · {section.heading.replace(' · ', ' ', 1).replace('`', '')}"
            own = tuple(number for number, exercise in lab.exercises.items() if exercise.section == section.name)
            about = lab.number, section.name, own, section.minutes, section.core
            planned.append(Planned(title, begin, end, *about))
    return tuple(planned)


def open_room(
    address: str,
    port: int,
    days: Sequence[Day],
    tls: tuple[Path, Path] | None,
    on_open: Callable[[Opened], None],
    new_code: bool = False,
    people: int | None = None,
) -> None:
    """Serve the board until an interrupt; a room that exists continues with everything it had.

    Parameters
    ----------
    address, port
        Where to listen.
    days : sequence of Day
        The timetable; empty for the one that the room has, if any.
    tls : tuple of Path, optional
        The files with a certificate and its key.
    on_open : callable
        Is called with the room's addresses and code.
    new_code : bool
        Whether the room gets another code; seats stay.
    people : int, optional
        How many are expected; by default as many as before.
    """
    store = Store(FOLDER / FILE)
    try:
        if new_code:
            store.change_code()
        if days:
            store.change(plan=timetable.write(plan_of(days)))
        if people is not None:
            store.change(people=people)
        room = Room(
            store, catalogue.labs(), timetable.read(store.room["plan"]), addresses.url(address, port, bool(tls))
        )
        asyncio.run(_serve(room, address, port, tls, on_open))
    finally:
        store.close()


async def _serve(
    room: Room, address: str, port: int, tls: tuple[Path, Path] | None, on_open: Callable[[Opened], None]
) -> None:
    server = app.serve(room, address, port, tls)
    opened = Opened(room.address, room.store.room["code"], room.store.room["instructor"])
    running = FOLDER / RUNNING
    running.touch(mode=0o600)
    files.write(running, json.dumps({"address": opened.base, "token": opened.token, "ca": str(tls[0]) if tls else ""}))
    on_open(opened)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    await over.wait()
    running.unlink(missing_ok=True)
    server.stop()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close_all_connections(), 2)


def status() -> tuple[Opened, dict[str, Any]]:
    """Return the open room, and the content of the instructor's page.

    Raises
    ------
    LabError
        When no board runs.
    """
    try:
        kept = files.read_json(FOLDER / RUNNING)
        shown = seat.ask("GET", kept, "/view/instructor").content
        return Opened(kept["address"], shown["code"], kept["token"]), shown
    except (OSError, ValueError, KeyError, TypeError, LabError) as error:
        raise LabError("no board runs here: ./lab room open opens one, with all that its room had.") from error


def running_room() -> Opened | None:
    """Return the address and the code of the room that is open on this machine; None when no board runs."""
    try:
        return status()[0]
    except LabError:
        return None


def close_room(out: Path) -> None:
    """Write the room's counts, results and minutes, none with a seat, and delete everything else.

    Raises
    ------
    LabError
        When there is no room, or the file cannot be written.
    """
    path = FOLDER / FILE
    if not path.exists():
        raise LabError("no room is there: ./lab room open opens one.")
    store = Store(path)
    try:
        files.write(out, json.dumps(aggregates(store), indent=1), "name another file with --out")
    finally:
        store.close()
    for left in (*FOLDER.glob(f"{FILE}*"), FOLDER / RUNNING):
        left.unlink(missing_ok=True)


def aggregates(store: Store) -> dict[str, Any]:
    """Return what may be kept of a room.

    Counts are rounded down to multiples of `FEW`, so that two of them never differ by fewer people.
    """
    plan, seats = timetable.read(store.room["plan"]), list(store.seats.values())
    counts = RoomCounts(seats)
    passed = {place: count - count % FEW for place, count in sorted(counts.passed.items())}
    return {
        "opened": f"{datetime.fromtimestamp(store.room['opened']):%Y-%m-%d}",
        "rounded_down_to": FEW,
        "people": counts.people - counts.people % FEW or None,
        "passed": [{"lab": lab, "exercise": number, "seats": n} for (lab, number), n in passed.items() if n],
        "minutes": elapsed.minutes(plan, seats),
        "results": Results(questions_in_order(catalogue.labs(), plan), seats).measured(),
    }
