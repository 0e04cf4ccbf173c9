"""A timetable adds up, holds what was measured, and says what to leave out; each route fits into its day."""

import json
import re
from datetime import date, time, timedelta
from itertools import pairwise

import icalendar
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labkit.exercises.minutes import Section

from labkit import cli
from labkit.system import lease
from labkit.system.errors import LabError
from labkit_classroom.lecture import agenda, agenda_view, pace, rehearsal, routes
from labkit_classroom.lecture.routes import Part, Route

SLACK_MIN = 10  # that each day of a route has left: no day goes as planned
FIRST = date(2026, 12, 1)
ROUNDED = timedelta(seconds=3)  # that a lab's sections may end behind its five minutes


def route(*parts: Part, hours: float = 1.0) -> Route:
    return Route("", "Some labs", "", "", hours, (parts,))


def lab(number: str, *sections: Section) -> Part:
    return Part(f"{number} · Title", number, sections)


SHORT = lab("00", Section("1", read=10, do=5, wait=1), Section("2", read=3))
LONG = lab("07", Section("1", read=20), Section("2", read=12, core=False), Section("3", do=4, core=False))
TALK = Part("A talk", minutes=15)


def days(*parts: Part, hours: float = 1.0, waits: agenda.Waits | None = None) -> list[agenda.Day]:
    return agenda.schedule(route(*parts, hours=hours), time(9), FIRST, waits or {})


@pytest.mark.parametrize("name", routes.names())
def test_each_route_fits_with_time_to_spare(name):
    for day in agenda.schedule(routes.find(name), time(9), FIRST, {}):
        assert not day.over_minutes
        assert day.end - day.entries[-1].end >= timedelta(minutes=SLACK_MIN)


def stretches(day: agenda.Day) -> list[list[agenda.Entry]]:
    """Return the entries between breaks."""
    found: list[list[agenda.Entry]] = [[]]
    for entry in day.entries:
        if entry.part.is_break:
            found.append([])
        else:
            found[-1].append(entry)
    return found


def work_of(day: agenda.Day) -> list[tuple[str, str]]:
    """Return the sections of labs and the talks of a day in their order."""
    done = [entry for entry in day.entries if not entry.part.is_break]
    return [
        (entry.part.lab, section.name if section else entry.part.title)
        for entry in done
        for section in entry.part.sections or (None,)
    ]


@pytest.mark.parametrize("begin", [time(8, 30), time(9), time(10, 30), time(13)], ids=str)
@pytest.mark.parametrize("name", routes.names())
def test_nobody_works_for_longer_than_90_minutes(name, begin):
    for day in agenda.schedule(routes.find(name), begin, FIRST, {}):
        assert all(stretch[-1].end - stretch[0].begin <= timedelta(minutes=90) for stretch in stretches(day))
        lunches = [entry for entry in day.entries if entry.part.title == "Lunch"]
        assert len(lunches) == (begin < time(12) and day.end - day.entries[0].begin >= timedelta(hours=6))
        assert all(time(11, 45) <= lunch.begin.time() <= time(13, 30) for lunch in lunches)
        assert all(lunch.minutes == 60 for lunch in lunches)


TIMES = st.floats(0, 25).map(lambda minutes: round(minutes, 2))
SECTIONS = st.builds(Section, st.integers(1, 99).map(str), read=TIMES, wait=st.floats(0, 4), core=st.booleans())
LABS = st.builds(
    lambda number, sections: lab(number, *sections),
    st.integers(0, 99).map("{:02}".format),
    st.lists(SECTIONS, min_size=1, max_size=8),
)
TALKS = st.floats(0, 60).map(lambda minutes: Part("A talk", minutes=minutes))


@settings(max_examples=200)
@given(st.lists(LABS | TALKS, min_size=1, max_size=9), st.floats(0.5, 10), st.times(), st.floats(0.1, 40))
def test_breaks_lose_nothing_and_leave_the_order(parts, hours, begin, rounds):
    (day,) = agenda.schedule(route(*parts, hours=hours), begin, FIRST, {}, rounds)
    planned = [(part.lab, one.name if one else part.title) for part in parts for one in part.sections or (None,)]
    assert work_of(day) == [("", agenda.WELCOME.title), *planned]
    assert not day.entries[0].part.is_break
    assert not day.entries[-1].part.is_break
    for one, following in pairwise(day.entries):
        assert one.end == following.begin
        assert not (one.part.is_break and following.part.is_break)
    for entry in day.entries:
        assert all(entry.begin <= at <= entry.end + ROUNDED for at, _ in entry.sections)
    for stretch in stretches(day):
        alone = len(stretch) == 1 and len(stretch[0].sections) <= 1  # a section that is too long, or a talk
        assert alone or stretch[-1].end - stretch[0].begin <= timedelta(minutes=90)
    lunches = [entry for entry in day.entries if entry.part.title == "Lunch"]
    assert len(lunches) <= 1
    assert agenda.advice([day]) or not day.over_minutes


