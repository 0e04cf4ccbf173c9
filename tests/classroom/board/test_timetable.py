"""A room's timetable: what is planned, what makes up time, and the minutes that were taken, beside the planned ones."""

import re
from collections import Counter
from datetime import datetime, timedelta

import pytest
from room_board import EMPTY, at

from labkit.exercises import sources
from labkit.exercises.minutes import Section
from labkit_classroom.board import host, taken, timetable
from labkit_classroom.board.store import Seat
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
    section(50, 10, "07", "1", 1, 2, do=6),
    section(60, 6, "07", "2", core=False),
    section(66, 8, "07", "3", core=False),
    section(74, 12, "07", "4", 3, do=9),
)


class TestPlanned:
    @pytest.mark.parametrize(
        ("minute", "title", "when"),
        [
            (-30, "Welcome", "from 09:00"),
            (0, "Welcome", "until 09:10, then Lab 02 · 1 Title"),
            (12, "Lab 02 · 1 Title", "until 09:15, then 2 Title"),
            (30, "Lab 02 · questions Title", "until 09:35, then break"),
            (80, "Lab 07 · 4 Title", "until 10:26"),
        ],
    )
    def test_what_is_on_until_when_and_what_follows(self, minute, title, when):
        assert timetable.planned(PLAN, clock(minute)) == {"title": title, "when": when}

    def test_after_the_day_there_is_nothing(self):
        assert timetable.planned(PLAN, clock(90)) is None
        assert timetable.planned((), NINE) is None

    def test_the_night_is_no_break(self):
        plan = (section(0, 10, "02", "1"), section(0, 10, "07", "1", day=1))
        assert timetable.planned(plan, clock(5))["when"] == "until 09:10"
        assert timetable.planned(plan, clock(60)) == {"title": "Lab 07 · 1 Title", "when": "from 09:00"}

    def test_what_is_kept_is_what_it_was(self):
        assert timetable.read(timetable.write(PLAN)) == PLAN

    def test_of_an_agenda_each_section_has_its_name_and_a_lab_may_have_a_break(self):
        first, second = Section("1", read=5), Section("2", read=4, do=3, core=False)
        lab, rest = Part("00 · Welcome", "00"), Part("Break", minutes=15, is_break=True)
        entries = (
            Entry(clock(0), clock(5), lab, ((clock(0), first),)),
            Entry(clock(5), clock(20), rest),
            Entry(clock(20), clock(30), lab, ((clock(20), second),)),
        )
        planned = host.plan_of([Day(entries, clock(60))])
        names = dict(re.findall(r"^# ## (\d) · (.+)$", sources.find("00").read_text(), re.M))
        assert [(one.title, one.exercises, one.end) for one in planned] == [
            (f"Lab 00 · 1 {names['1']}", (), clock(5)),
            ("Break", (), clock(20)),
            (f"Lab 00 · 2 {names['2']}", (1,), clock(30)),
        ]
        assert (planned[2].minutes, planned[2].do, planned[2].core) == (7, 3, False)

    def test_questions_come_in_the_timetables_order(self):
        labs = [question.lab for question in host.asked([section(0, 1, "06", "1"), section(1, 1, "02", "1")])]
        assert list(dict.fromkeys(labs))[-2:] == ["06", "02"]


class TestMakeUp:
    def test_a_room_that_is_not_late_skips_nothing(self):
        for late in (None, -9, 0, timetable.LATE_MIN - 1):
            assert timetable.make_up(PLAN, late, clock(40)) == ""

    @pytest.mark.parametrize(
        ("late", "told"),
        [
            (6, "6 minutes late: skip lab 07, section 3 (8 min)"),
            (12, "12 minutes late: skip lab 07, section 3 (8 min) and lab 07, section 2 (6 min)"),
            (
                20,
                "20 minutes late: skip lab 07, section 3 (8 min) and lab 07, section 2 (6 min); "
                "do together on the projector the exercises of lab 07, section 4 (9 min)",
            ),
        ],
    )
    def test_optional_sections_go_first_the_longest_before_others(self, late, told):
        assert timetable.make_up(PLAN, late, clock(40)) == told

    def test_what_is_not_enough_says_so(self):
        assert timetable.make_up(PLAN, 60, clock(40)).endswith(": that makes up 29")

    def test_what_has_begun_or_is_on_another_day_makes_up_nothing(self):
        tomorrow = (*PLAN, section(0, 30, "09", "1", day=1, core=False))
        assert timetable.make_up(tomorrow, 20, clock(70)) == (
            "20 minutes late: do together on the projector the exercises of lab 07, section 4 (9 min): that makes up 9"
        )
        assert "nothing is left today" in timetable.make_up(tomorrow, 20, clock(80))

    def test_drift_is_known_from_what_half_have_passed(self):
        passed = Counter({("02", 1): 3})
        assert timetable.drift(PLAN, passed, 6, clock(20)) == -5
        assert timetable.drift(PLAN, passed, 6, clock(75)) == 15
        assert timetable.drift(PLAN, passed, 7, clock(35)) == 10
        assert timetable.drift((), passed, 6, clock(75)) is None


