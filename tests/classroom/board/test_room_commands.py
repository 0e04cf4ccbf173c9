"""`lab room`: what may be kept of a room, and what is no address."""

import asyncio
import json
import os
from collections.abc import Sequence

import pytest
from room_board import EMPTY, at

from labkit import cli
from labkit.system.errors import LabError
from labkit_classroom.board import host, views
from labkit_classroom.board.store import Store


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

        def open_room(address, port, days, tls, on_open, new_code) -> None:
            new_codes.append(new_code)
            on_open("http://192.0.2.1:8500", "K7Q2M9", "http://192.0.2.1:8500/instructor#x")

        monkeypatch.setattr(host, "open_room", open_room)
        monkeypatch.setattr("sys.argv", ["lab", "room", "open", "--address", address, "--new-code"])
        with pytest.raises(SystemExit):
            cli.main()
        assert ("on all addresses of this machine" in capsys.readouterr().out) == (address == "0")
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

    def test_a_folder_that_is_a_file_is_told(self, folder):
        (folder / "room").write_text("")
        with pytest.raises(LabError, match="cannot keep the room in"):
            host.open_room("127.0.0.1", 0, [], None, lambda *_: None)
        with pytest.raises(LabError, match="no room is there"):
            host.close_room(folder / "room.json")


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