def test_a_break_is_rather_between_labs_than_inside_one():
    labs = [lab(number, *(Section(str(i), read=10) for i in range(1, 8))) for number in ("01", "02")]
    (day,) = days(*labs, hours=3)
    assert [entry.part.title for entry in day.entries[1:]] == ["01 · Title", "Break", "02 · Title"]
    assert day.entries[2].part.note == agenda.CHANGE


def test_a_long_lab_is_cut_between_two_sections_and_goes_on():
    long = lab("01", *(Section(str(i), read=20) for i in range(1, 7)))
    (day,) = days(long, TALK, hours=3)
    first, pause, second, talk = day.entries[1:]
    assert (first.part.title, pause.part.title, second.part.title) == ("01 · Title", "Break", "01 · Title, continued")
    assert first.part.sections + second.part.sections == long.sections
    assert not pause.part.note
    assert talk.part == TALK


def test_lunch_goes_with_the_clock_and_not_with_the_place():
    labs = [lab(f"{number:02}", *(Section(str(i), read=10) for i in range(1, 6))) for number in range(1, 8)]
    for hour in (7, 9, 11):
        (day,) = agenda.schedule(route(*labs, hours=8), time(hour), FIRST, {})
        (lunch,) = [entry for entry in day.entries if entry.part.title == "Lunch"]
        assert time(11, 45) <= lunch.begin.time() <= time(13, 30)
    (afternoon,) = agenda.schedule(route(*labs, hours=8), time(13), FIRST, {})
    (half,) = agenda.schedule(route(*labs[:4], hours=5), time(9, 30), FIRST, {})
    assert "Lunch" not in {entry.part.title for entry in (*afternoon.entries, *half.entries)}


def test_the_reserve_is_the_last_row_of_a_day_that_fits():
    (day,) = days(SHORT, hours=1)
    assert (day.timetable[-1].part.title, day.timetable[-1].minutes) == (agenda.RESERVE, 30)
    assert day.timetable[:-1] == day.entries
    (late,) = days(SHORT, hours=0.5)
    assert late.timetable == late.entries


def test_the_welcome_is_on_the_first_day_alone():
    first, second = agenda.schedule(routes.find("two-days"), time(9), FIRST, {})
    assert first.entries[0].part == agenda.WELCOME
    assert second.entries[0].part.lab == "06"


def test_parts_follow_each_other_and_labs_end_on_five_minutes():
    (day,) = days(SHORT, LONG, hours=2)
    times = [(f"{entry.begin:%H:%M}", f"{entry.end:%H:%M}") for entry in day.entries]
    assert times == [("09:00", "09:10"), ("09:10", "09:30"), ("09:30", "10:10")]
    assert [f"{begin:%H:%M}" for begin, _ in day.entries[1].sections] == ["09:10", "09:26"]


def test_measured_waiting_counts_in_place_of_the_plan():
    (day,) = days(SHORT, waits={"00": {"1": 11.0, "2": 0.0}})
    assert f"{day.entries[1].end:%H:%M}" == "09:40"
    assert day.entries[1].sections[0][1].wait == 11


def test_a_day_that_is_too_long_says_which_sections_to_leave_out():
    planned = days(SHORT, LONG, hours=0.92)
    assert agenda.advice(planned) == [
        "It ends 15 minutes too late, at 10:10 instead of 09:55. "
        "Leave out section 2 of lab 07 (12), section 3 of lab 07 (4)."
    ]
    assert agenda.advice(days(SHORT, LONG, hours=1.2)) == []


def test_where_sections_are_not_enough_a_lab_is_left_out():
    (sentence,) = agenda.advice(days(SHORT, LONG, hours=0.4))
    assert sentence.endswith("Its optional sections are not enough: leave out lab 07, for one.")
    (sentence,) = agenda.advice(days(SHORT, hours=0.1))
    assert sentence.endswith("Give it more hours.")


