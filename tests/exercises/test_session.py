"""A lab prints at its opening what it may use of the machine."""

import pytest
from machines import machine

from labkit.exercises import open_lab, session
from labkit.system import lease
from labkit.system.errors import LabError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return a folder for measuring slots, which isn't there yet; the lab's files are next to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(lease.FOLDER_VARIABLE, str(tmp_path / "slots"))
    return tmp_path / "slots"


def test_alone_on_a_machine_there_are_no_slots(capsys):
    open_lab("02", {"QUICK": True})
    printed = capsys.readouterr().out
    assert "for this notebook" in printed
    assert "slot" not in printed


def test_on_a_divided_server_a_lab_has_what_a_slot_has(folder, capsys):
    lease.create(lease.Division((0,), ((1,),), 1), folder)
    assert open_lab("02", {"QUICK": True}).machine.usable_cores == 1
    assert "1 measuring slot of 1 core each" in capsys.readouterr().out


def test_on_arm_the_lab_on_daal4py_says_why_it_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(session, "usable_machine", lambda: machine(isa=("NEON",)))
    with pytest.raises(LabError, match="no package for Arm: run it on a machine with x86-64"):
        open_lab("09", {"QUICK": True})
    open_lab("06", {"QUICK": True})
    assert "for this notebook" in capsys.readouterr().out
