"""A class's progress is read from the files handed in, whatever they contain."""

import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from lab_command import run_lab
from rich.console import Console

from labkit.doctor import checks
from labkit.system import files
from labkit.system.errors import LabError
from labkit_classroom.lecture import collected

ABOUT = {"quick": False, "when": "2026-12-01 10:00", "on": {"cpu": "x"}}
DOCTOR = {"ok": True, "labs": [{"lab": "07 Horovod", "status": "fail", "because": ["memory"], "fix": []}]}


def of_lab(lab: str, **exercises: str) -> str:
    return json.dumps({"lab": lab, **ABOUT, "exercises": {name[1:]: text for name, text in exercises.items()}})


def results(path: Path, lab: str, **exercises: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(of_lab(lab, **exercises))


def make_zip(path: Path, **contents: str | bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def shown(folder: Path) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for table in collected.tables(collected.collect(folder)):
        console.print(table)
    return console.export_text()


def lines_of(text: str) -> dict[str, list[str]]:
    """Return the table of exercises, as cells by student."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows}


def test_students_are_folders_zips_or_file_name_prefixes(tmp_path):
    results(tmp_path / "ada" / "work" / "results-07.json", "07", e1="passed", e2="not yet")
    results(tmp_path / "bob-results-07.json", "07", e1="passed")
    make_zip(tmp_path / "eve-results (1).zip", **{"work/results-07.json": of_lab("07", e2="passed")})
    (tmp_path / "upload").mkdir()
    make_zip(tmp_path / "upload" / "dan-results.zip", **{"work/results-07.json": of_lab("07")})
    lines = lines_of(shown(tmp_path))
    assert (lines["ada"], lines["bob"], lines["eve"], lines["upload / dan"]) == (["1"], ["1"], ["2"], ["–"])
    assert lines["passed by"][0].startswith("1: 2, 2: 1, 3: 0")


def test_machines_come_from_doctor_reports(tmp_path):
    for name, status in (("ada", "ok"), ("bob", "fail"), ("eve", "warn")):
        lab = {"lab": "07 Horovod", "status": status, "because": ["memory"], "fix": []}
        (tmp_path / f"{name}.json").write_text(json.dumps({"ok": True, "labs": [lab]}))
    text = shown(tmp_path)
    assert "2 of 3" in text
    assert "bob (memory)" in text


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b'{"labs": 3}', b'{"labs": [{"lab": 1}]}', b"null"])
def test_unreadable_files_are_listed_and_the_rest_is_shown(tmp_path, content):
    results(tmp_path / "ada" / "results-07.json", "07", e1="passed")
    (tmp_path / "odd.json").write_bytes(content)
    (tmp_path / "eve-results-07.json").write_bytes(content)
    make_zip(tmp_path / "bob-results.zip", **{"work/results-07.json": content})
    (tmp_path / "dan-results.zip").write_bytes(content)
    text = shown(tmp_path)
    assert {"ada", "bob", "dan"} <= set(lines_of(text))
    assert "Not read: dan-results.zip" in text
    assert "Not read: odd.json" in text
    assert "Not read: eve-results-07.json" in text
    assert "Not read: bob-results.zip, work/results-07.json" in text


def test_only_expected_files_of_limited_size_are_read_from_a_zip(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 10_000)
    names = ["../results-07.json", "/results-07.json", "work/../../results-07.json", "x/work/results-07.json"]
    make_zip(
        tmp_path / "ada-results.zip",
        **dict.fromkeys(names, of_lab("07", e1="passed")),
        **{"work/results-00.json": of_lab("00", e1="passed")},
    )
    make_zip(tmp_path / "eve-results.zip", **{"work/results-00.json": b" " * 20_000})
    before = sorted(tmp_path.rglob("*"))
    results_read = collected.collect(tmp_path)
    assert {key: results_read.passed(*key) for key in results_read.results} == {("ada", "00"): [1]}
    assert results_read.unread == ["eve-results.zip"]
    assert sorted(tmp_path.rglob("*")) == before


BOMB_BYTES = 256 * 2**20
# Runs `labkit class FOLDER`, then prints its peak memory. A child's ru_maxrss includes its parent's, from before exec.
CLASS_AND_PEAK = """
import atexit, pathlib, re, sys
from labkit.cli import main
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]))
sys.argv[1:] = ["class", sys.argv[1]]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_zip_bomb_that_claims_to_be_small_is_not_unpacked(tmp_path, method):
    results(tmp_path / "ada" / "results-07.json", "07", e1="passed")
    bomb = tmp_path / "eve-results.zip"
    with zipfile.ZipFile(bomb, "w", method, compresslevel=1) as archive, archive.open("doctor.json", "w") as inside:
        for _ in range(BOMB_BYTES // 2**20):
            inside.write(bytes(2**20))
    bomb.write_bytes(bomb.read_bytes().replace(struct.pack("<L", BOMB_BYTES), struct.pack("<L", 100)))
    with zipfile.ZipFile(bomb) as archive:
        assert archive.infolist()[0].file_size == 100
    command = [sys.executable, "-c", CLASS_AND_PEAK, tmp_path]
    *output, peak_kib = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    assert "Not read: eve-results.zip" in "\n".join(output)
    assert int(peak_kib) * 1024 < BOMB_BYTES


def test_escape_sequences_in_files_do_not_reach_the_terminal(tmp_path, capsys):
    evil = "\x1b[2J\x1b[31m\u202e[red]x[-nothing]\\\\"
    about = {"lab": "07", **ABOUT, "exercises": {evil: "passed"}}
    (tmp_path / evil).mkdir()
    (tmp_path / evil / "results-07.json").write_text(json.dumps(about))
    (tmp_path / f"{evil}.json").write_text("{}")
    lab = {"lab": evil, "status": "fail", "because": [evil], "fix": []}
    (tmp_path / "doctor.json").write_text(json.dumps({"ok": True, "labs": [lab]}))
    assert run_lab("class", str(tmp_path)) == 0
    text = capsys.readouterr().out
    assert all(line.isprintable() for line in text.splitlines())
    assert text.count("[2J") >= 3
    assert "[-nothing]" in text


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to(path.name)])
def test_pipes_and_link_loops_do_not_block(tmp_path, make):
    results(tmp_path / "eve" / "results-07.json", "07", e1="passed")
    make(tmp_path / "ada-results-07.json")
    (tmp_path / "circle").symlink_to(tmp_path)
    text = shown(tmp_path)
    assert lines_of(text)["eve"] == ["1"]
    assert "Not read: ada-results-07.json" in text


