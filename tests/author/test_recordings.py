"""A lab's recordings are written by `lab build --record`, and read where a machine can't measure."""

import re
import shutil

import pytest

from labkit.measure import Measured, compare, record, recorded
from labkit.system import paths
from labkit.system.errors import LabError
from labkit.system.load import Contention
from labkit_author import stored

needs_git = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
CELL = """\
from labkit.measure import alternate, record

figures = {"ring": iter([4.0, 5.0, 4.5, 4.0, 5.0, 4.5]), "server": iter([8.0, 9.9, 9.0, 8.1, 10.0, 9.0])}
speeds = alternate({name: figures[name].__next__ for name in figures}, rounds=6, unit="ms", where="section 1")
"""
RECORD = 'record("42-wires", speeds, QUICK, timeline=[[0, 1.5], [1, 2.5]])'


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """Folders for solutions and data; executed cells run in the kit's environment."""
    for name in ("SOLUTIONS", "DATA"):
        monkeypatch.setattr(paths, name, tmp_path)
    monkeypatch.setattr(stored, "problems", lambda *arguments, **options: [])  # the machine may be busy
    return tmp_path


@needs_git
@pytest.mark.slow
def test_a_lab_records_and_another_machine_reads(write_source, kit, monkeypatch, capsys):
    quiet = "import labkit.measure.alternation as a, contextlib\nfrom labkit.system.load import Contention\n"
    quiet += "a.load.watch = lambda where, show: contextlib.nullcontext(Contention(where))\n"
    source = write_source("[markdown]\n# # T", "QUICK = False", quiet + CELL + RECORD)
    assert stored.record(source) == [kit / "recorded/42-wires.json"]
    wires = recorded("42-wires")
    assert re.fullmatch(
        r"Recorded on .+, \d+ cores?, \d{4}-\d\d-\d\d, with commit [0-9a-f]+(-dirty)? of the kit\.\n",
        capsys.readouterr().out,
    )
    assert str(wires.figures["ring"]) == "4.50 ms (4.00 to 5.00), recorded"
    assert str(compare(wires.figures["ring"], wires.figures["server"])) == "2.00× (1.98 to 2.02), recorded: faster"
    assert wires.figures["ring"].source.what == "section 1: ring, server"
    assert wires.data == {"timeline": [[0, 1.5], [1, 2.5]]}


@needs_git
@pytest.mark.slow
def test_a_lab_that_records_nothing_or_in_a_small_run_is_refused(write_source, kit):
    with pytest.raises(LabError, match=r"^lab 42 records nothing: call labkit\.measure\.record"):
        stored.record(write_source("[markdown]\n# # T", "QUICK = False"))
    with pytest.raises(LabError, match="not recorded in a small run"):
        stored.record(write_source("[markdown]\n# # T", f"QUICK = True\n{CELL}{RECORD}"))
    assert not (kit / "recorded").exists()


def test_a_simulated_lack_is_not_recorded(monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_WITHOUT", "torch")
    with pytest.raises(LabError, match="a run without torch is not recorded"):
        stored.record(tmp_path / "42_made_up.py")


def test_figures_of_a_busy_machine_are_not_recorded(monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_RECORD", str(tmp_path))
    figure = Measured(1.0, contention=(Contention("section 1", share=0.4, busy=True),))
    with pytest.raises(LabError, match=r"^42-wires is not recorded: other work used the cores during ring"):
        record("42-wires", {"ring": figure}, quick=False)
    assert list(tmp_path.iterdir()) == []


def test_in_an_ordinary_run_nothing_is_recorded(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    record("42-wires", {"ring": Measured(1.0)}, quick=True)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_damaged_recording_is_one_clear_line(kit):
    with pytest.raises(LabError, match=r"^there is no recording '42-wires', only none\.$"):
        recorded("42-wires")
    (kit / "recorded").mkdir()
    (kit / "recorded/42-wires.json").write_text("{")
    with pytest.raises(LabError, match=r"^data/recorded/42-wires\.json is damaged: restore it with git\.$"):
        recorded("42-wires")
