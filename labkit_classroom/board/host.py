"""The instructor's side: the board is opened, restarted, and closed with what may be kept."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from labkit.exercises import minutes, sources
from labkit.report.page import FEW
from labkit.system import addresses, files, paths
from labkit.system.errors import LabError
from labkit_classroom.board import app, views
from labkit_classroom.board.store import Store
from labkit_classroom.lecture.agenda import Day

FOLDER = paths.STATE / "room"
FILE = "board.sqlite"


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


def plan_of(days: list[Day]) -> tuple[views.Planned, ...]:
    """Return the sections of a timetable, with the end and the exercises of each."""
    planned = []
    for entry in (entry for day in days for entry in day.entries):
        if not entry.sections:
            planned.append(views.Planned("", (), entry.end, entry.part.title))
            continue
        of_section = exercises_by_section(sources.find(entry.part.lab))
        ends = [*(begin for begin, _ in entry.sections[1:]), entry.end]
        for (_, section), end in zip(entry.sections, ends, strict=True):
            name = f"lab {entry.part.lab}, {'section ' * section.name.isdigit()}{section.name}"
            planned.append(views.Planned(entry.part.lab, of_section.get(section.name, ()), end, name))
    return tuple(planned)


def exercises_by_section(source: Path) -> dict[str, tuple[int, ...]]:
    """Return the exercises of each section of a lab."""
    parts = minutes.by_section(sources.read(source))
    return {part.name: part.exercises for part in parts if part.exercises}


def labs() -> tuple[views.Lab, ...]:
    """Return all labs as the board knows them."""
    return tuple(
        views.Lab(source.stem[:2], sources.title(source), len(sources.exercises(sources.read(source))))
        for source in sources.labs()
    )


def open_room(
    address: str,
    port: int,
    days: list[Day],
    tls: tuple[Path, Path] | None,
    on_open: Callable[[str, str, str], None],
    new_code: bool = False,
) -> None:
    """Serve the board until an interrupt; a room that is open already goes on with all it had.

    Parameters
    ----------
    address, port
        Where to listen.
    days : list of Day
        The timetable; empty when there is none.
    tls : tuple of Path, optional
        The files with a certificate and its key.
    on_open : callable
        Is given the board's address, the room's code and the instructor's address.
    new_code : bool
        Whether the room gets another code; who has a seat keeps it.
    """
    store = Store(FOLDER / FILE)
    try:
        if new_code:
            asyncio.run(store.change_code())
        asyncio.run(_serve(app.Room(store, labs(), plan_of(days)), address, port, tls, on_open))
    finally:
        store.close()


async def _serve(
    room: app.Room,
    address: str,
    port: int,
    tls: tuple[Path, Path] | None,
    on_open: Callable[[str, str, str], None],
) -> None:
    server = app.serve(room, address, port, tls)
    base = addresses.url(address, port, bool(tls))
    on_open(base, room.store["code"], f"{base}/instructor#{room.store['instructor']}")
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    await over.wait()
    server.stop()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(server.close_all_connections(), 2)


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
    for left in FOLDER.glob(f"{FILE}*"):
        left.unlink()


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
