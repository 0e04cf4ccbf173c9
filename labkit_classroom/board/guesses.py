"""What a room has guessed and measured: a histogram of the question where the room is, and no seat."""

import bisect
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from labkit.display.measured import with_unit
from labkit.report.page import FEW
from labkit_classroom.board import bins
from labkit_classroom.board.questions import Question

Value = float | str
_Place = tuple[str, int]  # of a question: lab and number


class Guesses:
    """The guesses of all seats, brought up to date with each change of one.

    Parameters
    ----------
    questions : sequence of Question
        In the order in which the room comes to them.
    """

    def __init__(self, questions: Sequence[Question] = ()) -> None:
        self._questions = {(question.lab, question.number): question for question in questions}
        # Guess and figure of each seat, by question: None where it has not given, or not measured it.
        self._answers: dict[_Place, dict[int, tuple[Value | None, Value | None]]] = {}
        self._shown: dict[str, Any] | None = None
        self._is_new = False

    def replace(self, seat: int, before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> None:
        """Count a seat's guesses as they are now in place of what they were."""
        if before == after:
            return
        for guess in before:
            self._answers[guess["lab"], guess["number"]].pop(seat, None)
        for guess in after:
            answers = self._answers.setdefault((guess["lab"], guess["number"]), {})
            answers[seat] = guess["guess"], guess["here"]
        self._is_new = True

    def shown(self) -> dict[str, Any] | None:
        """Return the furthest question to which `FEW` have guessed an answer; None before.

        That is its lab and text, how many have guessed, and bars, each with a label, a count, and whether the room's
        figure is in it. `measured` says what the room's machines have measured, once half of those who have guessed
        have measured it, and `FEW` at least; it is empty before.
        """
        if self._is_new:
            given = [place for place in self._questions if len(self._guesses(place)) >= FEW]
            self._shown = self._show(given[-1]) if given else None
            self._is_new = False
        return self._shown

    def _guesses(self, place: _Place) -> list[Value]:
        return [guess for guess, _ in self._answers.get(place, {}).values() if guess is not None]

    def _show(self, place: _Place) -> dict[str, Any]:
        question, answers = self._questions[place], self._answers[place].values()
        guesses = self._guesses(place)
        compared = sum(guess is not None and here is not None for guess, here in answers)
        is_measured = compared >= FEW and 2 * compared >= len(guesses)
        figures = [here for _, here in answers if here is not None] if is_measured else []
        describe = _choices if question.choices else _numbers
        bars, told = describe(question, guesses, figures)
        measured = f"Measured on {len(figures)} machines: {told}" if figures else ""
        about = {"lab": question.lab, "question": question.text, "given": len(guesses)}
        return about | {"bars": bars, "measured": measured}


def _choices(question: Question, guesses: list[Any], figures: list[Any]) -> tuple[list[dict[str, Any]], str]:
    """Return a bar for each choice, and what was measured, the most frequent first."""
    guessed, measured = Counter(guesses), Counter(figures)
    most = max(measured.values(), default=0)
    bars = [_bar(choice, guessed[choice], bool(most) and measured[choice] == most) for choice in question.choices]
    return bars, ", ".join(f"{choice} {count}" for choice, count in measured.most_common())


def _numbers(question: Question, guesses: list[Any], figures: list[Any]) -> tuple[list[dict[str, Any]], str]:
    """Return a bar for each bin, of the open ones where something is in them, and median and range of the figures."""
    edges = bins.edges(guesses)
    middle = statistics.median(figures) if figures else math.nan

    def bin_of(value: float) -> int:
        return bisect.bisect(edges, value)

    def written(value: float) -> str:
        return with_unit(_number(value), question.unit)

    counts = Counter(map(bin_of, guesses))
    holds = bin_of(middle) if figures else -1
    labels = [
        f"< {written(edges[0])}",
        *(f"{_number(low)} to < {written(high)}" for low, high in itertools.pairwise(edges)),
        f"≥ {written(edges[-1])}",
    ]
    places = [place for place in range(len(labels)) if 0 < place < len(edges) or counts[place] or place == holds]
    bars = [_bar(labels[place], counts[place], place == holds) for place in places]
    told = f"median {written(middle)}, from {written(min(figures))} to {written(max(figures))}" if figures else ""
    return bars, told


def _bar(label: str, count: int, is_measured: bool) -> dict[str, Any]:
    return {"label": label, "count": count, "measured": is_measured}


def _number(value: float) -> str:
    """Return a number as it can be read from the last row: 3 digits."""
    if value and not 1e-3 <= abs(value) < 1e6:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{float(f'{value:.3g}'):,.10g}"
