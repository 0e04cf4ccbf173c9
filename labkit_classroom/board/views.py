"""What the pages show: counts for the wall, seats for the instructor, figures without seats for both.

A message changes here what it is about, and nothing else: what it costs does not grow with what others have sent.
"""

import bisect
import json
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, NamedTuple

from labkit.display.results import NOT_ATTEMPTED, NOT_YET, PASSED
from labkit.report.page import FEW
from labkit_classroom.board import protocol, timetable
from labkit_classroom.board.guesses import Guesses
from labkit_classroom.board.questions import Question
from labkit_classroom.board.store import Seat

SILENT_MIN = 3  # minutes of silence from which on they are shown
BECAUSE_LETTERS = 120  # letters of what a machine lacks, as the instructor's page shows it


class Lab(NamedTuple):
    """A lab: number, title, the titles of its exercises."""

    number: str
    title: str
    exercises: tuple[str, ...]


class Joining(NamedTuple):
    """How to join: the board's address, and the command that students type, but for the code.

    `takes_code` says whether the code stands behind the command; on a hub, a student's server knows it.
    """

    address: str
    command: str
    takes_code: bool = True


class Tally:
    """Counts over the seats, and a row for each, brought up to date with each change of a seat.

    Attributes
    ----------
    people : int
        How many seats there are.
    passed : Counter
        How many have passed an exercise, by lab and exercise.
    begun : Counter
        How many have tried something of a lab.
    rows : dict
        What the instructor's page shows of each seat, but for the times, by the seat's number.
    machines : dict
        Of each seat whose machine is known, by lab, what the machine lacks; None where it can run the lab.
    guesses : Guesses
        What the room has guessed.
    """

    def __init__(self, seats: Iterable[Seat] = (), questions: Sequence[Question] = ()) -> None:
        self.people = 0
        self.passed: Counter[tuple[str, int]] = Counter()
        self.begun: Counter[str] = Counter()
        self.rows: dict[int, dict[str, Any]] = {}
        self.machines: dict[int, dict[str, str | None]] = {}
        self.guesses = Guesses(questions)
        self._hints: defaultdict[tuple[str, int], Counter[int]] = defaultdict(Counter)  # shown, where it is not yet
        for seat in seats:
            self.replace(None, seat)

    def replace(self, before: Seat | None, after: Seat | None) -> None:
        """Count a seat as it is now in place of what it was; None before it came, and after it left."""
        for seat, sign in ((before, -1), (after, 1)):
            if not seat:
                continue
            self.people += sign
            exercises = {(entry["lab"], entry["exercise"]): entry for entry in seat.state["exercises"]}  # each once
            tried = [entry for entry in exercises.values() if entry["verdict"] != NOT_ATTEMPTED]
            _add(self.begun, {entry["lab"] for entry in tried}, sign)
            _add(self.passed, (place for place, entry in exercises.items() if entry["verdict"] == PASSED), sign)
            for place, entry in exercises.items():
                if entry["verdict"] == NOT_YET:
                    _add(self._hints[place], [entry["hint"]], sign)
                    if not self._hints[place]:
                        del self._hints[place]
        changed = after or before
        if changed:
            guesses = [seat.state["guesses"] if seat else [] for seat in (before, after)]
            self.guesses.replace(changed.id, *guesses)
        if before:
            del self.rows[before.id]
            self.machines.pop(before.id, None)
        if after:
            self.rows[after.id] = _row(after)
            if after.state["doctor"] is not None:
                self.machines[after.id] = {entry["lab"][:2]: _lacks(entry) for entry in after.state["doctor"]}

    def stuck(self) -> list[dict[str, Any]]:
        """Return the exercises that most seats fail, with the hint that half of them have seen."""
        worst = sorted(self._hints.items(), key=lambda item: (-item[1].total(), item[0]))[:5]
        return [
            {
                "lab": lab,
                "exercise": number,
                "seats": seen.total(),
                "hint": round(statistics.median(seen.elements())),
            }
            for (lab, number), seen in worst
        ]


