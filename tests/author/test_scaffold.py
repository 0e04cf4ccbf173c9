import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from lab_cells import verdict_of

from labkit.exercises import minutes, notebooks, sources
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import build, lint, renumber, scaffold, skeletons

LAB = sources.find("09")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the files that a new lab or exercise touches."""
    for name in ("solutions", "labkit", "labkit_classroom", "docs", "tests/exercises"):
        shutil.copytree(paths.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.ipynb", "__pycache__"))
    for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml"):
        shutil.copy(paths.ROOT / name, tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path / "solutions")
    return tmp_path


def test_a_new_lab_has_its_files_and_its_lines(checkout):
    made = scaffold.new_lab("42", "made_up")
    assert list(sources.exercises(sources.read(made[0]))) == [1]
    assert '"42", hints' not in (checkout / "labkit/exercises/lab42.py").read_text()
    assert "@lab.exercise(1, " in (checkout / "labkit/exercises/lab42.py").read_text()
    assert 'lab = "42"' in (checkout / "tests/exercises/test_lab42.py").read_text()
    assert "\n| [42 Made up](notebooks/42_made_up.ipynb) |" in (checkout / "README.md").read_text()
    with pytest.raises(LabError, match="number 42 is taken by 42_made_up"):
        scaffold.new_lab("42", "another")


@pytest.mark.parametrize(("number", "topic"), [("7", "x"), ("100", "x"), ("42", "A topic"), ("42", "../x")])
def test_other_names_are_refused_and_nothing_is_written(checkout, number, topic):
    before = sorted(checkout.rglob("*"))
    with pytest.raises(LabError, match="such as"):
        scaffold.new_lab(number, topic)
    assert sorted(checkout.rglob("*")) == before


LABS = [
    pytest.param(lab, id=lab.stem, marks=[pytest.mark.slow] * (lab.stem[:2] != "09"))  # one will do for `--fast`
    for lab in sources.labs()
]


@pytest.mark.parametrize("source", LABS)
def test_each_lab_can_get_another_exercise(checkout, source):
    source = checkout / "solutions" / source.name
    before = len(sources.exercises(sources.read(source)))
    number, (_, checks, tests, *_), _ = scaffold.new_exercise(source)
    assert number == before + 1 == len(sources.exercises(sources.read(source)))
    assert checks.read_text().count(f"\n@lab.exercise({number}, ") == 1
    assert tests.read_text().count(f"({number}, same)") == 1
    assert lint.lint(source) == []


def names(source):
    """Return what the exercises of a lab are called, in their order."""
    return [exercise.name for exercise in sources.exercises(sources.read(source)).values()]


@pytest.mark.parametrize("source", LABS)
@pytest.mark.parametrize("script", [False, True])
def test_an_exercise_can_stand_between_two(checkout, source, script):
    source = checkout / "solutions" / source.name
    before = names(source)
    after = min(2, len(before))  # a new lab has one
    number, changed, counted = scaffold.new_exercise(source, after, script)
    assert (number, counted) == (after + 1, [])
    name = "total" if script else "twice"
    assert names(source) == [*before[:after], f"{name}_{number}", *before[after:]]
    assert sources.exercises(sources.read(source)).keys() == set(range(1, len(before) + 2))
    checks = checkout / "labkit" / "exercises" / f"lab{source.stem[:2]}.py"
    registered = [int(found) for found in re.findall(r"^@lab\.exercise\(\s*(\d+),", checks.read_text(), re.M)]
    assert registered == list(range(1, len(before) + 2))
    for path in changed:
        if path.suffix == ".py":
            compile(path.read_text(), str(path), "exec")
    ruff = [Path(sysconfig.get_path("scripts")) / "ruff", "check", "--quiet"]
    modules = [path for path in changed if path.suffix == ".py"]
    assert subprocess.run([*ruff, *modules], cwd=checkout, capture_output=True, text=True).stdout == ""
    assert lint.lint(source) == []


def test_what_is_known_of_mutants_goes_with_its_exercise(checkout):
    page = checkout / renumber.EQUIVALENT
    before = tomllib.loads(page.read_text())
    scaffold.new_exercise(checkout / "solutions" / LAB.name, after=1)
    now = tomllib.loads(page.read_text())
    assert now.pop(LAB.stem[:2]) == {str(moved(int(number), 1)): known for number, known in before.pop("09").items()}
    assert now == before


def test_another_skeleton_of_the_same_name_waits(checkout):
    source = checkout / "solutions" / sources.find("09").name
    scaffold.new_exercise(source, after=3)
    text = source.read_text()
    with pytest.raises(LabError, match="has twice_4 of an earlier skeleton: make that exercise yours first"):
        scaffold.new_exercise(source, after=3)
    assert source.read_text() == text


def test_an_exercise_after_one_that_there_is_not_is_refused(checkout):
    with pytest.raises(LabError, match="lab 09 has no exercise 77, only 1, 2, 3"):
        scaffold.new_exercise(checkout / "solutions" / sources.find("09").name, after=77)


def test_stored_outputs_stay_where_exercises_are_renumbered(checkout, monkeypatch):
    monkeypatch.setattr(paths, "NOTEBOOKS", checkout / "notebooks")
    (checkout / "notebooks").mkdir()
    source = checkout / "solutions" / LAB.name
    shutil.copy(notebooks.solution_path(LAB), source.parent)
    code = [cell for cell in notebooks.stored(source).cells if cell.cell_type == "code"]
    before = [cell for cell in code if cell.execution_count]
    waiting = {cell.source for cell in code if not cell.execution_count}  # for a maintainer to store their outputs
    scaffold.new_exercise(source, after=3)
    build.build(source)
    stored = [cell for cell in notebooks.stored(source).cells if cell.cell_type == "code"]
    assert [cell.source for cell in stored if not cell.execution_count and cell.source not in waiting] == [
        'def twice_4(values):\n    """Return twice the sum of a list of numbers."""\n    return 2 * sum(values)',
        "twice_4 = check(4, twice_4)",
    ]
    ran = [cell for cell in stored if cell.execution_count]
    assert [cell.metadata for cell in ran] == [cell.metadata for cell in before]
    for cell, old in zip(ran, before, strict=True):
        if numbers := [number for number, _ in sources.checks(cell)]:
            assert [verdict_of(cell)] == [f"Exercise {number} · passed." for number in numbers]
        else:
            assert cell.outputs == old.outputs
    assert not notebooks.drifted(source)


def test_a_section_without_minutes_to_do_gets_some(checkout):
    source = checkout / "solutions" / LAB.name
    assert minutes.plan(source)[7].do == 0
    scaffold.new_exercise(source)  # in section 8, the last before the questions
    assert minutes.plan(source)[7] == dataclasses.replace(minutes.plan(LAB)[7], do=scaffold.DO_MIN)
    before = minutes.plan(source)
    scaffold.new_exercise(source, after=3)  # its section has minutes
    assert minutes.plan(source) == before


def moved(number, after=3):
    """Return the number of an exercise after another was put behind this one."""
    return number + (number > after)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("x = check(4, x)", "x = check(5, x)"),
        ("student.check(3, student.answer(4, edit))", "student.check(3, student.answer(5, edit))"),
        ("é = check(4, 'é', 4)", "é = check(5, 'é', 4)"),
        (
            "@lab.exercise(10, hints=(), beside=(2, 9))\ndef f(): return 4",
            "@lab.exercise(11, hints=(), beside=(2, 10))\ndef f(): return 4",
        ),
        (
            "class T:\n mistakes = [(4, swap(4), '4'), *[(5, e, 'x') for e in (4, 5)]]",
            "class T:\n mistakes = [(5, swap(4), '4'), *[(6, e, 'x') for e in (4, 5)]]",
        ),
        (
            "class T:\n right = [(4, same)] + [(9, same)]\n slow = frozenset({3, 4})",
            "class T:\n right = [(5, same)] + [(10, same)]\n slow = frozenset({3, 5})",
        ),
        (
            "a = [student.answer(n, same) for n in (2, 4)]; b = [n for n in (2, 4)]",
            "a = [student.answer(n, same) for n in (2, 5)]; b = [n for n in (2, 4)]",
        ),
        (
            "NAMES = {4: 'a', 5: 'b'}\ndef f():\n  for n, a in NAMES.items(): check(n, a)",
            "NAMES = {5: 'a', 6: 'b'}\ndef f():\n  for n, a in NAMES.items(): check(n, a)",
        ),
        (
            "ON = {4, 5}\ndef f(case): return case.params.get('exercise') in ON",
            "ON = {5, 6}\ndef f(case): return case.params.get('exercise') in ON",
        ),
        (
            "solved = sources.exercises(book)\nx = solved[4], other[4]",
            "solved = sources.exercises(book)\nx = solved[5], other[4]",
        ),
        ("x = student.check.lab.checks[4].imports", "x = student.check.lab.checks[5].imports"),
        (
            "@mark.parametrize(('exercise', 'edit'), [(4, swap(4)), (3, same)])\ndef test(exercise, edit): pass",
            "@mark.parametrize(('exercise', 'edit'), [(5, swap(4)), (3, same)])\ndef test(exercise, edit): pass",
        ),
        (
            "@mark.parametrize('exercise, edit', [(4, same)])\n@mark.parametrize('ranks', [(4, 2)])\ndef f(): pass",
            "@mark.parametrize('exercise, edit', [(5, same)])\n@mark.parametrize('ranks', [(4, 2)])\ndef f(): pass",
        ),
        ("ranks(4)\nfor n in (4, 5): other(n)", "ranks(4)\nfor n in (4, 5): other(n)"),
    ],
)
def test_numbers_in_code_are_found_by_what_they_are_for(before, now):
    assert renumber.code(before, moved) == now


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("See exercise 5. It takes 5 minutes.", "See exercise 6. It takes 5 minutes."),
        ("section 5 takes 12 with exercise\n# 4; then 4", "section 5 takes 12 with exercise\n# 5; then 4"),
        ("Exercises 2, 3 and 5, 4 ranks", "Exercises 2, 3 and 6, 4 ranks"),
        ("exercises 4 to 6", "exercises 5 to 7"),
        ("exercise 4 or 5, 5 of them", "exercise 5 or 6, 5 of them"),
        ("In exercise 4, 5 ranks", "In exercise 5, 5 ranks"),
        ("lab 09's exercise 4, and lab 07's exercise 4", "lab 09's exercise 5, and lab 07's exercise 4"),
        ("exercise 4 of lab 07, exercise 4 of lab 09", "exercise 4 of lab 07, exercise 5 of lab 09"),
        ("exercise 2", "exercise 2"),
        ("Exercise 10 · passed.", "Exercise 11 · passed."),
    ],
)
def test_exercises_in_prose_are_renumbered_and_other_numbers_not(before, now):
    assert renumber.prose(before, "09", moved, own=True) == now


def test_other_labs_are_renumbered_only_where_they_name_this_one():
    text = "exercise 4; lab 09's exercise 4"
    assert renumber.prose(text, "09", moved, own=False) == "exercise 4; lab 09's exercise 5"


def test_a_loop_that_counts_exercises_is_told():
    text = "def f():\n for n, name in enumerate(NAMES, start=1):\n  check(n, name)\n for m in range(4):\n  f(m)"
    assert list(renumber.counting(ast.parse(text))) == [2]


def test_the_guide_shows_the_skeleton_as_it_is():
    guide = (paths.ROOT / "docs" / "writing-labs.md").read_text()
    function = skeletons.FUNCTION
    for template in (function.text, function.check, function.mistakes, function.right):
        assert template.substitute(n=6).strip("\n") in guide


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """A copy of the kit, in which commands work on the copy's files."""
    folder = tmp_path_factory.mktemp("copy") / "kit"
    unread = shutil.ignore_patterns(
        ".venv", ".git", ".lab", "work", "my-labs", "site", "__pycache__", ".hypothesis", ".*_cache"
    )
    shutil.copytree(paths.ROOT, folder, ignore=unread)
    (folder / ".venv").symlink_to(paths.ROOT / ".venv")
    return folder


