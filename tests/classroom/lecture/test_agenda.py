"""Timetables add up, use measured waiting times, and report overruns; every route fits into its day."""

import re
from datetime import date, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_command import run_lab

from labkit.exercises import catalogue
from labkit.exercises.catalogue import Section
from labkit_classroom.lecture import agenda, routes
from labkit_classroom.lecture.routes import CLOSING, WELCOME, Part, Route

SLACK_MIN = 10  # spare time on each day of a route
FIRST = date(2026, 12, 1)
ROUNDED = timedelta(seconds=3)  # tolerance for the end of a lab's sections, from rounding


def route(*parts: Part, hours: float = 1.0) -> Route:
    return Route("Some labs", "", "", hours, ((WELCOME, *parts),))


def lab(number: str, *sections: Section) -> Part:
    return Part(f"{number} · Title", number, sections)


SHORT = lab("00", Section("1", read=10, do=5, wait=1), Section("2", read=3))
LONG = lab("07", Section("1", read=20), Section("2", read=12, core=False), Section("3", do=4, core=False))
TALK = Part("A talk", minutes=15)


def days(*parts: Part, hours: float = 1.0, waits: agenda.Waits | None = None, start: int = 9) -> list[agenda.Day]:
    return agenda.schedule(route(*parts, hours=hours), time(start), FIRST, waits or {})


def stretches(day: agenda.Day) -> list[list[agenda.Entry]]:
    """Return the entries between breaks."""
    stretches: list[list[agenda.Entry]] = [[]]
    for entry in day.entries:
        if entry.part.is_break:
            stretches.append([])
        else:
            stretches[-1].append(entry)
    return stretches


def work_of(parts) -> list[tuple[str, str]]:
    """Return the labs' sections and the talks among a day's parts, in order."""
    return [
        (part.lab, section.name if section else part.title)
        for part in parts
        if not part.is_break
        for section in part.sections or (None,)
    ]


def lunches(day: agenda.Day) -> list[agenda.Entry]:
    return [entry for entry in day.entries if entry.part.title == "Lunch"]


@pytest.mark.parametrize("name", routes.names())
def test_every_route_fits_with_time_to_spare_and_breaks_every_90_minutes(name):
    for day in agenda.schedule(routes.find(name), time(9), FIRST, {}):
        assert not day.over_minutes
        assert day.end - day.entries[-1].end >= timedelta(minutes=SLACK_MIN)
        assert all(stretch[-1].end - stretch[0].begin <= timedelta(minutes=90) for stretch in stretches(day))
        assert len(lunches(day)) == (day.end - day.entries[0].begin >= timedelta(hours=6))
        assert all(time(11, 45) <= lunch.begin.time() <= time(13, 30) for lunch in lunches(day))


TIMES = st.floats(0, 25).map(lambda minutes: round(minutes, 2))
SECTIONS = st.builds(Section, st.integers(1, 99).map(str), read=TIMES, wait=st.floats(0, 4), core=st.booleans())
LABS = st.builds(
    lambda number, sections: lab(number, *sections),
    st.integers(0, 99).map("{:02}".format),
    st.lists(SECTIONS, min_size=1, max_size=8),
)
TALKS = st.floats(0, 60).map(lambda minutes: Part("A talk", minutes=minutes))


@settings(max_examples=200)
@given(st.lists(LABS | TALKS, min_size=1, max_size=9), st.floats(0.5, 10), st.times(), st.floats(1, 40))
def test_breaks_preserve_all_parts_and_their_order(parts, hours, begin, rounds):
    (day,) = agenda.schedule(route(*parts, hours=hours), begin, FIRST, {}, rounds)
    assert work_of(entry.part for entry in day.entries) == work_of([WELCOME, *parts])
    assert not day.entries[0].part.is_break
    assert not day.entries[-1].part.is_break
    for entry, following in pairwise(day.entries):
        assert entry.end == following.begin
        assert not (entry.part.is_break and following.part.is_break)
    for entry in day.entries:
        assert all(entry.begin <= at <= entry.end + ROUNDED for at, _ in entry.sections)
    for stretch in stretches(day):
        alone = len(stretch) == 1 and len(stretch[0].sections) <= 1  # a section that is too long, or a talk
        assert alone or stretch[-1].end - stretch[0].begin <= timedelta(minutes=90)
    assert len(lunches(day)) <= 1
    assert agenda.advice([day]) or not day.over_minutes


def test_breaks_are_preferably_between_labs():
    labs = [lab(number, *(Section(str(i), read=10) for i in range(1, 8))) for number in ("01", "02")]
    (day,) = days(*labs, hours=3)
    assert [entry.part.title for entry in day.entries[1:]] == ["01 · Title", "Break", "02 · Title"]


