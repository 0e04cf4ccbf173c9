"""Rehearsals, without kernels: output, folders and stored files."""

from pathlib import Path

import pytest
from lab_command import run_lab
from nbformat import NotebookNode

from labkit.exercises import catalogue
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import execution, notebooks
from labkit_classroom.lecture import rehearsal

WAITED = dict.fromkeys("123456", 0) | {"1": 1.5, "2": 2.0}  # in lab 00


@pytest.fixture
def runs(tmp_path, monkeypatch) -> list[tuple[str, Path]]:
    """Redirect rehearsals to the test's folder, and record each run: name, folder."""
    runs: list[tuple[str, Path]] = []

    def execute(notebook: NotebookNode, name: str, cwd: Path) -> NotebookNode:
        assert cwd.is_dir()
        runs.append((name, cwd))
        return notebook

    monkeypatch.setattr(paths, "STATE", tmp_path)
    monkeypatch.setattr(rehearsal, "FILE", tmp_path / "rehearsal.json")
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path / "rehearsal")
    monkeypatch.setattr(execution, "execute", execute)
    monkeypatch.setattr(notebooks, "waited", lambda notebook: WAITED)
    return runs


def test_a_route_runs_once_and_estimates_its_time_from_the_plan_or_the_previous_one(runs, capsys, tmp_path):
    planned = sum(section.wait for section in catalogue.find("00").sections)
    assert run_lab("rehearse", "--labs", "00,02") == 0
    assert runs == [(f"{catalogue.find(lab).name}-rehearsal", tmp_path / "rehearsal") for lab in ("00", "02")]
    output = capsys.readouterr().out
    assert output.startswith("2 labs, in full: about ")
    assert output.endswith("Everything runs on this machine. Next: ./lab agenda --labs 00,02\n")
    rehearsal.FILE.unlink()
    run_lab("rehearse", "--labs", "00")
    assert f"1 lab, in full: about {planned:.0f} minutes" in capsys.readouterr().out
    run_lab("rehearse", "--labs", "00")
    assert "1 lab, in full: about 4 minutes" in capsys.readouterr().out


def test_a_failing_lab_is_reported_and_its_waits_are_not_stored(runs, monkeypatch, capsys):
    def execute(notebook: NotebookNode, name: str, cwd: Path) -> None:
        raise LabError(f"{name}: cell 3 failed")

    monkeypatch.setattr(execution, "execute", execute)
    assert run_lab("rehearse", "--labs", "00") == 2
    output = capsys.readouterr()
    assert "cell 3 failed" in output.err
    assert "runs on this machine" not in output.out
    assert rehearsal.waits() == {}


def test_stored_waits_are_used_until_the_labs_sections_change(runs):
    run_lab("rehearse", "--labs", "00")
    assert rehearsal.waits() == {"00": WAITED}
    rehearsal.FILE.write_text('{"00": {"1": 1.5}}')
    assert rehearsal.waits() == {}


def test_a_damaged_file_is_reported(runs):
    rehearsal.FILE.write_text("{")
    with pytest.raises(LabError, match="is damaged: delete it"):
        rehearsal.waits()
