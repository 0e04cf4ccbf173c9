"""`lab room`: what may be kept of a room, and what is no address."""

import asyncio
import json
import os
import stat
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
import requests
from room_board import EMPTY, at

from labkit import cli
from labkit.system.errors import LabError
from labkit_classroom.board import host, timetable, views
from labkit_classroom.board.store import Store
from labkit_classroom.board.timetable import Planned
from labkit_classroom.lecture.agenda import Day, Entry
from labkit_classroom.lecture.routes import Part

NINE, HOUR = datetime(2026, 12, 1, 9), timedelta(hours=1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "FOLDER", tmp_path / "room")
    return tmp_path


def fill(passed: list[int], machines: Sequence[tuple[int, list[str]]] = ()) -> None:
    """Keep a room of so many seats as the first number says, of which so many passed each exercise of lab 07."""

    async def run() -> None:
        store = Store(host.FOLDER / host.FILE)
        for place in range(passed[0]):
            await store.join(f"Person{place}", ("07",))
            exercises = [at(number) for number, count in enumerate(passed[1:], 1) if place < count]
            await store.put(place + 1, EMPTY | {"exercises": exercises})
        for number, (cores, isa) in enumerate(machines):
            figures = [{"name": "x", "value": number, "unit": "×"}, {"name": f"own {number}", "value": 1, "unit": ""}]
            await store.add_figures({"ticket": "", "lab": "07", "cores": cores, "isa": isa, "figures": figures})
        store.close()

    asyncio.run(run())


def closed(folder) -> dict:
    host.close_room(folder / "room.json")
    assert list(host.FOLDER.iterdir()) == []
    return json.loads((folder / "room.json").read_text())


class TestClose:
    @pytest.mark.slow
    def test_neither_a_count_nor_a_difference_of_two_is_of_fewer_than_five(self, folder):
        fill([23, 23, 22, 19, 18, 7, 4, 1])
        kept = closed(folder)
        counts = [one["seats"] for one in kept["passed"]]
        assert counts == [20, 20, 15, 15, 5]
        assert kept["people"] == 20
        for one in (*counts, kept["people"]):
            for other in (0, *counts, kept["people"]):
                assert one == other or abs(one - other) >= views.FEW

    @pytest.mark.parametrize("people", range(views.FEW))
    def test_of_fewer_than_five_nothing_is_kept(self, folder, people):
        fill([people, people])
        kept = closed(folder)
        assert (kept["people"], kept["passed"], kept["figures"]) == (None, [], {})

    def test_a_machine_that_only_few_have_is_not_told_apart(self, folder):
        fill([0], [(2, ["AVX2"])] * 6 + [(64, ["AMX"])])
        assert closed(folder)["figures"] == {"07": [{"name": "x", "unit": "×", "values": [*range(7)]}]}

    def test_machines_that_five_have_are(self, folder):
        fill([0], [(2, ["AVX2"]), (64, ["AMX"])] * 5)
        kept = closed(folder)["figures"]["07"]
        assert [(one["cores"], one["isa"], len(one["values"])) for one in kept] == [(2, ["AVX2"], 5), (64, ["AMX"], 5)]

    @pytest.mark.parametrize("people", [views.FEW - 1, views.FEW])
    def test_minutes_taken_are_beside_the_planned_ones(self, folder, people):
        fill([people, people])  # at 09:41

        async def plan() -> None:
            store = Store(host.FOLDER / host.FILE)
            section = Planned("Lab 07 · 1 The task", NINE, NINE + HOUR / 2, "07", "1", (1,), 30.0)
            await store.change(plan=timetable.write([section]))
            store.close()

        asyncio.run(plan())
        told = [{"lab": "07", "sections": ["1"], "planned": 30.0, "taken": 41.0}]
        assert closed(folder)["minutes"] == (told if people >= views.FEW else [])

    def test_without_a_timetable_there_are_no_minutes(self, folder):
        fill([9, 9])
        assert closed(folder)["minutes"] == []

    def test_no_name_is_in_it(self, folder):
        fill([9, 9])
        assert "erson" not in json.dumps(closed(folder))


