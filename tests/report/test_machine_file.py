"""Tests of exporting complete runs for comparison; incomplete ones are refused by lab and row."""

import json
import platform
from types import SimpleNamespace

import pytest

from labkit.display.results import NotMeasured, row
from labkit.exercises import catalogue
from labkit.measure.figures import Measured
from labkit.report import machine
from labkit.roofline import measure
from labkit.roofline.measure import Limits, Matmul
from labkit.system.errors import LabError
from labkit.system.load import Contention

ON = {"cpu": "AMD EPYC", "cores": 2, "memory": "8 GiB", "instruction sets": "AVX2, AVX-512", "software": "numpy 2"}
TWICE = Measured(2.1, 1.9, 2.3, "×", digits=1)
BUSY = Contention("section 8", share=0.9, busy=True)
DISTURBED = Measured(2.1, 1.9, 2.3, "×", digits=1, contention=(BUSY,))


def write_results(folder, lab, *rows, **differences):
    table = {"what": "speed", "rows": [row(*values) for values in rows or [("CNN", "4×", TWICE, "3×")]], "notes": []}
    about = {"lab": lab, "quick": False, "when": "2026-01-31 12:00", "on": ON, "table": table}
    results = {key: value for key, value in (about | differences).items() if value is not None}
    (folder / f"results-{lab}.json").write_text(json.dumps(results))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder with results of complete runs of all labs, on a machine with synthetic limits."""
    for lab in catalogue.labs():
        write_results(tmp_path, lab.number)
    kinds = ("float32", "bfloat16", "int8")
    products = {kind: [Matmul("TensorFlow", 4096, 520.0)] for kind in kinds}
    paper = {"float32": {"instruction": "AVX-512 VFMADD", "speed": 570.0}}
    limits = Limits(products, paper, {"read": 85.0}, Contention(by=("a secret program",)), "2026-01-31", ("AVX2",))
    monkeypatch.setattr(measure, "limits", lambda: limits)
    return tmp_path


def test_a_complete_run_has_machine_limits_and_tables(folder):
    export = machine.collect(folder)
    assert export["on"] == ON
    assert export["when"] == "2026-01-31"
    assert export["limits"]["peaks"]["float32"] == 520
    assert export["limits"]["instructions"]["float32"] == {"instruction": "AVX-512 VFMADD", "speed": 570}
    assert export["limits"]["bandwidth"] == 85
    assert export["labs"].keys() == {lab.number for lab in catalogue.labs()}
    assert export["labs"]["02"]["rows"][0]["texts"] == ["CNN", "4×", "2.1× (1.9 to 2.3)", "3×"]
    assert export["labs"]["02"]["rows"][0]["numbers"] == {"value": 2.1, "interval": [1.9, 2.3], "unit": "×"}


def test_the_export_names_no_hosts_and_no_programs(folder):
    text = json.dumps(machine.collect(folder))
    for secret in (platform.node(), "secret", str(folder)):
        assert f'"{secret}' not in text
        assert f"{secret}/" not in text


@pytest.mark.parametrize(
    ("rows", "differences", "problem"),
    [
        ((), {"quick": True}, "lab 03: a small test run"),
        ((), {"table": None}, "lab 03: no closing table yet"),
        ([("CNN", "", DISTURBED, ""), ("more", "", TWICE, "")], {}, "lab 03: disturbed by other work: CNN"),
        ([("CNN", "", NotMeasured("4"), "")], {}, "lab 03: CNN: not measured (section 4)"),
    ],
)
def test_incomplete_runs_are_refused(folder, rows, differences, problem):
    write_results(folder, "03", *rows, **differences)
    write_results(folder, "05", quick=True)
    with pytest.raises(LabError) as refused:
        machine.collect(folder)
    assert str(refused.value).startswith(f"can't export: {problem}; lab 05: a small test run. Run these labs in full")


def test_labs_that_were_not_run_are_left_out(folder):
    (folder / "results-05.json").unlink()
    assert "05" not in machine.collect(folder)["labs"]
    for lab in machine.collect(folder)["labs"]:
        (folder / f"results-{lab}.json").unlink()
    with pytest.raises(LabError, match="there are no results in"):
        machine.collect(folder)


def test_labs_of_two_machines_are_refused(folder):
    write_results(folder, "03", on=ON | {"cores": 4})
    with pytest.raises(LabError, match="lab 03 ran on another machine or software"):
        machine.collect(folder)


def test_limits_of_a_busy_machine_are_refused(folder, monkeypatch):
    monkeypatch.setattr(measure, "limits", lambda: SimpleNamespace(others=BUSY))
    with pytest.raises(LabError, match="lab roofline --again"):
        machine.collect(folder)


def test_all_labs_have_a_closing_table():
    assert [lab.number for lab in catalogue.labs() if machine.HAS_TABLE not in lab.notebook.read_text()] == []