def _add(counts: Counter[Any], keys: Iterable[Any], sign: int) -> None:
    for key in keys:
        counts[key] += sign
        if not counts[key]:
            del counts[key]


class Figures:
    """The closing figures of all machines: those of a name and a unit are shown once `FEW` machines have sent them.

    Attributes
    ----------
    size : int
        Letters of the JSON of all of them.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.size = 0
        self._labs: dict[str, list[_Machine]] = {}
        self._few: dict[_Kind, list[_Machine]] = {}  # who has sent what is not shown yet
        self._shown: set[_Kind] = set()
        self._text: bytes | None = b"{}"

    def replace(self, lab: str, message: Mapping[str, Any] | None) -> None:
        """Add a machine's closing figures of a lab; None in place of them: forget those of all labs."""
        if message is None:
            self._forget()
            return
        self.size += len(json.dumps(message))
        machine = _Machine(message, {(lab, figure["name"], figure["unit"]): figure for figure in message["figures"]})
        changed = {machine}
        for kind in machine.figures.keys() - self._shown:
            waiting = self._few.setdefault(kind, [])
            waiting.append(machine)
            if len(waiting) == FEW:
                changed.update(self._few.pop(kind))
                self._shown.add(kind)
        for other in changed:
            other.show(self._shown)
        bisect.insort(self._labs.setdefault(lab, []), machine, key=lambda machine: machine.place)
        self._text = None

    def shown(self) -> dict[str, list[dict[str, Any]]]:
        """Return the figures that are shown: by lab, for each machine its cores, instruction sets and figures."""
        labs: dict[str, list[dict[str, Any]]] = json.loads(self.text())
        return labs

    def text(self) -> bytes:
        """Return the figures that are shown as JSON; the same object as long as nothing is added."""
        if self._text is None:
            labs = []
            for lab, machines in sorted(self._labs.items()):
                if texts := [machine.text for machine in machines if machine.text]:
                    labs.append(json.dumps(lab).encode() + b": [" + b", ".join(texts) + b"]")
            self._text = b"{" + b", ".join(labs) + b"}"
        return self._text


_Kind = tuple[str, str, str]  # of a figure: lab, name, unit


class _Machine:
    """A machine's closing figures of a lab, and the JSON of those that are shown."""

    def __init__(self, message: Mapping[str, Any], figures: dict[_Kind, dict[str, Any]]) -> None:
        self.figures, self.text = figures, b""
        self.place = random.random()  # among the others: in no order of their coming
        self._about = {"cores": message["cores"], "isa": message["isa"]}

    def show(self, kinds: Set[_Kind]) -> None:
        """Show the figures of these kinds."""
        shown = [figure for kind, figure in self.figures.items() if kind in kinds]
        self.text = json.dumps(self._about | {"figures": shown}).encode() if shown else b""


def wall(tally: Tally, labs: Sequence[Lab], plan: timetable.Plan, now: datetime) -> dict[str, Any]:
    """Return the wall's content, for the projector: counts alone, and those from `FEW` people on."""
    few = tally.people < FEW
    shown = [
        {
            "lab": lab.number,
            "title": lab.title,
            "exercises": lab.exercises,
            "passed": [tally.passed[lab.number, number] for number in range(1, len(lab.exercises) + 1)],
        }
        for lab in labs
        if lab.number in tally.begun
    ]
    return {
        "people": None if few else tally.people,
        "few": FEW,
        "labs": [] if few else shown,
        "guess": tally.guesses.shown(),
        "now": f"{now:%H:%M}",
        "planned": timetable.planned(plan, now),
        "drift": None if few else timetable.drift(plan, tally.passed, tally.people, now),
    }


def are_all_in(tally: Tally, awaited: int) -> bool:
    """Whether as many people are in as are awaited, or half of those, and `FEW`, have passed an exercise.

    Who does not come is not waited for all day; and it may not be known how many are awaited: 0.
    """
    passed = max(tally.passed.values(), default=0)
    return (0 < awaited <= tally.people) or passed >= max(FEW, awaited / 2)


