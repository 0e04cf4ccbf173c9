"""The instructor's side: the board is opened, restarted, and closed with what may be kept."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Callable
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from labkit.exercises import minutes, sources
from labkit.report.page import FEW
from labkit.system import addresses, files, paths
from labkit.system.errors import LabError
from labkit_classroom.board import app, posters, questions, seat, taken, timetable, views
from labkit_classroom.board.store import Store
from labkit_classroom.board.timetable import Planned
from labkit_classroom.lecture.agenda import Day

FOLDER = paths.STATE / "room"
FILE = "board.sqlite"
RUNNING = "running.json"  # where the board that runs is reached, and the instructor's token
EXERCISE = re.compile(r"^### Exercise (\d+) · (.+)$", re.M)


class Opened(NamedTuple):
    """What is to be known of a room that is open: the board's address, the room's code, the instructor's token."""

    base: str
    code: str
    token: str

    @property
    def wall(self) -> str:
        """The wall's address."""
        return posters.address(self.base, self.code)

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


def plan_of(days: list[Day]) -> tuple[Planned, ...]:
    """Return what a timetable has, part by part, of a lab section by section."""
    planned = []
    for entry in (entry for day in days for entry in day.entries):
        if not entry.sections:
            planned.append(Planned(entry.part.title, entry.begin, entry.end))
            continue
        lab = entry.part.lab
        cells = {part.name: part for part in minutes.by_section(sources.read(sources.find(lab)))}
        ends = [*(begin for begin, _ in entry.sections[1:]), entry.end]
        for (begin, section), end in zip(entry.sections, ends, strict=True):
            own = cells[section.name]
            title = f"Lab {lab} · {own.heading.replace(' · ', ' ', 1).replace('`', '')}"
            about = lab, section.name, own.exercises, section.minutes, section.do, section.core
            planned.append(Planned(title, begin, end, *about))
    return tuple(planned)


def labs() -> tuple[views.Lab, ...]:
    """Return all labs as the board knows them."""
    return tuple(
        views.Lab(source.stem[:2], sources.title(source), exercise_titles(source)) for source in sources.labs()
    )


def exercise_titles(source: Path) -> tuple[str, ...]:
    """Return the titles of a lab's exercises, from their headings."""
    notebook = sources.read(source)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    titles = {int(number): title for number, title in EXERCISE.findall(prose)}
    return tuple(titles.get(number, "").replace("`", "") for number in sources.exercises(notebook))


def asked(plan: timetable.Plan) -> tuple[questions.Question, ...]:
    """Return what students guess, in the order of a timetable; labs that are not in it come in their own order."""
    order = {lab: place for place, lab in enumerate(dict.fromkeys(part.lab for part in plan if part.lab))}
    found = [question for source in sources.labs() for question in questions.read(source)]
    return tuple(sorted(found, key=lambda question: (order.get(question.lab, -1), question.lab, question.number)))


def open_room(
    address: str,
    port: int,
    days: list[Day],
    tls: tuple[Path, Path] | None,
    on_open: Callable[[Opened], None],
    new_code: bool = False,
    people: int | None = None,
    on_hub: bool = False,
) -> None:
    """Serve the board until an interrupt; a room that is open already goes on with all it had.

    Parameters
    ----------
    address, port
        Where to listen.
    days : list of Day
        The timetable; empty for the one that the room had, or none.
    tls : tuple of Path, optional
        The files with a certificate and its key.
    on_open : callable
        Is given what is to be known of the room.
    new_code : bool
        Whether the room gets another code; who has a seat keeps it.
    people : int, optional
        How many are awaited; by default as many as before, or nobody knows.
    on_hub : bool
        Whether students join from a hub, which knows address and code.
    """
    store = Store(FOLDER / FILE)
    try:
        if new_code:
            asyncio.run(store.change_code())
        if days:
            asyncio.run(store.change(plan=timetable.write(plan_of(days))))
        if people is not None:
            asyncio.run(store.change(people=str(people)))
        plan = timetable.read(store["plan"])
        base = addresses.url(address, port, bool(tls))
        command = "./lab join" if on_hub else f"./lab join {base}"
        room = app.Room(store, labs(), plan, asked(plan), views.Joining(base, command, not on_hub))
        asyncio.run(_serve(room, address, port, tls, on_open))
    finally:
        store.close()


async def _serve(
    room: app.Room, address: str, port: int, tls: tuple[Path, Path] | None, on_open: Callable[[Opened], None]
) -> None:
    server = app.serve(room, address, port, tls)
    opened = Opened(room.joining.address, room.store["code"], room.store["instructor"])
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
    """Return what is to be known of the room that is open, and the content of the instructor's page.

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
    """Write the room's counts and figures without seats, and delete all else.

    Raises
    ------
    LabError
        When no room is there, or it can't be written.
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
    """Return the counts and figures of a room that may be kept: none of fewer than `FEW` people or machines.

    Counts are rounded down to whole `FEW`s, so that neither a count nor what two of them differ by is of fewer.
    """
    tally, figures = views.Tally(), views.Figures()
    store.follow(tally.replace, figures.replace)
    return {
        "opened": f"{datetime.fromtimestamp(float(store['opened'])):%Y-%m-%d}",
        "rounded_down_to": FEW,
        "people": _rounded(tally.people) or None,
        "passed": [
            {"lab": lab, "exercise": number, "seats": _rounded(count)}
            for (lab, number), count in sorted(tally.passed.items())
            if _rounded(count)
        ],
        "minutes": taken.minutes(timetable.read(store["plan"]), store.seats.values()),
        "figures": {lab: _values(machines) for lab, machines in figures.shown().items()},
    }


def _rounded(count: int) -> int:
    return count - count % FEW


def _values(machines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the values of each figure, in their order and none beside another of the same machine.

    They are told apart by machines' cores and instruction sets where each kind has `FEW` or more.
    """
    figures: dict[tuple[str, str], dict[tuple[Any, ...], list[float]]] = {}
    for machine in machines:
        for figure in machine["figures"]:
            kinds = figures.setdefault((figure["name"], figure["unit"]), {})
            kinds.setdefault((machine["cores"], *machine["isa"]), []).append(figure["value"])
    rows: list[dict[str, Any]] = []
    for (name, unit), kinds in sorted(figures.items()):
        if min(map(len, kinds.values())) < FEW:
            rows.append({"name": name, "unit": unit, "values": sorted(chain.from_iterable(kinds.values()))})
            continue
        for (cores, *isa), values in sorted(kinds.items()):
            rows.append({"name": name, "unit": unit, "cores": cores, "isa": isa, "values": sorted(values)})
    return rows
