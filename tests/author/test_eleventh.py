"""A lab and an exercise whose numbers nobody had when the kit was written work as the others do."""

import importlib.util
import json
import shutil
import sys

import pytest

from labkit.display.results import PASSED, Results
from labkit.exercises import minutes, notebooks, sources
from labkit.report import page
from labkit.system import paths
from labkit_author import build, lint, scaffold, testing
from labkit_classroom.board import protocol, seat
from labkit_classroom.lecture import catch_up, guide, routes

NUMBER, COUNT = "42", 11


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The folder of a copy of what a lab touches, with a lab of eleven exercises."""
    folder = tmp_path_factory.mktemp("kit")
    for name in ("solutions", "labkit", "docs", "tests/exercises"):
        shutil.copytree(
            paths.ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.ipynb", "__pycache__", "work")
        )
    for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(paths.ROOT / name, folder)
    (folder / "notebooks").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "ROOT": folder,
            "SOLUTIONS": folder / "solutions",
            "NOTEBOOKS": folder / "notebooks",
        }.items():
            patch.setattr(paths, name, value)
        source, *_ = scaffold.new_lab(NUMBER, "made_up")
        for _ in range(COUNT - 1):
            scaffold.new_exercise(source)
        name = f"labkit.exercises.lab{NUMBER}"
        spec = importlib.util.spec_from_file_location(name, folder / "labkit" / "exercises" / f"lab{NUMBER}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        patch.setitem(sys.modules, name, module)
        build.build(source)
        yield folder


@pytest.fixture
def source(kit):
    return sources.find(NUMBER)


def test_it_is_well_made_and_its_head_counts_its_exercises(source):
    assert lint.lint(source) == []
    assert f"10 for {COUNT} exercises" in notebooks.student(source).cells[0].source


def test_it_has_its_line_in_the_agenda(source):
    readme = paths.ROOT / "README.md"
    line = f"| [42 Made up](notebooks/{source.stem}.ipynb) | … | "
    assert f"{line}20 |" in readme.read_text()
    plan = paths.SOLUTIONS / minutes.FILE
    before = plan.read_text()
    plan.write_text(before.replace("1 = { read = 10, do = 10, wait = 0.2 }", "1 = { read = 100, do = 10 }"))
    assert minutes.write_agenda() == readme
    assert f"{line}110 |" in readme.read_text()
    plan.write_text(before)
    minutes.write_agenda()


def test_one_of_its_exercises_is_not_taken_for_another(source):
    ((_, one),) = testing.runs(lab=NUMBER, exercise=1)
    ((_, eleventh),) = testing.runs(lab=NUMBER, exercise=11)
    assert "[1-" in one
    assert "[11-" in eleventh
    assert "[1-" not in "test_mistakes_are_reported[11-edit0-told]"


def test_an_exercise_can_stand_between_the_tenth_and_the_eleventh(kit, source):
    kept = {path: path.read_text() for path in kit.rglob("*") if path.suffix in {".py", ".toml", ".md", ".ipynb"}}
    assert scaffold.new_exercise(source, after=9, script=True)[0] == 10
    names = [exercise.name for exercise in sources.exercises(sources.read(source)).values()]
    assert names[8:] == ["twice_9", "total_10", "twice_10", "twice_11"]
    for path, text in kept.items():
        path.write_text(text)
    (kit / "labkit" / "exercises" / "lab42_total_10.py").unlink()


def test_its_verdicts_are_kept_told_to_the_board_and_reported(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Results(NUMBER, quick=False)
    for number in (11, 2, 10):
        results.exercise(number, PASSED, hint=0)
    results.table("Made up", [("a", "", "1 s", "")])
    (work,) = tmp_path.rglob(f"results-{NUMBER}.json")
    told = seat._exercises(work.parent.parent)
    assert sorted(one["exercise"] for one in told) == [2, 10, 11]
    assert all(protocol.fits(one, protocol.VERDICT) for one in told)
    kept = json.loads(work.read_text())
    assert set(kept["exercises"]) == {"2", "10", "11"}
    shown = page.render(work.parent)
    assert f"3 of {COUNT} exercises" in " ".join(shown.split())


def test_the_classroom_knows_it(source, tmp_path):
    (section,) = guide.lab(source, tmp_path).parts
    assert [exercise.number for exercise in section.exercises] == list(range(1, COUNT + 1))
    assert all(exercise.hints for exercise in section.exercises)
    ((part,),) = routes.of_labs([NUMBER], 3.5).days
    assert (part.lab, [one.do for one in part.sections]) == (NUMBER, [10])
    copied = json.loads(catch_up.copy(source, COUNT))
    assert sum("given=True" in "".join(cell["source"]) for cell in copied["cells"]) == COUNT - 1
