"""The instructor's side of the board: open, status, close."""

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
from labkit_classroom.board import app, seat, timetable
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.results import Results, questions_in_order
from labkit_classroom.board.room import Room, RoomCounts
from labkit_classroom.board.store import Store
from labkit_classroom.board.timetable import Planned
from labkit_classroom.lecture.agenda import Day

FOLDER = paths.STATE / "room"
FILE = "board.sqlite"
RUNNING = "running.json"  # the running board's address and the instructor's token


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
    """Return the files with a certificate and its key; None without them.

    Raises
    ------
    LabError
        If one is missing or not a readable file.
    """
    if not cert and not key:
        return None
    if not cert or not key:
        raise LabError("https needs both --cert and --key.")
    for file in (cert, key):
        files.open_regular(file).close()  # reading a pipe would block
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
            exercises = tuple(number for number, exercise in lab.exercises.items() if exercise.section == section.name)
            planned.append(
                Planned(title, begin, end, lab.number, section.name, exercises, section.minutes, section.core)
            )
    return tuple(planned)


def open_room(
    address: str,
    port: int,
    days: Sequence[Day],
    tls: tuple[Path, Path] | None,
    on_open: Callable[[Opened], None],
    people: int | None = None,
) -> None:
    """Serve the board until interrupted; an existing room resumes with all its data.

    Parameters
    ----------
    address, port
        Where to listen.
    days : sequence of Day
        The timetable; empty to keep the room's.
    tls : tuple of Path, optional
        The files with a certificate and its key.
    on_open : callable
        Called with the room's addresses and code.
    people : int, optional
        The expected number; unchanged by default.
    """
    store = Store(FOLDER / FILE)
    try:
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
    interrupted = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    await interrupted.wait()
    running.unlink(missing_ok=True)
    server.stop()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close_all_connections(), 2)


def status() -> tuple[Opened, dict[str, Any]]:
    """Return the open room, and the content of the instructor's page.

    Raises
    ------
    LabError
        If no board is running.
    """
    try:
        running = files.read_json(FOLDER / RUNNING)
        view = seat.ask("GET", running, "/view/instructor").content
        return Opened(running["address"], view["code"], running["token"]), view
    except (OSError, ValueError, KeyError, TypeError, LabError) as error:
        raise LabError("no board is running here: ./lab room open opens a room, or resumes an open one.") from error


def running_room() -> Opened | None:
    """Return the room that is open on this machine; None if no board is running."""
    try:
        return status()[0]
    except LabError:
        return None


def close_room(out: Path) -> None:
    """Write the room's counts and results, without seats, and delete everything else.

    Raises
    ------
    LabError
        If there is no room, or the file cannot be written.
    """
    path = FOLDER / FILE
    if not path.exists():
        raise LabError("there is no room: ./lab room open opens one.")
    store = Store(path)
    try:
        files.write(out, json.dumps(aggregates(store), indent=1), "name another file with --out")
    finally:
        store.close()
    for file in (*FOLDER.glob(f"{FILE}*"), FOLDER / RUNNING):
        file.unlink(missing_ok=True)


def aggregates(store: Store) -> dict[str, Any]:
    """Return the aggregates that may be kept of a room.

    Counts are rounded down to multiples of `FEW`, so that no two of them differ by fewer people.
    """
    plan, seats = timetable.read(store.room["plan"]), list(store.seats.values())
    counts = RoomCounts(seats)
    passed = {place: count - count % FEW for place, count in sorted(counts.passed.items())}
    return {
        "opened": f"{datetime.fromtimestamp(store.room['opened']):%Y-%m-%d}",
        "rounded_down_to": FEW,
        "people": counts.people - counts.people % FEW or None,
        "passed": [{"lab": lab, "exercise": number, "seats": n} for (lab, number), n in passed.items() if n],
        "results": Results(questions_in_order(catalogue.labs(), plan), seats).measured(),
    }
