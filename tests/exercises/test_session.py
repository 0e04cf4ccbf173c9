"""A lab says at its opening what it may use of the machine, and how long a round of the room takes."""

import pytest

from labkit.exercises import open_lab
from labkit.system import slots
from labkit_author import minutes, sources


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Have a folder for the lab's files, and one for a division."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(slots.FOLDER_VARIABLE, str(tmp_path / "slots"))
    return tmp_path / "slots"


def test_alone_on_a_machine_nobody_hears_of_slots(capsys):
    open_lab("02", {"QUICK": True})
    told = capsys.readouterr().out
    assert "for this notebook" in told
    assert "slot" not in told


def test_on_a_divided_server_a_lab_says_how_long_a_round_of_the_room_takes(place, capsys):
    slots.write(slots.Division((0,), ((1,),), 1, 40), place)
    assert open_lab("02", {"QUICK": True}).machine.usable_cores == 1
    told = capsys.readouterr().out
    assert "1 measuring slot of 1 core each for 40 people" in told
    waiting = sum(section.wait for section in minutes.plan(sources.find("02")))
    assert f"a round of the whole room takes about {40 * waiting:.0f} minutes" in told


def test_a_lab_that_hardly_waits_says_less_than_two_minutes(place, capsys):
    slots.write(slots.Division((0,), ((1,),), 1, 2), place)
    open_lab("00", {"QUICK": True})
    assert "a round of the whole room takes less than two minutes" in capsys.readouterr().out
