"""Minutes the room spent on sections, vs planned."""

import itertools
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from labkit.display.results import PASSED
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.store import Seat
from labkit_classroom.board.timetable import Plan, Planned


def minutes(plan: Plan, seats: Iterable[Seat]) -> list[dict[str, Any]]:
    """Return planned and elapsed minutes for each section that half of the seats have finished.

    They count from the end of the previous such section, or the beginning of the day, without breaks and talks.
    """
    states = [seat.state["exercises"] for seat in seats]
    rows = []
    for _, parts in itertools.groupby(plan, key=lambda part: part.begin.date()):
        begin, planned, pauses = None, 0.0, timedelta()
        for part in parts:
            begin = begin or part.begin
            if not part.lab:
                pauses += part.end - part.begin
                continue
            planned += part.minutes
            end = _end(part, states)
            if end and end - begin > pauses:
                taken = (end - begin - pauses) / timedelta(minutes=1)
                place = {"lab": part.lab, "section": part.section}
                rows.append(place | {"planned": round(planned, 1), "taken": round(taken, 1)})
                begin, planned, pauses = end, 0.0, timedelta()
    return rows


def _end(section: Planned, states: Sequence[Sequence[dict[str, Any]]]) -> datetime | None:
    """Return when half of the seats, and at least `FEW`, had passed a section's exercises, if on the same day."""
    day, finished = f"{section.begin:%Y-%m-%d}", []
    for exercises in states:
        passed = {
            entry["exercise"]: entry["minute"]
            for entry in exercises
            if entry["lab"] == section.lab and entry["verdict"] == PASSED
        }
        if section.exercises and passed.keys() >= set(section.exercises):
            finished.append(max(passed[number] for number in section.exercises))
    half = max(math.ceil(len(states) / 2), FEW)
    minute = sorted(finished)[math.ceil(len(states) / 2) - 1] if len(finished) >= half else ""
    try:
        return datetime.fromisoformat(minute) if minute.startswith(day) else None
    except ValueError:  # the schema only checks that these are digits
        return None