def test_a_lab_that_a_break_cuts_is_weighed_as_one():
    cut = lab("01", *(Section(str(i), read=20) for i in range(1, 7)))
    (sentence,) = agenda.advice(days(cut, lab("02", Section("1", read=80)), hours=3))
    assert sentence.endswith("leave out lab 02, for one.")


def test_the_source_of_the_waiting_is_told():
    both = route(SHORT, LONG)
    assert "as planned" in agenda.basis(both, {})
    assert agenda.basis(both, {"00": {}, "07": {}}) == "All waiting was measured on this machine."
    assert "but for labs 07" in agenda.basis(both, {"00": {}})


def test_where_people_share_a_server_waiting_is_a_round_of_the_room(monkeypatch, tmp_path):
    monkeypatch.setenv(lease.FOLDER_VARIABLE, str(tmp_path / "slots"))
    rounds, sentence = agenda.sharing(40, 4)
    (day,) = agenda.schedule(route(SHORT), time(9), FIRST, {}, rounds)
    assert day.entries[1].sections[0][1].wait == 10
    assert f"{day.entries[1].end:%H:%M}" == "09:40"
    assert sentence.startswith("40 people measure in turns on 4 slots: all waiting counts 10 times")
    assert agenda.sharing(3, 4)[0] == 1  # nobody waits for another
    assert agenda.sharing(None, None) == (1, "")
    with pytest.raises(LabError, match="--people 40 --slots 4"):
        agenda.sharing(40, None)


def test_a_divided_server_knows_its_slots(monkeypatch, tmp_path):
    monkeypatch.setenv(lease.FOLDER_VARIABLE, str(tmp_path / "slots"))
    lease.create(lease.Division((0,), ((1,), (2,)), 1), tmp_path / "slots")
    assert agenda.sharing(None, None) == (1, "")
    assert agenda.sharing(12, None)[0] == 6


def test_a_calendar_is_read_by_a_calendar_program():
    chosen = routes.find("two-days")
    planned = agenda.schedule(chosen, time(9), FIRST, {})
    events = icalendar.Calendar.from_ical(agenda_view.calendar(chosen, planned, ["A, sentence; with marks."])).events
    entries = [entry for day in planned for entry in day.timetable]
    assert [event.start for event in events] == [entry.begin for entry in entries]
    assert [str(event["summary"]) for event in events] == [entry.part.title for entry in entries]
    assert len({str(event["uid"]) for event in events}) == len(entries)
    described = {str(event["summary"]): str(event.get("description", "")) for event in events}
    first = planned[0].entries[1]
    assert described[first.part.title].split("\n") == [
        f"{begin:%H:%M} {agenda_view.section_name(section)}" for begin, section in first.sections
    ]
    assert described["Lunch"] in ("", agenda.CHANGE)


def test_named_labs_get_lunch_and_breaks():
    named = routes.of_labs(["0", "02", "06", "7"], 7)
    (day,) = agenda.schedule(named, time(10), FIRST, {})
    assert list(dict.fromkeys(entry.part.lab for entry in day.entries if entry.part.lab)) == ["00", "02", "06", "07"]
    assert {"Lunch", "Break"} <= {entry.part.title for entry in day.entries}


