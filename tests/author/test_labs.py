"""Each lab is complete: agenda, minutes, doctor's table, tests."""

import re

import pytest

from labkit.doctor.labs import LABS
from labkit.system import paths
from labkit_author import build, minutes, notebooks, sources

SOURCES = pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)


@SOURCES
def test_lab_is_in_the_agenda(source):
    total = minutes.total(minutes.plan(source))
    line = rf"^\| \[{source.stem[:2]} [^\]]+\]\(notebooks/{source.stem}\.ipynb\) \| .+ \| {total} \|$"
    assert re.search(line, (paths.ROOT / "README.md").read_text(), re.M), f"{source.stem}, {total} minutes: ./lab build"


@SOURCES
def test_head_shows_the_minutes(source):
    assert build.student(source).cells[0].source.count(" minutes: ") == 1
    assert minutes.HEAD not in notebooks.dumps(build.student(source))


@SOURCES
def test_stored_run_waited_as_planned(source):
    stored = build.stored(source)
    stored.cells = [cell for cell in stored.cells if cell.cell_type != "code" or cell.execution_count]  # no new cells
    assert minutes.overruns(source, stored) == []


@SOURCES
def test_lab_waits_for_at_most_six_minutes(source):
    assert sum(section.wait for section in minutes.plan(source)) <= 6


@SOURCES
def test_lab_is_in_the_doctors_table(source):
    assert source.stem[:2] in [lab.name[:2] for lab in LABS], f"{source.stem} is not in the doctor's LABS"


@SOURCES
def test_exercises_are_tested(source):
    tests = paths.ROOT / "tests" / "exercises" / f"test_lab{source.stem[:2]}.py"
    assert tests.exists(), f"{source.stem} has no {paths.shown(tests)}"
    assert "class TestExercises(ThreeWays):" in tests.read_text(), f"{paths.shown(tests)}: ./lab test looks for it"