def seats(count: int, **minutes: float | None) -> list[Seat]:
    """Return seats that have passed exercises at these minutes: `e02_1=25` by all, each a minute after the one before.

    The minutes are such that half of the seats have passed the exercise then.
    """
    made = []
    for number in range(count):
        exercises = []
        for key, minute in minutes.items():
            if minute is not None:
                lab, exercise = key[1:].split("_")
                when = clock(minute + number - (count + 1) // 2 + 1).isoformat(timespec="minutes")
                exercises.append(at(int(exercise), minute=when) | {"lab": lab})
        made.append(Seat(number, f"S{number}", 0, 0, 0, None, False, EMPTY | {"exercises": exercises}))
    return made


class TestTaken:
    def test_minutes_are_beside_the_planned_ones_without_breaks(self):
        assert taken.minutes(PLAN, seats(10, e02_1=31, e07_1=60, e07_2=70, e07_3=100)) == [
            {"lab": "02", "sections": ["1", "2"], "planned": 15, "taken": 21},  # of 31, the welcome took 10
            {"lab": "07", "sections": ["1"], "planned": 10, "taken": 14},  # of 39, questions and break took 25
            {"lab": "07", "sections": ["2", "3", "4"], "planned": 26, "taken": 30},
        ]

    def test_of_fewer_than_five_nothing_is_told(self):
        assert taken.minutes(PLAN, seats(4, e02_1=31)) == []
        assert taken.minutes(PLAN, []) == []
        some = seats(4, e02_1=31) + seats(2)
        assert taken.minutes(PLAN, some) == [], "four of six are half, and few"

    def test_what_less_than_half_have_passed_has_no_end_and_what_follows_no_beginning(self):
        some = seats(5, e02_1=31, e07_1=60, e07_2=70, e07_3=100) + seats(6, e07_1=60, e07_2=70, e07_3=100)
        assert [(one["lab"], one["sections"]) for one in taken.minutes(PLAN, some)] == [("07", ["2", "3", "4"])]

    def test_what_nobody_did_is_passed_over(self):
        found = taken.minutes(PLAN, seats(10, e07_1=60, e07_2=70, e07_3=100))
        assert found[0] == {"lab": "07", "sections": ["1"], "planned": 10, "taken": 70 - 10 - 10 - 15}
        assert len(found) == 2

    def test_of_another_order_only_what_is_known_is_told(self):
        plan = (*PLAN, section(90, 10, "09", "1", 1), section(100, 10, "09", "2", 2))
        found = taken.minutes(plan, seats(10, e02_1=25, e09_1=40, e07_1=60, e07_2=70, e07_3=100, e09_2=115))
        assert [(one["lab"], one["sections"]) for one in found] == [("02", ["1", "2"]), ("07", ["2", "3", "4"])]
        assert all(one["taken"] > 0 for one in found)

    def test_the_second_day_begins_in_the_morning_and_another_days_end_counts_nowhere(self):
        plan = (section(0, 10, "02", "1", 1), section(10, 10, "02", "2", 2), section(0, 10, "07", "1", 1, day=1))
        night = 24 * 60
        found = taken.minutes(plan, seats(10, e02_1=12, e02_2=night + 5, e07_1=night + 30))
        assert found == [
            {"lab": "02", "sections": ["1"], "planned": 10, "taken": 12},
            {"lab": "07", "sections": ["1"], "planned": 10, "taken": 30},
        ]

    def test_minutes_that_are_none_are_left_out(self):
        odd = seats(10, e02_1=31)
        for seat in odd[:9]:
            seat.state["exercises"][0]["minute"] = "2026-99-99T99:99"
        assert taken.minutes(PLAN, odd) == []
