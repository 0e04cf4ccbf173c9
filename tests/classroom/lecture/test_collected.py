"""A class is read from whatever files were handed in, hostile ones too."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from labkit import cli
from labkit.system.errors import LabError
from labkit_classroom.lecture import collected

ABOUT = {"quick": False, "when": "2026-12-01 10:00", "on": {"cpu": "x"}}


def results(path: Path, lab: str, **exercises: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"lab": lab, **ABOUT, "exercises": {name[1:]: text for name, text in exercises.items()}})
    )


def shown(folder: Path) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for table in collected.tables(folder):
        console.print(table)
    return console.export_text()


def test_students_are_folders_or_the_beginning_of_a_name(tmp_path):
    results(tmp_path / "ada" / "work" / "results-07.json", "07", e1="passed", e2="not yet")
    results(tmp_path / "bob-results-07.json", "07", e1="passed")
    text = shown(tmp_path)
    assert [line.split("│")[1].strip() for line in text.splitlines() if "ada" in line or "bob" in line] == [
        "ada",
        "bob",
    ]
    assert "1: 2, 2: 0" in text


def test_machines_come_from_the_doctor(tmp_path):
    for name, status in (("ada", "ok"), ("bob", "fail"), ("eve", "warn")):
        lab = {"lab": "07 Horovod", "status": status, "because": ["memory"], "fix": []}
        (tmp_path / f"{name}.json").write_text(json.dumps({"ok": True, "labs": [lab]}))
    text = shown(tmp_path)
    assert "2 of 3" in text
    assert "bob (memory)" in text


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b'{"labs": 3}', b'{"labs": [{"lab": 1}]}', b"null"])
def test_what_is_no_such_file_is_named_and_the_rest_is_shown(tmp_path, content):
    results(tmp_path / "ada" / "results-07.json", "07", e1="passed")
    (tmp_path / "odd.json").write_bytes(content)
    (tmp_path / "eve-results-07.json").write_bytes(content)
    text = shown(tmp_path)
    assert "ada" in text
    assert "Not read: odd.json" in text
    assert "Not read: eve-results-07.json" in text


def test_a_name_is_no_markup(tmp_path):
    results(tmp_path / "[red]x" / "results-07.json", "07", e1="passed")
    assert "[red]x" in shown(tmp_path)


def test_an_empty_folder(tmp_path):
    with pytest.raises(LabError, match=r"has no results-NN\.json"):
        collected.collect(tmp_path)


def test_names_and_verdicts_of_files_do_not_reach_the_terminal_as_commands(tmp_path, monkeypatch, capsys):
    evil = "\x1b[2J\x1b[31m\u202e[red]x[-nothing]\\\\"
    about = {"lab": "07", **ABOUT, "exercises": {evil: "passed"}}
    (tmp_path / evil).mkdir()
    (tmp_path / evil / "results-07.json").write_text(json.dumps(about))
    (tmp_path / f"{evil}.json").write_text("{}")
    lab = {"lab": evil, "status": "fail", "because": [evil], "fix": []}
    (tmp_path / "doctor.json").write_text(json.dumps({"ok": True, "labs": [lab]}))
    monkeypatch.setattr("sys.argv", ["lab", "class", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    shown = capsys.readouterr().out
    assert not left.value.code
    assert all(line.isprintable() for line in shown.splitlines())
    assert shown.count("[2J") >= 4
    assert "[-nothing]" in shown


@pytest.mark.parametrize("name", ["ada-results-07.json", "ada.json"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.name)])
def test_what_is_no_file_is_not_waited_for(tmp_path, make, name):
    results(tmp_path / "eve" / "results-07.json", "07", e1="passed")
    make(tmp_path / name)
    text = shown(tmp_path)
    assert "eve" in text
    assert ("Not read" in text) == (make is not Path.mkdir)


def test_folders_without_end_stop_nobody(tmp_path, monkeypatch):
    results(tmp_path / "eve" / "results-07.json", "07", e1="passed")
    (tmp_path / "circle").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(1500):  # deeper than a path can be long
        Path("d").mkdir()
        os.chdir("d")
    try:
        assert "eve" in shown(tmp_path)
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)
