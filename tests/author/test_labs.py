"""Each lab is complete: minutes, stored run, tests."""

import pytest

from labkit.system import paths
from labkit_author import build, minutes, notebooks, sources

SOURCES = pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)


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
def test_exercises_are_tested(source):
    tests = paths.ROOT / "tests" / "exercises" / f"test_lab{source.stem[:2]}.py"
    assert tests.exists(), f"{source.stem} has no {paths.shown(tests)}"
    assert "class TestExercises(ThreeWays):" in tests.read_text(), f"{paths.shown(tests)}: ./lab test looks for it"