def lab(kit, *arguments):
    """Run a command of the copy, as `./lab` does; return what it printed."""
    command = [sys.executable, "-m", "labkit.cli", *arguments]
    environment = os.environ | {"PYTHONPATH": str(kit), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=kit, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "script"), [("02", False), ("00", True)])  # of few and short tests
def test_a_labs_tests_pass_after_an_exercise_was_put_between_two(kit, number, script):
    out = lab(kit, "new-exercise", number, "--after", "2", *["--script"] * script)
    assert out.startswith("Exercise 3 is in solutions/")
    assert "a loop counts" not in out
    lab(kit, "build", number)
    tests = [f"tests/exercises/test_lab{number}.py", "tests/author/test_notebooks.py", "tests/author/test_labs.py"]
    tests += ["tests/author/test_lint.py", "tests/author/test_mutations.py"]
    out = lab(kit, "test", *tests, f"-klab{number} or {sources.find(number).stem}", "-pno:cacheprovider")
    assert f"LAB {number} HAS CELLS WITHOUT STORED OUTPUTS (2)" in out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_lab_passes_its_own_tests(kit):
    made = lab(kit, "new", "42", "made_up")
    assert "What is left of the skeleton: ./lab lint 42." in made
    tests = ["tests/exercises/test_lab42.py", "tests/author"]
    out = lab(kit, "test", *tests, "-k(lab42 or 42_made_up) and not untouched", "-pno:cacheprovider")
    assert re.search(r" \d\d passed", out), out
    assert "skipped" not in out.splitlines()[-1]
