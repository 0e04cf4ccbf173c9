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
def runs(tmp_path, monkeypatch) -> list[tuple[str, Path, bool]]:
    """Redirect rehearsals to the test's folder, and record each run: name, folder, whether it is small."""
    runs: list[tuple[str, Path, bool]] = []

    def execute(notebook: NotebookNode, name: str, cwd: Path, QUICK: bool) -> NotebookNode:
        assert cwd.is_dir()
        runs.append((name, cwd, QUICK))
        (cwd / "work").mkdir(exist_ok=True)
        (cwd / "work" / "results-00.json").write_text("small" if QUICK else "in full")
        return notebook

    monkeypatch.setattr(paths, "STATE", tmp_path)
    monkeypatch.setattr(rehearsal, "FILE", tmp_path / "rehearsal.json")
    monkeypatch.setattr(rehearsal, "FOLDER", tmp_path / "rehearsal")
    monkeypatch.setattr(execution, "execute", execute)
    monkeypatch.setattr(notebooks, "waited", lambda notebook: WAITED)
    return runs


def test_a_quick_rehearsal_runs_a_routes_labs_once_and_stores_nothing(runs, capsys, tmp_path):
    assert run_lab("rehearse", "--route", "half", "--quick") == 0
    assert [name[:2] for name, _, _ in runs] == ["00", "02", "07"]
    assert all(quick for _, _, quick in runs)
    assert list(tmp_path.iterdir()) == []
    assert rehearsal.waits() == {}
    output = capsys.readouterr().out
    assert output.startswith("3 labs, all cells once, on small inputs")
    assert output.endswith("Everything runs on this machine. Next: ./lab rehearse --route half\n")


def test_a_quick_rehearsal_does_not_touch_results_of_a_full_one(runs, tmp_path):
    run_lab("rehearse", "--labs", "00")
    stored = {file: file.read_text() for file in tmp_path.rglob("*.json")}
    assert stored[tmp_path / "rehearsal" / "work" / "results-00.json"] == "in full"
    run_lab("rehearse", "--labs", "00", "--quick")
    assert {file: file.read_text() for file in tmp_path.rglob("*.json")} == stored


def test_a_failing_quick_rehearsal_is_reported_and_stores_nothing(runs, monkeypatch, capsys, tmp_path):
    def execute(notebook: NotebookNode, name: str, cwd: Path, **parameters: object) -> None:
        (cwd / "work").mkdir()
        raise LabError(f"{name}: cell 3 failed")

    monkeypatch.setattr(execution, "execute", execute)
    assert run_lab("rehearse", "--labs", "00", "--quick") == 2
    output = capsys.readouterr()
    assert "cell 3 failed" in output.err
    assert "runs on this machine" not in output.out
    assert list(tmp_path.iterdir()) == []


def test_a_full_rehearsal_estimates_its_time_from_the_plan_or_the_previous_one(runs, capsys):
    planned = sum(section.wait for section in catalogue.find("00").sections)
    run_lab("rehearse", "--labs", "00")
    assert f"1 lab, in full: about {planned:.0f} minutes" in capsys.readouterr().out
    assert [quick for _, _, quick in runs] == [False]
    run_lab("rehearse", "--labs", "00")
    assert "1 lab, in full: about 4 minutes" in capsys.readouterr().out


def test_stored_waits_are_used_until_the_labs_sections_change(runs):
    run_lab("rehearse", "--labs", "00")
    assert rehearsal.waits() == {"00": WAITED}
    rehearsal.FILE.write_text('{"00": {"1": 1.5}}')
    assert rehearsal.waits() == {}


def test_a_damaged_file_is_reported(runs):
    rehearsal.FILE.write_text("{")
    with pytest.raises(LabError, match="is damaged: delete it"):
        rehearsal.waits()
