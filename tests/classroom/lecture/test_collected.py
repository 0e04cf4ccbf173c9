"""A class is read from whatever files were handed in, hostile ones too."""

import csv
import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from labkit import cli
from labkit.doctor import checks
from labkit.exercises import sources
from labkit.system.errors import LabError
from labkit_classroom.lecture import collected, grades, handed_in

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


DOCTOR = {"ok": True, "labs": [{"lab": "07 Horovod", "status": "fail", "because": ["memory"], "fix": []}]}


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["lab", "class", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code or 0


def make_zip(path: Path, **contents: str | bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            packed.writestr(name, content)


def of_lab(lab: str, **exercises: str) -> str:
    return json.dumps({"lab": lab, **ABOUT, "exercises": {name[1:]: text for name, text in exercises.items()}})


def lines_of(text: str) -> dict[str, list[str]]:
    """Return the table of exercises: the cells of each student."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return {row[0]: row[1:] for row in rows}


class TestHandedIn:
    """A student's zip, made and read."""

    @pytest.fixture
    def own(self, tmp_path, monkeypatch):
        """Return a student's folder, on a machine that the doctor has looked at."""
        monkeypatch.setattr(checks, "examine", lambda: type("Report", (), {"as_dict": lambda self: DOCTOR})())
        monkeypatch.delenv("LAB_SEAT", raising=False)
        own = tmp_path / "own"
        results(own / "work" / "results-00.json", "00", e1="passed")
        results(own / "work" / "results-07.json", "07", e1="passed", e2="not yet")
        return own

    def test_it_has_results_and_the_doctors_verdict_and_nothing_else(self, own, monkeypatch, capsys):
        (own / ".room.json").write_text('{"token": "secret"}')
        (own / "work" / "results-99.txt").write_text("secret")
        (own / "work" / "results-01.json").write_text('{"token": "secret"}')
        (own / "work" / "timeline.json").write_text("[]")
        (own / "07_horovod_mnist.ipynb").write_text("{}")
        assert run(monkeypatch, "--zip", "--name", "ada", "--folder", str(own)) == 0
        with zipfile.ZipFile(own / "ada-results.zip") as packed:
            assert packed.namelist() == ["work/results-00.json", "work/results-07.json", "doctor.json"]
            assert not any(b"secret" in packed.read(name) for name in packed.namelist())
            assert json.loads(packed.read("doctor.json")) == DOCTOR
        assert (
            "ada-results.zip, with work/results-00.json, work/results-07.json, doctor.json" in capsys.readouterr().out
        )

    def test_the_class_reads_it(self, own, tmp_path, monkeypatch):
        run(monkeypatch, "--zip", "--name", "ada", "--folder", str(own))
        (tmp_path / "class").mkdir()
        (own / "ada-results.zip").rename(tmp_path / "class" / "ada-results (1).zip")
        text = shown(tmp_path / "class")
        assert lines_of(text)["ada"] == ["1", "1"]
        assert "ada (memory)" in text
        assert "Not read" not in text

    def test_without_a_name_it_has_the_accounts_and_on_a_hub_the_seats(self, own, monkeypatch):
        monkeypatch.setattr("getpass.getuser", lambda: "bob")
        run(monkeypatch, "--zip", "--folder", str(own))
        monkeypatch.setenv("LAB_SEAT", "seat-03")
        run(monkeypatch, "--zip", "--folder", str(own))
        assert {file.name for file in own.glob("*.zip")} == {"bob-results.zip", "seat-03-results.zip"}

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (("--zip", "--name", "../ada"), "a name has letters"),
            (("--zip", "--name", ".ada"), "a name has letters"),
            (("--zip", "--name", "a\x1b[2J"), "a name has letters"),
            (("--zip", "--folder", "/nowhere"), "no lab has left results in /nowhere/work"),
            ((), "name the folder with all zips"),
            (("--zip", "collected"), "name the folder with all zips"),
        ],
    )
    def test_what_cannot_be_is_one_line_and_no_doctor_is_called(self, monkeypatch, capsys, arguments, told):
        monkeypatch.setattr(checks, "examine", lambda: pytest.fail("it takes half a minute"))
        monkeypatch.setenv("LAB_SEAT", "ada")
        assert run(monkeypatch, *arguments) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1