class TestPace:
    SPAN = {"lab": "00", "sections": ["1", "2"], "planned": 20.0, "taken": 30.0}

    @pytest.fixture
    def room(self, tmp_path):
        def write(*spans, **other):
            path = tmp_path / "room.json"
            path.write_text(json.dumps({"opened": "2026-12-01", "people": 10, "minutes": list(spans)} | other))
            return path

        return write

    def test_sections_take_what_a_room_took_and_others_what_is_planned(self, room):
        took = pace.read(room(self.SPAN))
        (day,) = agenda.schedule(route(SHORT, LONG), time(9), FIRST, {"00": {"1": 3.0}}, 2, took)
        of_short, of_long = day.entries[1].part.sections, day.entries[2].part.sections
        assert [one.minutes for one in of_short] == [1.5 * (10 + 5 + 2 * 3), 1.5 * 3]
        assert of_long == LONG.sections
        assert "2 of 5 sections are planned by what a room took: 1.5 times" in agenda.basis(
            route(SHORT, LONG), {}, took
        )

    def test_minutes_of_other_labs_are_said_to_be_so(self, room):
        assert "nothing is planned by them" in agenda.basis(route(LONG), {}, pace.read(room(self.SPAN)))

    def test_a_section_in_several_spans_gets_what_these_took_in_all(self, room):
        again = self.SPAN | {"sections": ["2"], "planned": 10.0, "taken": 15.0 + 30.0}
        assert pace.read(room(self.SPAN, again))["00"] == {"1": 1.5, "2": 75 / 30}

    @pytest.mark.parametrize(("taken", "factor"), [(0, pace.LEAST), (900, pace.MOST)])
    def test_what_can_not_be_the_sections_own_time_is_bounded(self, room, taken, factor):
        assert pace.read(room(self.SPAN | {"taken": taken}))["00"]["1"] == factor

    @pytest.mark.parametrize(
        "content",
        [
            "{",
            "[]",
            "{}",
            '{"minutes": 3}',
            '{"minutes": [{"lab": "00"}]}',
            '{"minutes": [{"lab": "00", "sections": ["1"], "planned": 0, "taken": 1}]}',
            '{"minutes": [{"lab": "00", "sections": ["1"], "planned": NaN, "taken": 1}]}',
            '{"minutes": [{"lab": "00", "sections": [1], "planned": 1, "taken": 1}]}',
            "[" * 10_000,
        ],
    )
    def test_another_file_is_one_line(self, tmp_path, monkeypatch, capsys, content):
        path = tmp_path / "other.json"
        path.write_text(content)
        assert "other.json" in self.told(path, monkeypatch, capsys)

    def test_a_missing_file_is_one_line(self, tmp_path, monkeypatch, capsys):
        assert "No such file" in self.told(tmp_path / "none.json", monkeypatch, capsys)

    def told(self, path, monkeypatch, capsys):
        monkeypatch.setattr("sys.argv", ["lab", "agenda", "--route", "half", "--from", str(path)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert "./lab room close" in message or "Name" in message
        return message


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "name a route, --route half|day|two-days|language-models|after-horovod"),
        (["--route", "day", "--labs", "00"], "name a route"),
        (["--route", "week"], "the routes are half, day, two-days, language-models, after-horovod"),
        (["--labs", "00,77"], "there is no lab '77'"),
        (["--labs", ""], "there is no lab ''"),
        (["--route", "day", "--start", "9 Uhr"], "9:00 or 13:30"),
        (["--route", "day", "--start", "25:00"], "9:00 or 13:30"),
        (["--route", "day", "--date", "1.12."], "like 2026-12-01"),
        (["--route", "day", "--out", "agenda.pdf"], ".md or .ics"),
    ],
)
def test_wrong_input_is_one_line(arguments, part, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lab", "agenda", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    message = capsys.readouterr().err
    assert part in message
    assert message.count("\n") == 1


def test_an_agenda_is_written_as_markdown(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lab", "agenda", "--route", "day", "--out", str(tmp_path / "day.md")])
    with pytest.raises(SystemExit):
        cli.main()
    text = (tmp_path / "day.md").read_text()
    assert "| 09:00–09:10 | **Welcome: " in text
    assert re.search(r"\| 09:\d\d \| 3 · Hello from every rank \| \d+ \|", text)
    assert "Lunch" in text
    assert agenda.RESERVE in text


class TestRehearsal:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(rehearsal, "FILE", tmp_path / "rehearsal.json")
        monkeypatch.setattr(rehearsal, "FOLDER", tmp_path / "rehearsal")

    def test_what_is_kept_comes_back_until_the_lab_changes(self, monkeypatch):
        assert rehearsal.waits() == {}
        rehearsal._keep("00", {"1": 0.5})
        rehearsal._keep("07", {"1": 1.5})
        assert rehearsal.waits() == {"00": {"1": 0.5}, "07": {"1": 1.5}}
        monkeypatch.setattr(rehearsal, "_fingerprint", lambda lab: "other sections")
        assert rehearsal.waits() == {}

    def test_a_damaged_file_is_named(self):
        rehearsal.FILE.write_text("{")
        with pytest.raises(LabError, match="is damaged: delete it"):
            rehearsal.waits()

    @pytest.mark.slow
    def test_a_lab_runs_and_a_small_run_is_not_kept(self):
        told: list[tuple[str, str]] = []
        rehearsal.run(["00"], lambda title, what: told.append((title, what)), quick=True)
        assert [what.partition(" ")[0] for _, what in told] == ["", "waited"]
        assert not rehearsal.FILE.exists()
