"""The content of a room's pages: counts and results for the wall, seats for the instructor."""

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED
from labkit.exercises.catalogue import LabInfo
from labkit_classroom.board import protocol, timetable
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.results import Results, questions_in_order
from labkit_classroom.board.store import Seat, Store

SILENT_MIN = 3  # silence shorter than this is not shown
LACKS_LETTERS = 120  # of the list of labs that a machine cannot run
# Per address and minute: wrong codes and tokens (there are 9e8 codes), and new seats (a room may share an address).
LIMITS = {"wrong": 30, "join": 60}


class RoomCounts:
    """Counts over all seats."""

    def __init__(self, seats: Iterable[Seat]) -> None:
        self.people = 0  # seats
        self.passed: Counter[tuple[str, int]] = Counter()  # seats that passed an exercise, by lab and exercise
        self.begun: set[str] = set()  # labs in which an exercise was attempted
        self._hints: defaultdict[tuple[str, int], list[int]] = defaultdict(
            list
        )  # hints shown, by exercise not passed yet
        for seat in seats:
            self.people += 1
            for place, entry in _exercises(seat).items():
                self.passed[place] += entry["verdict"] == PASSED
                self.begun.add(entry["lab"])
                if entry["verdict"] == NOT_YET:
                    self._hints[place].append(entry["hint"])

    def stuck(self) -> list[dict[str, Any]]:
        """Return the exercises that most seats are failing, with the median number of hints shown."""
        worst = sorted(self._hints.items(), key=lambda item: (-len(item[1]), item[0]))[:5]
        return [
            {"lab": lab, "exercise": number, "seats": len(hints), "hint": round(statistics.median(hints))}
            for (lab, number), hints in worst
        ]