class TestHostileZips:
    """A zip is not trusted."""

    def test_only_the_names_that_a_student_hands_in_are_read_and_nothing_is_written(self, tmp_path):
        class_folder = tmp_path / "class"
        class_folder.mkdir()
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w") as packed:
            packed.writestr("work/results-00.json", of_lab("00", e3="passed"))
        names = ["../results-07.json", "/results-07.json", "work/../../results-07.json", "x/work/results-07.json"]
        make_zip(
            class_folder / "ada-results.zip",
            **dict.fromkeys(names, of_lab("07", e1="passed")),
            **{"work/results-00.json": of_lab("00", e1="passed"), "eve-results.zip": inner.getvalue()},
        )
        before = sorted(tmp_path.rglob("*"))
        found = collected.collect(class_folder)
        assert {key: found.passed(*key) for key in found.results} == {("ada", "00"): ["1"]}
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_bomb_is_named_and_its_student_listed(self, tmp_path, monkeypatch):
        monkeypatch.setattr(handed_in, "MAX_BYTES", 10_000)
        make_zip(tmp_path / "ada-results.zip", **{"work/results-00.json": of_lab("00", e1="passed")})
        make_zip(tmp_path / "eve-results.zip", **{"work/results-00.json": b" " * 20_000})
        make_zip(
            tmp_path / "bob-results.zip",
            **{f"work/results-0{number}.json": b" " * 4_000 for number in range(4)},  # together
        )
        text = shown(tmp_path)
        lines = lines_of(text)
        assert (lines["ada"], lines["bob"], lines["eve"]) == (["1"], ["–"], ["–"])
        assert "Not read: eve-results.zip" in text
        assert "Not read: bob-results.zip" in text

    def test_one_with_a_great_many_files_is_not_read(self, tmp_path):
        make_zip(tmp_path / "ada-results.zip", **{"work/results-00.json": of_lab("00", e1="passed")})
        many = {f"x{number}": b"" for number in range(handed_in.MAX_FILES)}
        make_zip(tmp_path / "eve-results.zip", **many, **{"work/results-00.json": of_lab("00", e1="passed")})
        assert "Not read: eve-results.zip" in shown(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"PK", b"\xff" * 1000, b"PK\x05\x06" + bytes(18)])
    def test_what_is_no_zip_is_named(self, tmp_path, content):
        results(tmp_path / "ada" / "work" / "results-00.json", "00", e1="passed")
        (tmp_path / "eve-results.zip").write_bytes(content)
        text = shown(tmp_path)
        assert "Not read: eve-results.zip" in text
        assert lines_of(text)["eve"] == ["–"]

    def test_a_zip_that_is_too_large_is_not_opened(self, tmp_path, monkeypatch):
        results(tmp_path / "ada" / "work" / "results-00.json", "00", e1="passed")
        make_zip(tmp_path / "eve-results.zip", **{"work/results-00.json": of_lab("00", e1="passed")})
        monkeypatch.setattr(handed_in, "MAX_ZIP_BYTES", 10)
        assert "Not read: eve-results.zip" in shown(tmp_path)

    def test_a_lab_that_is_not_there_stops_nobody(self, tmp_path):
        results(tmp_path / "ada" / "work" / "results-00.json", "00", e1="passed")
        results(tmp_path / "eve" / "work" / "results-77.json", "77", e1="passed")
        assert "Not read: eve/work/results-77.json" in shown(tmp_path)


def test_everybody_is_listed_and_the_kits_own_files_are_not_mentioned(tmp_path):
    for seat in ("seat-01", "seat-02"):
        (tmp_path / seat / ".local").mkdir(parents=True)
        for name in (".room.json", ".lab-copies.json", ".local/limits.json"):
            (tmp_path / seat / name).write_text("{}")
    results(tmp_path / "seat-01" / "work" / "results-00.json", "00", e1="passed")
    (tmp_path / "seat-01" / "work" / "timeline.json").write_text("[]")
    (tmp_path / "seat-01" / "other.json").write_text("[]")
    text = shown(tmp_path)
    assert lines_of(text)["seat-01"] == ["1"]
    assert lines_of(text)["seat-02"] == ["–"]
    assert [line for line in text.splitlines() if line.startswith("Not read")] == ["Not read: seat-01/other.json"]


def test_what_was_passed_in_one_of_two_files_stays_passed(tmp_path):
    make_zip(tmp_path / "ada-results (1).zip", **{"work/results-00.json": of_lab("00", e1="passed", e2="passed")})
    make_zip(tmp_path / "ada-results.zip", **{"work/results-00.json": of_lab("00", e1="passed", e2="not yet")})
    assert collected.collect(tmp_path).passed("ada", "00") == ["1", "2"]


class TestGrades:
    """Points for credit, as nbgrader exports them."""

    def rows(self, folder: Path) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(grades.as_csv(collected.collect(folder)))))

    def test_the_columns_are_nbgraders(self):
        from nbgrader.plugins import export

        source = Path(export.__file__).read_text()
        keys = source.partition("keys = [")[2].partition("]")[0]
        assert tuple(json.loads(f"[{keys}]")) == grades.COLUMNS

    def test_an_exercise_is_a_point_and_who_handed_in_nothing_has_none(self, tmp_path):
        results(
            tmp_path / "ada" / "work" / "results-00.json", "00", e1="passed", e2="not yet", e3="passed", e99="passed"
        )
        (tmp_path / "bob").mkdir()
        exercises = len(sources.exercises(sources.read(sources.find("00"))))
        ada, bob = self.rows(tmp_path)
        assert (ada["student_id"], ada["assignment"], ada["timestamp"]) == ("ada", "00_welcome", "2026-12-01 10:00:00")
        assert (ada["score"], ada["raw_score"], ada["max_score"]) == ("2.0", "2.0", f"{exercises}.0")
        assert (bob["student_id"], bob["timestamp"], bob["score"]) == ("bob", "", "0.0")

    @pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "＝1"])
    def test_no_name_is_a_formula(self, tmp_path, name):
        results(tmp_path / name / "results-00.json", "00", e1="passed")
        (row,) = self.rows(tmp_path)
        assert row["student_id"] == f"'{name}"

    def test_names_with_commas_quotes_and_bytes_stay_one_field(self, tmp_path):
        name = 'Lovelace, "Ada"\n\udcff'
        results(tmp_path / name / "results-00.json", "00", e1="passed")
        (row,) = self.rows(tmp_path)
        assert row["student_id"] == 'Lovelace, "Ada"\n?'

    def test_a_time_that_is_none_is_left_out(self, tmp_path):
        odd = {"lab": "00", **ABOUT, "when": "=1+1", "exercises": {}}
        (tmp_path / "ada-results-00.json").write_text(json.dumps(odd))
        assert self.rows(tmp_path)[0]["timestamp"] == ""

    def test_the_command_writes_it(self, tmp_path, monkeypatch, capsys):
        results(tmp_path / "class" / "ada-results-00.json", "00", e1="passed")
        out = tmp_path / "grades.csv"
        assert run(monkeypatch, str(tmp_path / "class"), "--csv", str(out)) == 0
        assert out.read_text().startswith("assignment,duedate,timestamp,student_id,")
        assert str(out) in capsys.readouterr().out
