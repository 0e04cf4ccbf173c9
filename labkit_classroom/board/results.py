"""A room's guesses and results per question, without seats: histogram, summary, points for the wall's plot."""

import bisect
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from labkit.exercises.catalogue import LabInfo, Question
from labkit.measure.figures import with_unit
from labkit_classroom.board.protocol import FEW
from labkit_classroom.board.store import Seat
from labkit_classroom.board.timetable import Plan

Value = float | str


def questions_in_order(labs: Sequence[LabInfo], plan: Plan) -> tuple[Question, ...]:
    """Return all questions in timetable order, after those of labs that are not in it."""
    planned = list(dict.fromkeys(part.lab for part in plan if part.lab))
    ordered = sorted(labs, key=lambda lab: planned.index(lab.number) if lab.number in planned else -1)
    return tuple(question for lab in ordered for question in lab.questions)


class Answer(NamedTuple):
    """One seat's answer to a question."""

    guess: Value | None
    here: Value | None  # its machine's result


class Results:
    """All seats' answers to questions, in the order in which the room reaches them."""

    def __init__(self, questions: Sequence[Question], seats: Iterable[Seat]) -> None:
        by_place = {(question.lab, question.number): question for question in questions}
        self._answers: dict[Question, list[Answer]] = {question: [] for question in questions}
        for seat in seats:
            guesses = {(sent["lab"], sent["number"]): sent for sent in seat.state["guesses"]}  # once per question
            for place, sent in guesses.items():
                if question := by_place.get(place):
                    guess, here = (_accepted(sent[key], question) for key in ("guess", "here"))
                    self._answers[question].append(Answer(guess, here))

    def measured(self) -> list[dict[str, Any]]:
        """Return the results that may be shown, by question.

        They need `FEW` machines, and half of those who guessed must have measured, so that nothing is given away.

        Returns
        -------
        list of dict
            `lab`, `number`, `question`, `unit`; `summary`, a text; `values` in ascending order, empty for choices;
            `pairs`, each guess with its result, in ascending order, for questions that ask for it.
        """
        return [
            {
                "lab": question.lab,
                "number": question.number,
                "question": question.text,
                "unit": question.unit,
                "summary": _summary(question, results),
                "values": [] if question.choices else sorted(results),
                "pairs": _pairs(answers) if question.pairs else [],
            }
            for question, answers in self._answers.items()
            if (results := _results(answers))
        ]

    def guess(self, held: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the guesses for the `held` question (lab and number); by default, the furthest one with `FEW` guesses.

        Returns
        -------
        dict
            `lab`, `number`, `question`; `given`, the number of guesses, 0 for fewer than `FEW`; `bars`, each with a
            `label`, a `count`, and whether the `measured` result is in it; `summary` of the results, empty until they
            may be shown. None if there is no such question.
        """
        for question, answers in reversed(self._answers.items()):
            guesses = [answer.guess for answer in answers if answer.guess is not None]
            guesses = guesses if len(guesses) >= FEW else []
            place = {"lab": question.lab, "number": question.number}
            if place == held if held else guesses:
                results = _results(answers)
                bars = _choice_bars if question.choices else _number_bars
                return place | {
                    "question": question.text,
                    "given": len(guesses),
                    "bars": bars(question, guesses, results) if guesses else [],
                    "summary": _summary(question, results) if results else "",
                }
        return None


def _accepted(value: Any, question: Question) -> Value | None:
    """Return a value if it answers the question: another version of the kit may ask a different one."""
    fits = value in question.choices if question.choices else isinstance(value, int | float)
    return value if fits else None


def _results(answers: Sequence[Answer]) -> list[Any]:
    """Return the results for a question; none until they may be shown."""
    results = [answer.here for answer in answers if answer.here is not None]
    guessed = [answer for answer in answers if answer.guess is not None]
    compared = sum(answer.here is not None for answer in guessed)
    return results if len(results) >= FEW and 2 * compared >= len(guessed) else []


def _summary(question: Question, results: Sequence[Any]) -> str:
    if question.choices:
        text = ", ".join(f"{choice} {count}" for choice, count in Counter(results).most_common())
    else:
        middle, low, high = (_number(value) for value in (statistics.median(results), min(results), max(results)))
        text = f"median {with_unit(middle, question.unit)} ({low} to {high})"
    return f"{text}, {len(results)} machines"


def _pairs(answers: Iterable[Answer]) -> list[tuple[Any, Any]]:
    """Return the guesses with their results; none if fewer than `FEW` people have both."""
    pairs = [(answer.guess, answer.here) for answer in answers if None not in (answer.guess, answer.here)]
    return sorted(pairs) if len(pairs) >= FEW else []


def _choice_bars(question: Question, guesses: Sequence[Any], results: Sequence[Any]) -> list[dict[str, Any]]:
    guessed, measured = Counter(guesses), Counter(results)
    highest = max(measured.values(), default=0)
    return [_bar(choice, guessed[choice], highest > 0 and measured[choice] == highest) for choice in question.choices]


def _number_bars(question: Question, guesses: Sequence[Any], results: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a bar per bin; open-ended bins only if they are not empty."""
    edges = bin_edges(guesses)
    counts = Counter(bisect.bisect(edges, guess) for guess in guesses)
    measured = bisect.bisect(edges, statistics.median(results)) if results else -1
    labels = [
        f"< {with_unit(_number(edges[0]), question.unit)}",
        *(f"{_number(low)} to < {with_unit(_number(high), question.unit)}" for low, high in itertools.pairwise(edges)),
        f"≥ {with_unit(_number(edges[-1]), question.unit)}",
    ]
    return [
        _bar(label, counts[place], place == measured)
        for place, label in enumerate(labels)
        if 0 < place < len(edges) or counts[place] or place == measured
    ]


def bin_edges(values: Sequence[float]) -> list[float]:
    """Return round, equally spaced bin edges for a histogram; a fifth of the values may lie beyond each end."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 5], ordered[-1 - len(ordered) // 5]
    size = max(abs(low), abs(high))
    span = high - low if high - low > 1e-6 * size else size
    rough = (span if span > 1e-12 else 1.0) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [
        float(f"{step * place:.12g}") for place in range(math.floor(low / step), math.floor(high / step + 1e-9) + 2)
    ]


def _bar(label: str, count: int, is_measured: bool) -> dict[str, Any]:
    return {"label": label, "count": count, "measured": is_measured}


def _number(value: float) -> str:
    """Return a number to three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
