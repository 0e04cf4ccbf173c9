"""A timetable adds up, holds what was measured, and says what to leave out; each route fits into its day."""

from datetime import date, time, timedelta

import icalendar
import pytest

from labkit import cli
from labkit.exercises.minutes import Section
from labkit.system import slots
from labkit.system.errors import LabError
from labkit_classroom.lecture import agenda, agenda_view, rehearsal, routes
from labkit_classroom.lecture.routes import Part, Route

SLACK_MIN = 10  # that each day of a route has left: no day goes as planned
FIRST = date(2026, 12, 1)


def route(*parts: Part, hours: float = 1.0) -> Route:
    return Route("", "Some labs", "", "", hours, (parts,))


def lab(number: str, *sections: Section) -> Part:
    return Part(f"{number} · Title", number, sections)


SHORT = lab("00", Section("1", read=10, do=5, wait=1), Section("2", read=3))
LONG = lab("07", Section("1", read=20), Section("2", read=12, core=False), Section("3", do=4, core=False))
BREAK = Part("Break", minutes=15, is_break=True)


def days(*parts: Part, hours: float = 1.0, waits: agenda.Waits | None = None) -> list[agenda.Day]:
    return agenda.schedule(route(*parts, hours=hours), time(9), FIRST, waits or {})


@pytest.mark.parametrize("name", routes.names())
def test_each_route_fits_with_time_to_spare(name):
    for day in agenda.schedule(routes.find(name), time(9), FIRST, {}):
        assert not day.over_minutes
        assert day.end - day.entries[-1].end >= timedelta(minutes=SLACK_MIN)


@pytest.mark.parametrize("name", routes.names())
def test_nobody_works_for_two_hours_without_a_break(name):
    for day in agenda.schedule(routes.find(name), time(9), FIRST, {}):
        since = day.entries[0].begin
        for entry in day.entries:
            if entry.part.is_break:
                assert entry.begin - since <= timedelta(hours=2)
                since = entry.end
        assert day.entries[-1].end - since <= timedelta(hours=2)


def test_parts_follow_each_other_and_labs_end_on_five_minutes():
    (day,) = days(SHORT, BREAK, LONG, hours=2)
    times = [(f"{entry.begin:%H:%M}", f"{entry.end:%H:%M}") for entry in day.entries]
    assert times == [("09:00", "09:20"), ("09:20", "09:35"), ("09:35", "10:15")]
    assert [f"{begin:%H:%M}" for begin, _ in day.entries[0].sections] == ["09:00", "09:16"]


def test_measured_waiting_counts_in_place_of_the_plan():
    (day,) = days(SHORT, waits={"00": {"1": 11.0, "2": 0.0}})
    assert f"{day.entries[0].end:%H:%M}" == "09:30"
    assert day.entries[0].sections[0][1].wait == 11


def test_a_day_that_is_too_long_says_which_sections_to_leave_out():
    planned = days(SHORT, LONG, hours=0.75)
    assert agenda.advice(planned) == [
        "It ends 15 minutes too late, at 10:00 instead of 09:45. "
        "Leave out section 2 of lab 07 (12), section 3 of lab 07 (4)."
    ]
    assert agenda.advice(days(SHORT, LONG, hours=1)) == []


def test_where_sections_are_not_enough_a_lab_is_left_out():
    (sentence,) = agenda.advice(days(SHORT, LONG, hours=0.4))
    assert sentence.endswith("Its optional sections are not enough: leave out lab 07, for one.")


def test_the_source_of_the_waiting_is_told():
    both = route(SHORT, LONG)
    assert "as planned" in agenda.basis(both, {})
    assert agenda.basis(both, {"00": {}, "07": {}}) == "All waiting was measured on this machine."
    assert "but for labs 07" in agenda.basis(both, {"00": {}})


def test_where_people_share_a_server_waiting_is_a_round_of_the_room(monkeypatch, tmp_path):
    monkeypatch.setenv(slots.FOLDER_VARIABLE, str(tmp_path / "slots"))
    rounds, sentence = agenda.sharing(40, 4)
    (day,) = agenda.schedule(route(SHORT), time(9), FIRST, {}, rounds)
    assert day.entries[0].sections[0][1].wait == 10
    assert f"{day.entries[0].end:%H:%M}" == "09:30"
    assert sentence.startswith("40 people measure in turns on 4 slots: all waiting counts 10 times")
    assert agenda.sharing(3, 4)[0] == 1  # nobody waits for another
    assert agenda.sharing(None, None) == (1, "")
    with pytest.raises(LabError, match="--people 40 --slots 4"):
        agenda.sharing(40, None)


def test_a_divided_server_knows_how_many_share_it(monkeypatch, tmp_path):
    monkeypatch.setenv(slots.FOLDER_VARIABLE, str(tmp_path / "slots"))
    slots.write(slots.Division((0,), ((1,), (2,)), 1, 8), tmp_path / "slots")
    assert agenda.sharing(None, None)[0] == 4
    assert agenda.sharing(12, None)[0] == 6


def test_a_calendar_is_read_by_a_calendar_program():
    chosen = routes.find("two-days")
    planned = agenda.schedule(chosen, time(9), FIRST, {})
    events = icalendar.Calendar.from_ical(agenda_view.calendar(chosen, planned, ["A, sentence; with marks."])).events
    entries = [entry for day in planned for entry in day.entries]
    assert [event.start for event in events] == [entry.begin for entry in entries]
    assert [str(event["summary"]) for event in events] == [entry.part.title for entry in entries]
    assert len({str(event["uid"]) for event in events}) == len(entries)


def test_named_labs_get_breaks():
    parts = routes.of_labs(["0", "02", "06", "7"], 7).days[0]
    assert [part.lab for part in parts if part.lab] == ["00", "02", "06", "07"]
    assert any(part.is_break for part in parts)


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
    assert "| 09:00–" in text
    assert "Lunch" in text


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