def test_a_long_lab_is_split_between_sections():
    long = lab("01", *(Section(str(i), read=20) for i in range(1, 7)))
    (day,) = days(long, TALK, hours=3)
    first, pause, second, talk = day.entries[1:]
    assert (first.part.title, pause.part.title, second.part.title) == ("01 · Title", "Break", "01 · Title, continued")
    assert first.part.sections + second.part.sections == long.sections
    assert talk.part == TALK


def test_the_welcome_is_on_the_first_day_only_and_optional_sections_are_taught_in_full_labs():
    first, second = agenda.schedule(routes.find("two-days"), time(9), FIRST, {})
    assert first.entries[0].part == WELCOME
    assert second.entries[0].part.lab == "06"
    assert second.entries[0].begin.date() == FIRST + timedelta(days=1)
    in_full = [section for entry in second.entries if entry.part.lab == "08" for section in entry.part.sections]
    assert in_full == [*catalogue.find("08").sections]
    assert {entry.part.title for entry in (first.entries[-1], second.entries[-1])} == {CLOSING.title}


def test_a_route_names_the_labs_that_it_leaves_out():
    assert routes.find("two-days").left_out == "labs 05, 10, and optional sections, except those of 08"
    pytorch = routes.find("pytorch-first")
    assert pytorch.left_out == "labs 01, 02, 04, 05, 06, 08, 09, 10, and optional sections, except 07 · 7"
    (part,) = (part for part in pytorch.days[0] if part.lab == "07")
    assert [section.name[0] for section in part.sections if not section.core] == ["7"]


def test_parts_are_contiguous_and_end_at_multiples_of_five_minutes():
    (day,) = days(SHORT, LONG, hours=2)
    times = [(f"{entry.begin:%H:%M}", f"{entry.end:%H:%M}") for entry in day.entries]
    assert times == [("09:00", "09:10"), ("09:10", "09:30"), ("09:30", "10:10")]
    assert [f"{begin:%H:%M}" for begin, _ in day.entries[1].sections] == ["09:10", "09:26"]
    assert day.timetable[:-1] == day.entries
    assert (day.timetable[-1].part.title, day.timetable[-1].minutes) == (agenda.RESERVE, 50)
    (late,) = days(SHORT, hours=0.5)
    assert late.timetable == late.entries


def test_measured_waiting_replaces_the_plan():
    (day,) = days(SHORT, waits={"00": {"1": 11.0, "2": 0.0}})
    assert f"{day.entries[1].end:%H:%M}" == "09:40"
    assert day.entries[1].sections[0][1].wait == 11


def test_a_day_that_runs_over_is_reported():
    (sentence,) = agenda.advice(days(SHORT, LONG, hours=0.92))
    assert sentence.startswith("Day 1 runs over by 15 minutes, to 10:10: leave out a lab")
    assert agenda.advice(days(SHORT, LONG, hours=1.2)) == []


def test_the_origin_of_waiting_times_is_reported():
    both = route(SHORT, LONG)
    assert agenda.basis(both, {"00": {}, "07": {}}) == "All waiting times were measured on this machine."
    assert agenda.basis(both, {"00": {}}).startswith("Waiting times in labs 07 are estimates")


def test_waiting_is_longer_on_a_shared_server(capsys):
    (day,) = agenda.schedule(route(SHORT), time(9), FIRST, {}, rounds=10)
    assert day.entries[1].sections[0][1].wait == 10
    assert run_lab("agenda", "--labs", "00", "--people", "40", "--slots", "4") == 0
    assert "40 people measure on 4 slots: all waiting takes 10× as long." in capsys.readouterr().out
    assert run_lab("agenda", "--labs", "00", "--people", "3", "--slots", "4") == 0
    assert "takes 1× as long" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "name a route, --route half|day|two-days|language-models|pytorch-first"),
        (["--route", "day", "--labs", "00"], "name a route"),
        (["--route", "week"], "the routes are half, day, two-days, language-models, pytorch-first"),
        (["--labs", "00,77"], "there is no lab '77'"),
        (["--labs", ""], "there is no lab ''"),
        (["--route", "day", "--start", "9 Uhr"], "9:00 or 13:30"),
        (["--route", "day", "--start", "25:00"], "9:00 or 13:30"),
    ],
)
def test_invalid_input_gives_a_one_line_error(arguments, part, capsys):
    assert run_lab("agenda", *arguments) == 2
    message = capsys.readouterr().err
    assert part in message
    assert message.count("\n") == 1


def test_an_agenda_is_written_as_markdown(tmp_path):
    assert run_lab("agenda", "--route", "day", "--out", str(tmp_path / "day.md")) == 0
    text = (tmp_path / "day.md").read_text()
    assert "## Day 1, 09:00 to 17:00" in text
    assert "| 09:00–09:10 | **Welcome: " in text
    assert re.search(r"\| 09:\d\d \| 3 · NumPy, on one thread and on all cores \| \d+ \|", text)
    assert "**Lunch**" in text
    assert agenda.RESERVE in text
