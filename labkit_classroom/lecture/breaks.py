"""Where a day's breaks go: at most 90 minutes of work apart, rather between labs than inside one, and lunch at noon.

All places are tried, and the cheapest are taken. A break costs its time, and what is undesirable costs as many minutes
as one would give to avoid it.
"""

import math
from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import NamedTuple

from labkit_classroom.lecture.routes import Part

LIMIT_MIN = 90  # minutes of work between two breaks, at most
BREAK = Part("Break", minutes=15, is_break=True)
LUNCH = Part("Lunch", minutes=60, is_break=True)
NOON = time(11, 45), time(13, 30)  # a day that is at work then has lunch, if it is long
LONG_H = 6  # hours of a long day
LUNCH_AT = time(12, 30)
LUNCH_OFF = 10  # the cost of lunch half an hour earlier or later than that; of an hour, four times as much
INSIDE_LAB = 20  # the cost of a break inside a lab
SHORT_MIN = 60  # minutes of work before the next break or the day's end; what is missing is a cost
UNEVEN = 10  # the cost of work for as long as the limit; of half of it, a quarter: equal parts are cheapest
STEP_MIN = 5  # clock times are whole fives


class Work(NamedTuple):
    """A lab's section, or a talk: nothing interrupts it. It has the index of its part of the day, and its minutes."""

    part: int
    minutes: float


class _Plan(NamedTuple):
    """A way to work up to some place: what it costs, when it is there, and its breaks by the work that they precede."""

    cost: float
    at: datetime
    breaks: dict[int, Part]


def place(work: Sequence[Work], begin: datetime, hours: float) -> dict[int, Part]:
    """Return the breaks of a day, each by the index of the work that it precedes.

    Parameters
    ----------
    work : sequence of Work
        The day's work, in its order. Only what is longer than the limit on its own takes longer than that.
    begin : datetime
        When the day begins.
    hours : float
        How long it is meant to be.
    """
    plan = _cheapest(work, begin, with_lunch=False)
    takes = max(timedelta(hours=hours), plan.at - begin)
    noon, after = (datetime.combine(begin, moment) for moment in NOON)
    if takes >= timedelta(hours=LONG_H) and begin <= noon and plan.at >= after:
        plan = _cheapest(work, begin, with_lunch=True)
    return plan.breaks


def lasts(work: Sequence[Work]) -> int:
    """Return the minutes that work takes on the clock: each part ends at the next five."""
    return sum(
        STEP_MIN * math.ceil(round(sum(one.minutes for one in work if one.part == part) / STEP_MIN, 2))
        for part in sorted({one.part for one in work})
    )


def _cheapest(work: Sequence[Work], begin: datetime, with_lunch: bool) -> _Plan:
    """Return the cheapest way through a day; with lunch, if there is a place for it."""
    plans = {(0, not with_lunch): _Plan(0, begin, {})}  # by how much is done, and whether lunch has been
    for done in range(len(work)):
        for fed in (False, True):
            if (done, fed) not in plans:
                continue
            before = plans[done, fed]
            for until in range(done + 1, len(work) + 1):
                minutes = lasts(work[done:until])
                if minutes > LIMIT_MIN and until > done + 1:
                    break
                cost = before.cost + max(0, SHORT_MIN - minutes) + UNEVEN * (minutes / LIMIT_MIN) ** 2
                at = before.at + timedelta(minutes=minutes)
                if until == len(work):
                    _keep(plans, (until, fed), _Plan(cost, at, before.breaks))
                    continue
                cost += INSIDE_LAB * (work[until].part == work[until - 1].part)
                stops = [(BREAK, fed, BREAK.minutes)]
                if not fed:
                    half_hours = (at - datetime.combine(begin, LUNCH_AT)).total_seconds() / 1800
                    stops.append((LUNCH, True, LUNCH_OFF * half_hours**2))
                for stop, fed_then, extra in stops:
                    there = at + timedelta(minutes=stop.minutes)
                    _keep(plans, (until, fed_then), _Plan(cost + extra, there, {**before.breaks, until: stop}))
    return plans.get((len(work), True)) or plans[len(work), False]


def _keep(plans: dict[tuple[int, bool], _Plan], place: tuple[int, bool], plan: _Plan) -> None:
    """Keep a plan where there is no cheaper one for the same place."""
    if place not in plans or plan.cost < plans[place].cost:
        plans[place] = plan