def test_all_students_are_listed_and_the_kits_files_are_ignored(tmp_path):
    for seat in ("seat-01", "seat-02"):
        (tmp_path / seat / ".local").mkdir(parents=True)
        for name in (".room.json", ".lab-copies.json", ".local/limits.json"):
            (tmp_path / seat / name).write_text("{}")
    results(tmp_path / "seat-01" / "work" / "results-00.json", "00", e1="passed")
    (tmp_path / "seat-01" / "work" / "timeline.json").write_text("[]")
    (tmp_path / "seat-01" / "other.json").write_text("[]")
    for name in ("__MACOSX/seat-01/work/._results-00.json", "seat-01/work/._results-00.json", "seat-01/.DS_Store"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    results(tmp_path / "seat-01" / "work" / "results-77.json", "77", e1="passed")  # an unknown lab
    text = shown(tmp_path)
    assert lines_of(text)["seat-01"] == ["1"]
    assert lines_of(text)["seat-02"] == ["–"]
    assert "MACOSX" not in text
    unread = [line.removeprefix("Not read: ") for line in text.splitlines() if line.startswith("Not read")]
    assert unread == ["seat-01/other.json", "seat-01/work/results-77.json"]


def test_an_exercise_passed_in_one_of_two_files_stays_passed(tmp_path):
    make_zip(tmp_path / "ada-results (1).zip", **{"work/results-00.json": of_lab("00", e1="passed", e2="passed")})
    make_zip(tmp_path / "ada-results.zip", **{"work/results-00.json": of_lab("00", e1="passed", e2="not yet")})
    assert collected.collect(tmp_path).passed("ada", "00") == [1, 2]


def test_an_empty_folder_is_reported(tmp_path):
    with pytest.raises(LabError, match=r"has no results-NN\.json"):
        collected.collect(tmp_path)


class TestHandedIn:
    """A student's zip, written and read."""

    @pytest.fixture
    def own(self, tmp_path, monkeypatch):
        """Return a student's folder, on a machine that the doctor has examined."""
        monkeypatch.setattr(checks, "examine", lambda: type("Report", (), {"as_dict": lambda self: DOCTOR})())
        monkeypatch.delenv("LAB_SEAT", raising=False)
        folder = tmp_path / "own"
        results(folder / "work" / "results-00.json", "00", e1="passed")
        results(folder / "work" / "results-07.json", "07", e1="passed", e2="not yet")
        return folder

    def test_it_contains_only_results_and_the_doctors_verdict(self, own, capsys):
        (own / ".room.json").write_text('{"token": "secret"}')
        (own / "work" / "results-99.txt").write_text("secret")
        (own / "work" / "results-01.json").write_text('{"token": "secret"}')
        (own / "work" / "timeline.json").write_text("[]")
        (own / "07_horovod_mnist.ipynb").write_text("{}")
        assert run_lab("class", "--zip", "--name", "ada", "--folder", str(own)) == 0
        with zipfile.ZipFile(own / "ada-results.zip") as archive:
            assert archive.namelist() == ["work/results-00.json", "work/results-07.json", "doctor.json"]
            assert not any(b"secret" in archive.read(name) for name in archive.namelist())
            assert json.loads(archive.read("doctor.json")) == DOCTOR
        assert "ada-results.zip with work/results-00.json, work/results-07.json, doctor.json" in capsys.readouterr().out

    def test_the_class_reads_it(self, own, tmp_path):
        run_lab("class", "--zip", "--name", "ada", "--folder", str(own))
        (tmp_path / "class").mkdir()
        (own / "ada-results.zip").rename(tmp_path / "class" / "ada-results (1).zip")
        text = shown(tmp_path / "class")
        assert lines_of(text)["ada"] == ["1", "1"]
        assert "ada (memory)" in text
        assert "Not read" not in text

    def test_the_default_name_is_the_accounts_or_the_seats(self, own, monkeypatch):
        monkeypatch.setattr("getpass.getuser", lambda: "bob")
        run_lab("class", "--zip", "--folder", str(own))
        monkeypatch.setenv("LAB_SEAT", "seat-03")
        run_lab("class", "--zip", "--folder", str(own))
        assert {file.name for file in own.glob("*.zip")} == {"bob-results.zip", "seat-03-results.zip"}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--zip", "--name", "../ada"), "a name may contain letters"),
            (("--zip", "--name", ".ada"), "a name may contain letters"),
            (("--zip", "--name", "a\x1b[2J"), "a name may contain letters"),
            (("--zip", "--folder", "/nowhere"), "there are no results in /nowhere/work"),
            ((), "students type ./lab class --zip"),
            (("--zip", "collected"), "students type ./lab class --zip"),
        ],
    )
    def test_invalid_requests_give_a_one_line_error_without_calling_the_doctor(
        self, monkeypatch, capsys, arguments, message
    ):
        monkeypatch.setattr(checks, "examine", lambda: pytest.fail("it takes half a minute"))
        monkeypatch.setenv("LAB_SEAT", "ada")
        assert run_lab("class", *arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize("error", [KeyError("uid not found: 1"), OSError("No username set in the environment")])
def test_an_account_without_a_name_is_reported(tmp_path, monkeypatch, capsys, error):
    """For example, in a container with a numeric user; Python 3.13 raises a different error than 3.11."""
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(error))
    assert run_lab("class", "--zip", "--folder", str(tmp_path)) == 2
    assert capsys.readouterr().err == "lab: your account has no name on this machine: give your name with --name.\n"
