"""A lab prints which part of the machine it may use when it opens."""

import pytest

from labkit.exercises import open_lab
from labkit.system import cores


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder for the lab's files."""
    monkeypatch.chdir(tmp_path)


def test_undivided_machine_has_no_slots(capsys):
    open_lab("02", {"QUICK": True})
    out = capsys.readouterr().out
    assert "for this notebook" in out
    assert "slot" not in out


def test_lab_on_a_divided_server_gets_one_slot(monkeypatch, capsys):
    monkeypatch.setenv(cores.SLOTS_VARIABLE, "1")
    assert open_lab("02", {"QUICK": True}).machine.usable_cores == 1
    assert "1 measuring slot of 1 core each" in capsys.readouterr().out


def test_in_vs_code_files_are_in_the_notebooks_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labs").mkdir()
    open_lab("02", {"QUICK": True, "__vsc_ipynb_file__": str(tmp_path / "labs/02_onednn_mnist.ipynb")})
    assert (tmp_path / "labs/work").is_dir()
    assert not (tmp_path / "work").exists()