class TestOpen:
    @pytest.mark.parametrize(
        "address",
        ["a" * 5000, "a." * 3000, "\udcff\udcfe", "é" * 70, "x y", "127.0.0.1:80", "http://127.0.0.1", "::1::"],
    )
    def test_an_address_that_is_none_is_told_in_one_line(self, folder, monkeypatch, capsys, address):
        monkeypatch.setattr("sys.argv", ["lab", "room", "open", "--address", address, "--port", "18701"])
        with pytest.raises(SystemExit) as left:
            cli.main()
        told = capsys.readouterr()
        assert (left.value.code, told.out, told.err.count("\n")) == (2, "", 1)
        assert "cannot listen on" in told.err
        assert len(told.err) < 300

    @pytest.mark.parametrize("address", ["0", "127.0.0.1"])
    def test_it_says_when_it_listens_everywhere(self, monkeypatch, capsys, address):
        new_codes = []

        def open_room(address, port, days, tls, on_open, new_code, people, on_hub) -> None:
            new_codes.append(new_code)
            on_open(host.Opened("http://192.0.2.1:8500", "K7Q2M9", "x"))

        monkeypatch.setattr(host, "open_room", open_room)
        monkeypatch.setattr("sys.argv", ["lab", "room", "open", "--address", address, "--new-code"])
        with pytest.raises(SystemExit):
            cli.main()
        printed = capsys.readouterr().out
        assert ("on all addresses of this machine" in printed) == (address == "0")
        assert "For the projector:       http://192.0.2.1:8500/#K7Q2M9\n" in printed
        assert new_codes == [True]

    @pytest.mark.slow
    def test_a_new_code_is_for_newcomers_and_seats_stay(self, folder):
        fill([3])
        before = Store(host.FOLDER / host.FILE)
        code = before["code"]
        before.close()
        with pytest.raises(LabError, match="cannot listen"):
            host.open_room("192.0.2.7", 1, [], None, lambda *_: None, new_code=True)
        after = Store(host.FOLDER / host.FILE)
        assert after["code"] != code
        assert len(after.seats) == 3
        after.close()

    def test_a_timetable_and_how_many_come_are_kept_for_when_it_is_opened_again(self, folder, monkeypatch):
        rooms = []
        monkeypatch.setattr(host.app, "serve", lambda room, *_: rooms.append(room) or pytest.fail("opened"))
        day = Day((Entry(NINE, NINE + HOUR, Part("A talk")),), NINE + HOUR)
        for days, people in (([day], 20), ([], None)):
            with pytest.raises(pytest.fail.Exception):
                host.open_room("127.0.0.1", 8500, days, None, lambda *_: None, people=people)
        assert [room._plan[0].title for room in rooms] == ["A talk"] * 2
        assert Store(host.FOLDER / host.FILE)["people"] == "20"
        assert rooms[0].joining.command == "./lab join http://127.0.0.1:8500"

    def test_on_a_hub_students_type_nothing_more(self, folder, monkeypatch):
        rooms = []
        monkeypatch.setattr(host.app, "serve", lambda room, *_: rooms.append(room) or pytest.fail("opened"))
        with pytest.raises(pytest.fail.Exception):
            host.open_room("127.0.0.1", 8500, [], None, lambda *_: None, on_hub=True)
        assert (rooms[0].joining.command, rooms[0].joining.takes_code) == ("./lab join", False)

    def test_a_folder_that_is_a_file_is_told(self, folder):
        (folder / "room").write_text("")
        with pytest.raises(LabError, match="cannot keep the room in"):
            host.open_room("127.0.0.1", 0, [], None, lambda *_: None)
        with pytest.raises(LabError, match="no room is there"):
            host.close_room(folder / "room.json")


class TestStatus:
    def status(self, monkeypatch, capsys) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["lab", "room", "status"])
        with pytest.raises(SystemExit) as left:
            cli.main()
        told = capsys.readouterr()
        return left.value.code or 0, told.out, told.err

    def test_it_says_again_what_room_open_has_said_and_who_is_there(self, board_process, monkeypatch, capsys):
        monkeypatch.setattr(host, "FOLDER", board_process.folder)
        assert stat.S_IMODE((board_process.folder / host.RUNNING).stat().st_mode) == 0o600
        board_process.join("B4").put(hand={"lab": "07", "exercise": 2})
        board_process.join("B5")
        requests.post(f"{board_process.url}/api/code", headers=board_process.authorized, timeout=5)
        code = board_process.shown()["code"]
        exit_code, told, _ = self.status(monkeypatch, capsys)
        assert exit_code == 0
        for line in (
            f"./lab join {board_process.url} {code}",
            f"{board_process.url}/#{code}",
            f"{board_process.url}/instructor#{board_process.instructor}",
            "People: 2",
            "Hands: B4 at 07 · 2, 0 min",
        ):
            assert line in told

    @pytest.mark.parametrize("end", ["never", "killed", "damaged"])
    def test_without_a_board_it_is_one_line(self, folder, monkeypatch, capsys, end):
        kept = {"killed": '{"address": "http://127.0.0.1:9", "token": "x", "ca": ""}', "damaged": "[]"}
        if end in kept:
            host.FOLDER.mkdir()
            (host.FOLDER / host.RUNNING).write_text(kept[end])
        assert self.status(monkeypatch, capsys) == (
            2,
            "",
            "lab: no board runs here: ./lab room open opens one, with all that its room had.\n",
        )


@pytest.mark.parametrize("kind", ["pipe", "folder", "nothing", "no key"])
@pytest.mark.parametrize("command", [["room", "open"], ["hub", "up", "--students", "1"]], ids=lambda given: given[0])
def test_a_certificate_that_can_not_be_read_is_told_in_one_line(tmp_path, monkeypatch, capsys, command, kind):
    place = tmp_path / "cert"
    {"pipe": os.mkfifo, "folder": os.mkdir}.get(kind, lambda _: None)(place)
    key = [] if kind == "no key" else ["--key", str(place)]
    monkeypatch.setattr("sys.argv", ["lab", *command, "--cert", str(place), *key])
    with pytest.raises(SystemExit) as left:
        cli.main()
    told = capsys.readouterr()
    assert (left.value.code, told.out, told.err.count("\n")) == (2, "", 1)
