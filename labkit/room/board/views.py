"""What the pages show: counts for the wall, seats for the instructor, figures without seats for both."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED
from labkit.room.board.store import Seat

FEW = 5  # people from whom on the wall counts: of fewer, everybody would know who is meant
SILENT_MIN = 3  # minutes from which on "last heard" is told


class Planned(NamedTuple):
    """A section of a lab and when it is done: lab, its exercises, when it should be over, and its name."""

    lab: str
    exercises: tuple[int, ...]
    end: datetime
    name: str


class Lab(NamedTuple):
    """A lab: number, title, how many exercises it has."""

    number: str
    title: str
    exercises: int


def wall(seats: Sequence[Seat], labs: Sequence[Lab], plan: Sequence[Planned], now: datetime) -> dict[str, Any]:
    """Return what the projector shows: counts alone, and those from `FEW` people on."""
    if len(seats) < FEW:
        return {
            "people": None,
            "few": FEW,
            "labs": [],
            "now": f"{now:%H:%M}",
            "planned": _planned(plan, now),
            "drift": None,
        }
    counts = passed(seats)
    begun = {one["lab"] for seat in seats for one in seat.state["exercises"] if one["verdict"] != NOT_ATTEMPTED}
    shown = [
        {
            "lab": lab.number,
            "title": lab.title,
            "passed": [counts[lab.number, number] for number in range(1, lab.exercises + 1)],
        }
        for lab in labs
        if lab.number in begun
    ]
    return {
        "people": len(seats),
        "few": FEW,
        "labs": shown,
        "now": f"{now:%H:%M}",
        "planned": _planned(plan, now),
        "drift": drift(seats, plan, now),
    }


def instructor(seats: Sequence[Seat], labs: Sequence[Lab], plan: Sequence[Planned], now: datetime) -> dict[str, Any]:
    """Return what the instructor's page shows: seats, raised hands first, then those without a change for longest."""
    moment = now.timestamp()
    rows = [_row(seat, moment) for seat in seats]
    rows.sort(key=lambda row: (row["hand"] is None, row["hand"] or "", -row["unchanged"]))
    return {
        "wall": wall(seats, labs, plan, now),
        "people": len(seats),
        "seats": rows,
        "stuck": _stuck(seats),
        "doctor": _doctor(seats),
    }


def drift(seats: Sequence[Seat], plan: Sequence[Planned], now: datetime) -> int | None:
    """Return by how many minutes the room is behind its plan, less than 0 when it is ahead; None when nobody knows.

    It is behind by how long ago the section should have been over that comes after the last one that half of the seats
    are through with.
    """
    if not plan or not seats:
        return None
    counts = passed(seats)
    through = [
        place
        for place, section in enumerate(plan)
        if section.exercises and all(2 * counts[section.lab, number] >= len(seats) for number in section.exercises)
    ]
    following = max(through, default=-1) + 1
    ahead = [section for section in plan[following:] if section.exercises]
    if following and now < plan[following - 1].end:
        return -_minutes(plan[following - 1].end - now)
    return max(0, _minutes(now - ahead[0].end)) if ahead else 0


def _minutes(span: Any) -> int:
    return int(span.total_seconds() // 60)


def _planned(plan: Sequence[Planned], now: datetime) -> str:
    """Return the section that is planned for now; empty without a plan."""
    return next((section.name for section in plan if now < section.end), "") if plan else ""


def passed(seats: Sequence[Seat]) -> Counter[tuple[str, int]]:
    """Return how many seats have passed an exercise, by lab and exercise."""
    return Counter(
        key
        for seat in seats
        for key in {(one["lab"], one["exercise"]) for one in seat.state["exercises"] if one["verdict"] == PASSED}
    )


def _row(seat: Seat, now: float) -> dict[str, Any]:
    exercises = sorted(seat.state["exercises"], key=lambda one: (one["minute"], one["lab"], one["exercise"]))
    tried = [one for one in exercises if one["verdict"] != NOT_ATTEMPTED]
    at, hand = (tried or [None])[-1], seat.state["hand"]
    silent = max(0, int((now - seat.heard) / 60))  # a clock that is set back makes nobody heard in the future
    return {
        "seat": seat.name,
        "number": seat.id,
        "hand": hand["minute"] if hand else None,
        "hand_at": f"{hand['lab']} · {hand['exercise']}" if hand else "",
        "at": f"{at['lab']} · {at['exercise']}" if at else "",
        "verdict": at["verdict"] if at else "",
        "hint": at["hint"] if at else 0,
        "passed": sum(one["verdict"] == PASSED for one in exercises),
        "unchanged": max(0, int((now - seat.changed) / 60)),
        "silent": silent if silent >= SILENT_MIN else None,
    }


def _stuck(seats: Sequence[Seat]) -> list[dict[str, Any]]:
    """Return the exercises that most seats fail, with the hint that half of them have seen."""
    hints: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for seat in seats:
        for one in seat.state["exercises"]:
            if one["verdict"] == NOT_YET:
                hints[one["lab"], one["exercise"]].append(one["hint"])
    worst = sorted(hints.items(), key=lambda item: -len(item[1]))[:5]
    return [
        {"at": f"{lab} · {number}", "seats": len(seen), "hint": round(statistics.median(seen))}
        for (lab, number), seen in worst
    ]


def _doctor(seats: Sequence[Seat]) -> dict[str, Any]:
    """Return for each lab how many machines can run it, and what the others need."""
    sent = [(seat.name, seat.state["doctor"]) for seat in seats if seat.state["doctor"] is not None]
    labs: dict[str, Any] = {}
    for name, verdicts in sent:
        for verdict in verdicts:
            lab = labs.setdefault(verdict["lab"], {"lab": verdict["lab"], "can": 0, "cannot": []})
            if verdict["status"] == "fail":
                lab["cannot"].append({"seat": name, "because": verdict["because"]})
            else:
                lab["can"] += 1
    return {"machines": len(sent), "labs": [labs[key] for key in sorted(labs)]}


def room_figures(figures: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return of each lab's closing figures those that came from `FEW` machines or more."""
    by_kind = [
        (lab, message, {(one["name"], one["unit"]): one for one in message["figures"]}) for lab, message in figures
    ]
    sent = Counter((lab, kind) for lab, _, kinds in by_kind for kind in kinds)
    by_lab: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for lab, message, kinds in by_kind:
        if shown := [one for kind, one in kinds.items() if sent[lab, kind] >= FEW]:
            by_lab[lab].append({**message, "figures": shown})
    return dict(sorted(by_lab.items()))