class Room:
    """An open room.

    Parameters
    ----------
    store : Store
        Its settings and seats.
    labs : sequence of LabInfo
        All labs.
    plan : timetable.Plan
        The timetable; empty if there is none.
    address : str
        The board's address.
    """

    def __init__(self, store: Store, labs: Sequence[LabInfo], plan: timetable.Plan = (), address: str = "") -> None:
        self.store, self.address = store, address
        self._labs, self._plan = labs, plan
        self._titles = {
            (lab.number, number): exercise.title.replace("`", "")
            for lab in labs
            for number, exercise in lab.exercises.items()
        }
        self._questions = questions_in_order(labs, plan)
        self._are_all_in = False
        self._counted = -1  # the store's version at the last count
        self._minute, self._attempts = 0, Counter[tuple[str, str]]()  # in this minute, by kind and address

    def wall_address(self) -> str:
        """Return the wall's address with the code after #, which browsers never send."""
        return f"{self.address}/#{self.store.room['code']}"

    def allows_another(self, kind: str, address: str) -> bool:
        """Count an attempt of a kind in `LIMITS`; return whether the address has made no more in this minute."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute, self._attempts = minute, Counter()
        self._attempts[kind, address] += 1
        return self._attempts[kind, address] <= LIMITS[kind]

    def wall(self) -> dict[str, Any]:
        """Return the wall's content: no seats, and no counts of fewer than `FEW` people.

        It contains not the code, only how many codes the room has had: anyone on the network may open the wall.
        """
        self._count()
        counts, settings, is_few = self._counts, self.store.room, self._counts.people < FEW
        joining = {"command": f"./lab join {self.address}", "codes": settings["codes"], "expected": settings["people"]}
        labs = [
            {
                "lab": lab.number,
                "title": lab.title,
                "exercises": [self._titles[lab.number, number] for number in lab.exercises],
                "passed": [counts.passed[lab.number, number] for number in lab.exercises],
            }
            for lab in self._labs
            if lab.number in counts.begun
        ]
        titles = {lab.number: lab.title for lab in self._labs}
        return self._now() | {
            "joining": joining | {"are_all_in": self._are_all_in},
            "people": None if is_few else counts.people,
            "few": FEW,
            "labs": [] if is_few else labs,
            "held": settings.get("held"),
            "guess": self._results.guess(settings.get("held")),
            "results": self._results.measured(),
            "drift": None if is_few else self._drift(),
            "today": timetable.today(self._plan, titles, datetime.now()) if is_few else [],
        }

    def instructor(self) -> dict[str, Any]:
        """Return the content of the instructor's page.

        Raised hands come first, oldest first, then the seats unchanged for longest, then those that have not started.
        """
        self._count()
        seats = sorted(
            self.store.seats.values(),
            key=lambda seat: (not seat.hand, seat.hand["at"] if seat.hand else 0, not _position(seat), seat.changed),
        )
        return self._now() | {
            "code": self.store.room["code"],
            "wall_address": self.wall_address(),
            "people": self._counts.people,
            "seats": [self._row(seat) for seat in seats],
            "stuck": [entry | {"at": self._named(entry)} for entry in self._counts.stuck()],
            "drift": self._drift(),
            "make_up": timetable.make_up(self._plan, self._drift(), datetime.now()),
            "exercises": [
                f"{lab} · {n} {title}" for (lab, n), title in self._titles.items() if lab in self._counts.begun
            ],
            "questions": [
                {"lab": question.lab, "number": question.number, "question": question.text}
                for question in self._questions
            ],
            "held": self.store.room.get("held"),
        }

    def _count(self) -> None:
        """Count the seats again if one has changed.

        All are in once the expected number is, or once half of it, and at least `FEW`, have passed an exercise.
        """
        if self._counted == self.store.version:
            return
        seats, expected = self.store.seats.values(), self.store.room["people"]
        self._counts, self._results = RoomCounts(seats), Results(self._questions, seats)
        passed = max(self._counts.passed.values(), default=0)
        self._are_all_in |= expected > 0 and max(FEW, expected) <= self._counts.people
        self._are_all_in |= passed >= max(FEW, expected / 2)
        self._counted = self.store.version

    def _now(self) -> dict[str, Any]:
        now = datetime.now()
        return {"now": f"{now:%H:%M}", "planned": timetable.planned(self._plan, now)}

    def _drift(self) -> int | None:
        return timetable.drift(self._plan, self._counts.passed, self._counts.people, datetime.now())

    def _row(self, seat: Seat) -> dict[str, Any]:
        at, silent = _position(seat), _minutes_since(seat.heard)
        passed = [self._named(entry) for entry in _exercises(seat).values() if entry["verdict"] == PASSED]
        return {
            "seat": seat.name,
            "number": seat.id,
            "hand_at": f"{seat.hand['lab']} · {seat.hand['exercise']}" if seat.hand else "",
            "hand_up": _minutes_since(seat.hand["at"]) if seat.hand else None,
            "at": self._named(at) if at else "",
            "verdict": at["verdict"] if at else "",
            "hint": at["hint"] if at else 0,
            "passed": len(passed),
            "done": passed,
            "unchanged": _minutes_since(seat.changed),
            "silent": silent if silent >= SILENT_MIN else None,
            "lacks": _lacks(seat.state["doctor"] or []),
        }

    def _named(self, place: Mapping[str, Any]) -> str:
        """Return a place in words: lab, exercise and its title; exercise 0 means that the lab was opened."""
        lab, exercise = place["lab"], place["exercise"]
        return f"{lab} · {exercise} {self._titles.get((lab, exercise), '')}".rstrip() if exercise else f"{lab} · opened"


def _exercises(seat: Seat) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the exercises that a seat has attempted."""
    return {
        (entry["lab"], entry["exercise"]): entry
        for entry in seat.state["exercises"]
        if entry["verdict"] != NOT_ATTEMPTED
    }


def _position(seat: Seat) -> dict[str, Any] | None:
    """Return the exercise that a seat attempted last, or the lab it opened since; None if neither."""
    attempted, opened = _exercises(seat).values(), seat.state["opened"]
    last = max(attempted, key=lambda entry: (entry["minute"], entry["lab"], entry["exercise"]), default=None)
    if opened and (not last or (opened["minute"] >= last["minute"] and opened["lab"] != last["lab"])):
        return {"lab": opened["lab"], "exercise": 0, "verdict": "", "hint": 0}
    return last


def _minutes_since(moment: float) -> int:
    return max(0, int((time.time() - moment) / 60))


def _lacks(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Return the labs that a machine cannot run, according to its doctor, and why."""
    failed = [
        f"{verdict['lab']} ({', '.join(verdict['because'])})" for verdict in verdicts if verdict["status"] == "fail"
    ]
    return protocol.visible("; ".join(failed), LACKS_LETTERS)
