"""`./lab new-exercise` adds a working exercise to any lab."""

import dataclasses
import importlib
import re
import shutil

import pytest

from labkit.exercises.catalogue import Exercise
from labkit.exercises.engine import launches
from labkit.exercises.engine.on_ranks import Script
from labkit.exercises.engine.outcomes import NotYet
from labkit.exercises.engine.reference import function_of
from labkit.system import paths
from labkit_author import lint, minutes, scaffold, skeletons, sources
from labkit_author.mistakes import Change

LAB = sources.find("09")
LABS = [
    pytest.param(lab, id=lab.stem, marks=[pytest.mark.slow] * (lab != LAB))  # one is enough for `--fast`
    for lab in sources.labs()
]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the files that a new exercise changes, and that lint reads."""
    for name in ("solutions", "labkit", "labkit_classroom", "docs"):
        shutil.copytree(paths.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.ipynb", "__pycache__"))
    (tmp_path / "solutions" / "mistakes").mkdir(exist_ok=True)
    shutil.copy(paths.ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    return tmp_path


@pytest.mark.parametrize("source", LABS)
@pytest.mark.parametrize("script", [False, True])
def test_any_lab_can_get_another_exercise(checkout, source, script):
    source = checkout / "solutions" / source.name
    before = [exercise.name for exercise in sources.exercises(sources.read(source)).values()]
    number, (_, checks) = scaffold.new_exercise(source, script)
    name = f"{'total' if script else 'twice'}_{number}"
    assert [exercise.name for exercise in sources.exercises(sources.read(source)).values()] == [*before, name]
    registered = re.findall(r"^(?:@lab\.exercise\(\s*|EXERCISES\[)(\d+)", checks.read_text(), re.M)
    assert registered[-1] == str(number)
    assert lint.lint(source) == []
    assert any(name in line for line in lint.leftovers(source))


def test_new_exercises_get_minutes_unless_their_section_has_some(checkout):
    source = checkout / "solutions" / LAB.name
    before = minutes.plan(source)
    assert before[7].do == 0  # section 8, the last before the questions
    scaffold.new_exercise(source)
    assert minutes.plan(source)[7] == dataclasses.replace(before[7], do=scaffold.DO_MIN)
    after = minutes.plan(source)
    scaffold.new_exercise(source)
    assert minutes.plan(source) == after


def test_the_guide_shows_the_skeleton():
    guide = (paths.ROOT / "docs" / "writing-labs.md").read_text()
    for template in (skeletons.FUNCTION.text, skeletons.FUNCTION.check):
        assert template.substitute(n=6).strip("\n") in guide


def test_the_skeleton_of_a_function_names_its_mistakes():
    names, module = {"n": "1", "lab": "42"}, {}
    exec(skeletons.TABLES.substitute(names), module)
    exec("\n".join(skeletons.FUNCTION.imports.values()) + skeletons.FUNCTION.check.substitute(names), module)
    solution = skeletons.FUNCTION.text.substitute(names).partition("# %%\n")[2].partition("# %%")[0]
    reference, exercise = module["EXERCISES"][1], Exercise(1, "twice_1", "", "", solution, "", "")
    for answer in ({}, *reference.also):
        reference.check(exercise, function_of(exercise, answer))
    for why, answer in reference.wrong.items():
        with pytest.raises(NotYet, match=f"It is as if {why}"):
            reference.check(exercise, function_of(exercise, answer))


def test_the_skeleton_of_a_script_convicts_its_mistakes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for the ranks
    skeleton, names = skeletons.SCRIPT, {"n": "1", "lab": "42"}
    imports = "\n".join([*skeleton.imports.values(), "EXERCISES = {}"])
    (tmp_path / "skeleton_of_a_script.py").write_text(imports + skeleton.check.substitute(names))
    exercise = importlib.import_module("skeleton_of_a_script").EXERCISES[1]
    source = tmp_path / "42_made_up.py"
    source.write_text(skeleton.text.substitute(names))
    solution = sources.exercises(sources.read(source))[1].solution.partition("\n")[2]
    scripts = [Script(before="def", after="def"), *exercise.right, *(script for _, script in exercise.wrong)]
    for place, script in enumerate(scripts):
        (tmp_path / f"script_{place}.py").write_text(Change(*script).apply(solution))
    found = launches.mistakes(exercise, [f"script_{place}.py" for place in range(len(scripts))])
    assert [mistake and mistake.invariant for mistake in found] == [None, None, "all_get_the_sum"]
    assert str(found[-1]) == "Expected rank 0's sum for 4 ranks to be 1,111; it is 1."
