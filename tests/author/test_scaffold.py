import shutil

import pytest

from labkit.exercises import sources
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import scaffold


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the files that a new lab or exercise touches."""
    for name in ("solutions", "labkit/exercises", "labkit/doctor", "tests/exercises"):
        shutil.copytree(paths.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.ipynb", "__pycache__"))
    for name in ("README.md", "pyproject.toml"):
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
    number, (_, checks, tests) = scaffold.new_exercise(source)
    assert number == before + 1 == len(sources.exercises(sources.read(source)))
    assert checks.read_text().count(f"\n@lab.exercise({number}, ") == 1
    assert tests.read_text().count(f"({number}, same)") == 1
    for path in (checks, tests):
        compile(path.read_text(), str(path), "exec")


def test_the_guide_shows_the_skeleton_as_it_is():
    guide = (paths.ROOT / "CONTRIBUTING.md").read_text()
    for template in (scaffold.EXERCISE, scaffold.CHECK, scaffold.MISTAKE, scaffold.RIGHT):
        assert template.substitute(n=6).strip("\n") in guide
