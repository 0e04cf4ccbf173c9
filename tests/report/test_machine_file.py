"""A complete run becomes a file for others to compare with; anything less is refused by lab and row."""

import json
import platform
from types import SimpleNamespace

import pytest

from labkit.display import machines
from labkit.display.measured import Measured
from labkit.display.results import NotMeasured, row
from labkit.exercises import catalogue
from labkit.report import machine
from labkit.roofline import measure
from labkit.roofline.measure import Limits, Product
from labkit.system.errors import LabError
from labkit.system.load import Others
from labkit_author import build, sources
from labkit_author import machines as tables

ON = {"cpu": "AMD EPYC", "cores": 2, "memory": "8 GiB", "instruction sets": "AVX2, AVX-512", "software": "numpy 2"}
TWICE = Measured(2.1, 1.9, 2.3, "×", digits=1)
BUSY = Others("section 8", share=0.9, busy=True)


def leave(folder, lab, *rows, **differences):
    table = {"what": "speed", "rows": [row(*each) for each in rows or [("CNN", "4×", TWICE, "3×")]], "notes": []}
    about = {"lab": lab, "quick": False, "when": "2026-01-31 12:00", "on": ON, "table": table}
    kept = {key: value for key, value in (about | differences).items() if value is not None}
    (folder / f"results-{lab}.json").write_text(json.dumps(kept))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the results of complete runs of all labs, on a machine of made-up limits."""
    for lab in catalogue.labs():
        if lab.number != "00":
            leave(tmp_path, lab.number)
    leave(tmp_path, "00", table=None)
    kinds = ("float32", "bfloat16", "int8")
    products = {kind: [Product("TensorFlow", 4096, 520.0)] for kind in kinds}
    paper = {"float32": {"instruction": "AVX-512 VFMADD", "speed": 570.0}}
    limits = Limits(products, paper, {"read": 85.0}, Others(by=("a secret program",)), "2026-01-31", ("AVX2",))
    monkeypatch.setattr(measure, "limits", lambda: limits)
    monkeypatch.setattr(machines, "FOLDER", tmp_path / "machines")
    machines.FOLDER.mkdir()
    return tmp_path


def test_a_complete_run_is_machine_limits_and_tables(folder):
    kept = machine.collect(folder)
    assert kept["on"] == ON
    assert kept["when"] == "2026-01-31"
    assert kept["limits"]["peaks"]["float32"] == 520
    assert kept["limits"]["instructions"]["float32"] == {"instruction": "AVX-512 VFMADD", "speed": 570}
    assert kept["limits"]["bandwidth"] == 85
    assert kept["labs"].keys() == {lab.number for lab in catalogue.labs()} - {"00"}
    assert kept["labs"]["02"]["rows"][0]["texts"] == ["CNN", "4×", "2.1× (1.9 to 2.3)", "3×"]
    assert kept["labs"]["02"]["rows"][0]["numbers"] == {"value": 2.1, "interval": [1.9, 2.3], "unit": "×"}
    (machines.FOLDER / "epyc.json").write_text(json.dumps(kept))
    assert machines.read_all() == [kept]


def test_it_names_no_host_and_no_programs(folder):
    text = json.dumps(machine.collect(folder))
    for secret in (platform.node(), "secret", str(folder)):
        assert f'"{secret}' not in text
        assert f"{secret}/" not in text


@pytest.mark.parametrize(
    ("rows", "differences", "told"),
    [
        ((), {"quick": True}, "lab 03: a small run"),
        ((), {"table": None}, "lab 03: no closing table yet"),
        ([("CNN", "", TWICE, "", BUSY), ("more", "", TWICE, "")], {}, "lab 03: disturbed by other work: CNN"),
        ([("CNN", "", NotMeasured("4"), "")], {}, "lab 03: CNN: not measured (section 4)"),
    ],
)
def test_what_is_not_a_complete_run_is_refused(folder, rows, differences, told):
    leave(folder, "03", *rows, **differences)
    leave(folder, "05", quick=True)
    with pytest.raises(LabError) as refused:
        machine.collect(folder)
    assert str(refused.value) == f"these are not complete runs on an idle machine. {told}; lab 05: a small run."


def test_labs_that_were_not_run_are_left_out(folder):
    (folder / "results-05.json").unlink()
    assert "05" not in machine.collect(folder)["labs"]
    for lab in machine.collect(folder)["labs"]:
        (folder / f"results-{lab}.json").unlink()
    with pytest.raises(LabError, match="no lab has left a closing table"):
        machine.collect(folder)


def test_labs_of_two_machines_are_refused(folder):
    leave(folder, "03", on=ON | {"cores": 4})
    with pytest.raises(LabError, match="lab 03 ran on another machine or with other software"):
        machine.collect(folder)


def test_limits_of_a_busy_machine_are_refused(folder, monkeypatch):
    monkeypatch.setattr(measure, "limits", lambda: SimpleNamespace(others=BUSY))
    with pytest.raises(LabError, match="lab roofline --again"):
        machine.collect(folder)


def test_only_lab_00_has_no_closing_table():
    without = [lab.number for lab in catalogue.labs() if machine.HAS_TABLE not in lab.notebook.read_text()]
    assert without == ["00"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda kept: kept.pop("on"), "on"),
        (lambda kept: kept["limits"]["peaks"].clear(), "float32"),
        (lambda kept: kept["limits"]["instructions"]["float32"].update(speed=0), "speed"),
        (lambda kept: kept.update(when="yesterday"), "when"),
        (lambda kept: kept.update(host="node17"), "properties"),
        (lambda kept: kept["labs"]["02"]["rows"][0].pop("busy"), "lab 02: its 'table' is not what a lab writes"),
        (lambda kept: kept["labs"].update(two={}), "labs"),
    ],
)
def test_a_file_that_was_changed_by_hand_is_named(folder, change, told):
    kept = machine.collect(folder)
    change(kept)
    (machines.FOLDER / "epyc.json").write_text(json.dumps(kept))
    with pytest.raises(LabError, match=r"epyc\.json is not what ./lab report --json writes") as refused:
        machines.read_all()
    assert told in str(refused.value)


def test_no_json_is_named_too(folder):
    (machines.FOLDER / "epyc.json").write_text("{")
    with pytest.raises(LabError, match=r"epyc\.json is not what"):
        machines.read_all()


def test_the_machines_of_this_checkout_can_be_read():
    for kept in machines.read_all():
        assert kept["labs"]


# --- What is made of them: labkit_author.machines ---


def test_a_column_for_each_machine_a_row_for_each_figure(folder):
    leave(folder, "02", ("CNN", "", TWICE, ""), ("blocks", "", "chunk", ""))
    kept = machine.collect(folder)
    (machines.FOLDER / "a.json").write_text(json.dumps(kept))
    kept["on"] = ON | {"cpu": "Intel Xeon", "cores": 4}
    kept["labs"]["02"]["rows"][1:] = [row("bits", "", Measured(3, unit="×", digits=0), "")]
    (machines.FOLDER / "b.json").write_text(json.dumps(kept))
    assert machines.table("02").splitlines() == [
        "|  | AMD EPYC, 2 cores, AVX2, AVX-512 (2026-01-31) | Intel Xeon, 4 cores, AVX2, AVX-512 (2026-01-31) |",
        "| --- | --- | --- |",
        "| CNN | 2.1× (1.9 to 2.3) | 2.1× (1.9 to 2.3) |",
        "| blocks | chunk | – |",
        "| bits | – | 3× |",
    ]
    assert machines.table("02", about="bi").splitlines() == [
        "|  | Intel Xeon, 4 cores, AVX2, AVX-512 (2026-01-31) |",
        "| --- | --- |",
        "| bits | 3× |",
    ]
    assert "## 02 · oneDNN under an MNIST CNN\n\n|  | AMD EPYC" in tables.page()
    assert "## 00 ·" not in tables.page()


def test_the_notes_of_a_lab_end_in_its_table(folder):
    source = sources.find("02")
    bare = build.solution(source)
    (machines.FOLDER / "a.json").write_text(json.dumps(machine.collect(folder)))
    *cells, last = build.solution(source).cells
    assert cells == bare.cells
    assert last.metadata.tags == ["instructor"]
    assert last.source == f"### On other machines\n\n{machines.table('02')}"
    assert "On other machines" not in str(build.student(source).cells[-1])
    assert build.solution(sources.find("00")).cells[-1].id != last.id


def test_without_machines_there_is_no_table_and_the_page_says_so(folder):
    assert machines.table("02") == ""
    assert tables.page().endswith("No results yet.\n")


def test_the_page_is_what_the_machines_say():
    assert tables.PAGE.read_text() == tables.page(), "run ./lab build"
