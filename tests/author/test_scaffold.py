"""`./lab new-exercise` adds a working exercise to any lab."""

import dataclasses
import re
import shutil
import tomllib

import pytest

from labkit.exercises.engine.outcomes import NotYet
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import build, lint, minutes, scaffold, skeletons, sources

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
    number, (_, checks, *rest) = scaffold.new_exercise(source, script)
    name = f"{'total' if script else 'twice'}_{number}"
    assert [exercise.name for exercise in sources.exercises(sources.read(source)).values()] == [*before, name]
    registered = re.findall(r"^(?:@lab\.exercise\(\s*|EXERCISES\[)(\d+)", checks.read_text(), re.M)
    assert registered[-1] == str(number)
    assert lint.lint(source) == []
    assert any(name in line for line in lint.leftovers(source))
    if script:
        planted = tomllib.loads((paths.SOLUTIONS / "mistakes" / f"{source.stem[:2]}.toml").read_text())[str(number)]
        solution = sources.exercises(sources.read(source))[number].solution
        assert all(change["before"] in solution for change in [*planted["mistakes"], *planted["right"]])
    assert (checks.with_name(f"lab{source.stem[:2]}_{name}.py") in rest) == script


def test_new_exercises_get_minutes_unless_their_section_has_some(checkout):
    source = checkout / "solutions" / LAB.name
    before = minutes.plan(source)
    assert before[7].do == 0  # section 8, the last before the questions
    scaffold.new_exercise(source)
    assert minutes.plan(source)[7] == dataclasses.replace(before[7], do=scaffold.DO_MIN)
    after = minutes.plan(source)
    scaffold.new_exercise(source)
    assert minutes.plan(source) == after


def test_a_script_for_a_lab_without_checks_is_refused(checkout, write_source):
    with pytest.raises(LabError, match=r"lab 42 has no labkit/exercises/lab42\.py"):
        scaffold.new_exercise(write_source("x = 1"), script=True)


def test_stored_outputs_stay(checkout, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", checkout / "notebooks")
    (checkout / "notebooks").mkdir()
    source = checkout / "solutions" / LAB.name
    shutil.copy(build.solution_path(LAB), source.parent)
    before = [cell.outputs for cell in build.stored(source).cells if cell.cell_type == "code" and cell.execution_count]
    scaffold.new_exercise(source)
    build.build(source)
    stored = [cell for cell in build.stored(source).cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in stored if cell.execution_count] == before
    assert [cell.source for cell in stored if "twice_" in cell.source and cell.execution_count] == []


def test_the_guide_shows_the_skeleton():
    guide = (paths.ROOT / "docs" / "writing-labs.md").read_text()
    for template in (skeletons.FUNCTION.text, skeletons.FUNCTION.check):
        assert template.substitute(n=6).strip("\n") in guide


def test_the_skeleton_of_a_function_names_its_mistakes():
    names = {"n": "1", "lab": "42"}
    module, notebook = {}, {}
    exec(skeletons.TABLES.substitute(names), module)
    exec("\n".join(skeletons.FUNCTION.imports.values()) + skeletons.FUNCTION.check.substitute(names), module)
    exec(skeletons.FUNCTION.text.substitute(names).partition("# %%\n")[2].partition("# %%")[0], notebook)
    reference, solution = module["EXERCISES"][1], notebook["twice_1"]
    for answer in (solution, *reference.also):
        reference.check(solution, answer)
    for why, answer in reference.wrong.items():
        with pytest.raises(NotYet, match=f"It is as if {why}"):
            reference.check(solution, answer)


def test_the_skeleton_of_a_script_passes_its_own_tests(tmp_path, monkeypatch, capsys):
    """The check passes the solution and the alternative answer, and reports each planted mistake."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    exercise, names = skeletons.SCRIPT, {"n": "1", "lab": "42"}
    lab = "from labkit.exercises.engine.checker import Lab\nlab = Lab('42')"
    module = {"__file__": str(tmp_path / "lab42.py")}
    exec("\n".join([*exercise.imports.values(), lab]) + exercise.check.substitute(names), module)
    (tmp_path / "lab42_total_1.py").write_text(exercise.probe.substitute(names))
    source = tmp_path / "42_made_up.py"
    source.write_text(exercise.text.substitute(names))
    notebook = sources.read(source)
    solution = sources.solved(notebook).cells[sources.exercises(notebook)[1].cell].source

    def judge(text):
        (tmp_path / "work" / "total_1.py").write_text(text.partition("\n")[2] + "\n")
        return module["lab"].checks[1].decide(tmp_path / "work" / "total_1.py")

    planted = tomllib.loads(exercise.mistakes.substitute(names))["1"]
    judge(solution)
    for change in planted["right"]:
        judge(solution.replace(change["before"], change["after"]))
    for change in planted["mistakes"]:
        with pytest.raises(Exception, match=re.escape(change["message"])):
            judge(solution.replace(change["before"], change["after"]))