def instructor(
    tally: Tally, seats: Iterable[Seat], labs: Sequence[Lab], plan: timetable.Plan, now: datetime, moment: float
) -> dict[str, Any]:
    """Return the content of the instructor's page: seats, raised hands first, then those without a change for longest.

    Hands are in the order in which they came; who has done nothing yet comes last. `now` is the clock's time, and
    `moment` the board's, which is never set back.
    """
    titles = {(lab.number, place): title for lab in labs for place, title in enumerate(lab.exercises, 1)}
    rows = [tally.rows[seat.id] | _times(seat, moment) for seat in seats]
    rows.sort(key=lambda row: (row["hand"] is None, row["hand"] or 0, not row["at"], -row["unchanged"]))
    for row in rows:
        row |= {key: _named(row[key], titles) if row[key] else "" for key in ("at", "hand_at")}
    shown = wall(tally, labs, plan, now)
    return {
        "wall": shown,
        "people": tally.people,
        "seats": rows,
        "stuck": [one | {"title": titles.get((one["lab"], one["exercise"]), "")} for one in tally.stuck()],
        "make_up": timetable.make_up(plan, shown["drift"], now),
        "doctor": _doctor(tally, labs),
    }


def _named(place: tuple[str, int], titles: Mapping[tuple[str, int], str]) -> str:
    """Return a place by its lab, its exercise and that one's title; exercise 0 is a lab that was opened."""
    lab, exercise = place
    return f"{lab} · {exercise} {titles.get(place, '')}".rstrip() if exercise else f"{lab} · opened"


def _row(seat: Seat) -> dict[str, Any]:
    exercises = sorted(seat.state["exercises"], key=lambda entry: (entry["minute"], entry["lab"], entry["exercise"]))
    tried = [entry for entry in exercises if entry["verdict"] != NOT_ATTEMPTED]
    at, hand, opened = (tried or [None])[-1], seat.state["hand"], seat.state["opened"]
    if opened and (not at or (opened["minute"] >= at["minute"] and opened["lab"] != at["lab"])):
        at = {"lab": opened["lab"], "exercise": 0, "verdict": "", "hint": 0}
    return {
        "seat": seat.name,
        "number": seat.id,
        "hand": seat.hand,
        "hand_at": (hand["lab"], hand["exercise"]) if hand and seat.hand is not None else None,
        "at": (at["lab"], at["exercise"]) if at else None,
        "verdict": at["verdict"] if at else "",
        "hint": at["hint"] if at else 0,
        "passed": len({(entry["lab"], entry["exercise"]) for entry in exercises if entry["verdict"] == PASSED}),
    }


def _times(seat: Seat, moment: float) -> dict[str, Any]:
    silent = max(0, int((moment - seat.heard) / 60))
    return {
        "unchanged": max(0, int((moment - seat.changed) / 60)),
        "hand_up": None if seat.hand is None else max(0, int((moment - seat.hand) / 60)),
        "silent": silent if silent >= SILENT_MIN else None,
    }


def _lacks(verdict: dict[str, Any]) -> str | None:
    """Return the reason why a machine cannot run a lab; None when it can."""
    because = ", ".join(verdict["because"])[: 2 * BECAUSE_LETTERS]
    return protocol.visible(because, BECAUSE_LETTERS) if verdict["status"] == "fail" else None


def _doctor(tally: Tally, labs: Sequence[Lab]) -> dict[str, Any]:
    """Return the number of machines that can run each lab, and what the others lack."""
    shown = []
    for lab in labs:
        lacks = {number: of[lab.number] for number, of in tally.machines.items() if lab.number in of}
        cannot = [
            {"seat": tally.rows[number]["seat"], "because": because}
            for number, because in sorted(lacks.items())
            if because is not None
        ]
        if lacks:
            shown.append({"lab": lab.title, "can": len(lacks) - len(cannot), "cannot": cannot})
    return {"machines": len(tally.machines), "labs": shown}
