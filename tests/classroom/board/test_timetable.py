"""A room's timetable: current part, drift, sections to skip."""

from collections import Counter
from datetime import datetime, timedelta

import pytest

from labkit.exercises import catalogue
from labkit.exercises.catalogue import Section
from labkit_classroom.board import host, timetable
from labkit_classroom.board.results import questions_in_order
from labkit_classroom.board.timetable import Planned
from labkit_classroom.lecture.agenda import Day, Entry
from labkit_classroom.lecture.routes import Part

NINE = datetime(2026, 12, 1, 9)


def clock(minute: float, day: int = 0) -> datetime:
    return NINE + timedelta(days=day, minutes=minute)


def section(begin: float, minutes: float, lab: str, name: str, *exercises: int, day: int = 0, **more) -> Planned:
    begins, ends = clock(begin, day), clock(begin + minutes, day)
    return Planned(f"Lab {lab} · {name} Title", begins, ends, lab, name, exercises, minutes, **more)


def pause(begin: float, minutes: float, title: str = "Break") -> Planned:
    return Planned(title, clock(begin), clock(begin + minutes))


PLAN = (
    pause(0, 10, "Welcome"),
    section(10, 5, "02", "1"),
    section(15, 10, "02", "2", 1),
    section(25, 10, "02", "questions"),
    pause(35, 15),
    section(50, 10, "07", "1", 1, 2),
    section(60, 6, "07", "2", core=False),
    section(66, 8, "07", "3", core=False),
    section(74, 12, "07", "4", 3),
)


class TestPlanned:
    @pytest.mark.parametrize(
        ("minute", "title", "when"),
        [
            (-30, "Welcome", "from 09:00"),
            (0, "Welcome", "until 09:10, then Lab 02 · 1 Title"),
            (12, "Lab 02 · 1 Title", "until 09:15, then Lab 02 · 2 Title"),
            (30, "Lab 02 · questions Title", "until 09:35, then Break"),
            (80, "Lab 07 · 4 Title", "until 10:26"),
        ],
    )
    def test_the_current_part_its_end_and_the_next_part(self, minute, title, when):
        assert timetable.planned(PLAN, clock(minute)) == {"title": title, "when": when}

    def test_nothing_is_planned_after_the_day(self):
        assert timetable.planned(PLAN, clock(90)) is None
        assert timetable.planned((), NINE) is None

    def test_the_night_is_not_a_break(self):
        plan = (section(0, 10, "02", "1"), section(0, 10, "07", "1", day=1))
        assert timetable.planned(plan, clock(5))["when"] == "until 09:10"
        assert timetable.planned(plan, clock(60)) == {"title": "Lab 07 · 1 Title", "when": "from 09:00"}

    def test_a_timetable_survives_storage(self):
        assert timetable.read(timetable.write(PLAN)) == PLAN

    def test_agenda_sections_are_named_and_labs_may_contain_breaks(self):
        first, second = Section("1", read=5, heading="1 · Run `it`"), Section("2", do=3, core=False, heading="2 · Try")
        lab, rest = Part("00 · Welcome", "00"), Part("Break", minutes=15, is_break=True)
        entries = (
            Entry(clock(0), clock(5), lab, ((clock(0), first),)),
            Entry(clock(5), clock(20), rest),
            Entry(clock(20), clock(30), lab, ((clock(20), second),)),
        )
        planned = host.plan_of([Day(entries, clock(60))])
        assert [(part.title, part.exercises, part.end) for part in planned] == [
            ("Lab 00 · 1 Run it", (), clock(5)),
            ("Break", (), clock(20)),
            ("Lab 00 · 2 Try", (1,), clock(30)),
        ]
        assert (planned[2].minutes, planned[2].core) == (3, False)

    def test_questions_are_in_timetable_order(self):
        plan = [section(0, 1, "06", "1"), section(1, 1, "02", "1")]
        order = [question.lab for question in questions_in_order(catalogue.labs(), plan)]
        assert list(dict.fromkeys(order))[-2:] == ["06", "02"]


class TestMakeUp:
    def test_a_room_that_is_not_late_skips_nothing(self):
        for late in (None, -9, 0, timetable.LATE_MIN - 1):
            assert timetable.make_up(PLAN, late, clock(40)) == ""

    def test_the_next_optional_sections_today_make_up_for_a_delay(self):
        tomorrow = (*PLAN, section(0, 30, "09", "1", day=1, core=False))
        both = "Skip next: Lab 07 · 2 Title (6 min), Lab 07 · 3 Title (8 min)"
        assert timetable.make_up(tomorrow, 6, clock(40)) == "6 minutes late. Skip next: Lab 07 · 2 Title (6 min)"
        assert timetable.make_up(tomorrow, 7, clock(40)) == f"7 minutes late. {both}"
        assert timetable.make_up(tomorrow, 40, clock(40)) == f"40 minutes late. {both}"
        assert timetable.make_up(tomorrow, 6, clock(70)).endswith("Skip next: Lab 07 · 3 Title (8 min)"), "still ahead"
        assert "no optional section is left today" in timetable.make_up(tomorrow, 5, clock(75))

    def test_drift_follows_from_exercises_that_half_have_passed(self):
        passed = Counter({("02", 1): 3})
        assert timetable.drift(PLAN, passed, 6, clock(20)) == -5
        assert timetable.drift(PLAN, passed, 6, clock(75)) == 15
        assert timetable.drift(PLAN, passed, 7, clock(35)) == 10
        assert timetable.drift((), passed, 6, clock(75)) is None

    def test_evening_and_night_cause_no_delay(self):
        passed = Counter({("02", 1): 6})
        assert timetable.drift(PLAN, passed, 6, clock(85)) == 25
        assert timetable.drift(PLAN, passed, 6, clock(86)) is timetable.drift(PLAN, passed, 6, clock(600)) is None
        two_days = (*PLAN, section(0, 30, "09", "1", 1, day=1), section(30, 30, "09", "2", 2, day=1))
        assert [timetable.drift(two_days, passed, 6, now) for now in (clock(600), clock(0, 1))] == [26, 26]
        ahead = Counter({("02", 1): 6, ("07", 1): 6, ("07", 2): 6, ("07", 3): 6, ("09", 1): 6})
        assert timetable.drift(two_days, ahead, 6, clock(80)) == -36
