"""The minutes that a room has taken, beside the planned ones, from the minutes at which exercises were passed."""

import itertools
import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from labkit.display.results import PASSED
from labkit.report.page import FEW
from labkit_classroom.board.store import Seat
from labkit_classroom.board.timetable import Plan, Planned


class _Span(NamedTuple):
    """Sections of a lab that follow one another, of which the last alone has exercises, and what is told of them."""

    sections: tuple[Planned, ...]
    first: int  # its place in the plan
    end: datetime | None  # when half of the seats had passed its exercises
    is_skipped: bool  # whether fewer than `FEW` have

    @property
    def minutes(self) -> float:
        return sum(section.minutes for section in self.sections)

    @property
    def after(self) -> int:
        """The place in the plan behind it."""
        return self.first + len(self.sections)


def minutes(plan: Plan, seats: Iterable[Seat]) -> list[dict[str, Any]]:
    """Return planned and taken minutes of each span of sections of which that is known.

    A span ends when half of the seats, and `FEW` at least, have passed all its exercises, by the minutes that the seats
    have sent. It begins with the end of the span planned before it on that day, or with the day; talks, breaks and
    sections without exercises in between are taken off, as planned. Nothing is said of a span that was done on another
    day or in another order than planned, nor of one after which it is unknown when the span before was over.
    """
    passed = [_passed(seat) for seat in seats]
    days = itertools.groupby(enumerate(plan), key=lambda item: item[1].begin.date())
    return [told for _, day in days for told in _day(plan, [place for place, _ in day], passed)]


_Passed = dict[tuple[str, int], datetime]  # when a seat has passed its exercises


def _passed(seat: Seat) -> _Passed:
    found = {}
    for entry in seat.state["exercises"]:
        if entry["verdict"] == PASSED and (minute := _minute(entry["minute"])):
            found[entry["lab"], entry["exercise"]] = minute
    return found


def _minute(text: str) -> datetime | None:
    """Return a minute as a seat has sent it; None when there is none such."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _day(plan: Plan, places: Sequence[int], passed: Sequence[_Passed]) -> list[dict[str, Any]]:
    """Return what is known of one day's spans."""
    every = list(_spans(plan, places, passed))
    in_spans = {place for span in every for place in range(span.first, span.after)}
    spans = [span for span in every if not span.is_skipped]
    ends = [span.end for span in spans if span.end]
    found = []
    for before, span in zip([None, *spans], spans, strict=False):
        begin, between = (before.end, before.after) if before else (plan[places[0]].begin, places[0])
        if not begin or not span.end or any(begin < end < span.end for end in ends):
            continue
        others = sum(_planned(plan[place]) for place in range(between, span.first) if place not in in_spans)
        taken = (span.end - begin) / timedelta(minutes=1) - others
        if taken > 0:
            sections = [section.section for section in span.sections]
            told = {"lab": span.sections[0].lab, "sections": sections}
            found.append(told | {"planned": round(span.minutes, 1), "taken": round(taken, 1)})
    return found


def _planned(one: Planned) -> float:
    """Return the minutes of a part of a plan."""
    return one.minutes or (one.end - one.begin) / timedelta(minutes=1)


def _spans(plan: Plan, places: Sequence[int], passed: Sequence[_Passed]) -> Iterable[_Span]:
    sections: list[Planned] = []
    for place in places:
        if sections and plan[place].lab != sections[0].lab:
            sections = []
        if plan[place].lab:
            sections.append(plan[place])
        if plan[place].exercises:
            yield _span(tuple(sections), place + 1 - len(sections), passed)
            sections = []


def _span(sections: tuple[Planned, ...], first: int, passed: Sequence[_Passed]) -> _Span:
    wanted = [(sections[-1].lab, number) for number in sections[-1].exercises]
    done = sorted(max(one[place] for place in wanted) for one in passed if all(place in one for place in wanted))
    half = max(math.ceil(len(passed) / 2), FEW)
    end = done[math.ceil(len(passed) / 2) - 1] if len(done) >= half else None
    is_today = end is not None and end.date() == sections[-1].begin.date()
    return _Span(sections, first, end if is_today else None, len(done) < FEW)
