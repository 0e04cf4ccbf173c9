import pytest

from labkit.exercises.labs import references
from labkit.system import paths
from labkit.system.errors import LabError
from labkit_author import mistakes, sources
from labkit_author.mistakes import Change

SOLUTION = """def twice(n):
    ### BEGIN SOLUTION
    return n + n
    ### END SOLUTION"""


def test_a_change_replaces_each_occurrence():
    assert Change(before="n", after="m").apply("n + n") == "m + m"


def test_a_change_without_before_replaces_the_solution():
    assert Change(after="    return 2 * n\n").apply(SOLUTION) == (
        "def twice(n):\n    ### BEGIN SOLUTION\n    return 2 * n\n"
    )
    assert Change(below="def twice(n):", after="    pass\n").apply(SOLUTION) == "def twice(n):\n    pass\n"


@pytest.mark.parametrize("change", [Change(before="3 * n", after="n"), Change(below="def thrice(n):", after="n")])
def test_changes_of_missing_text_are_refused(change):
    with pytest.raises(LabError, match="plant another mistake"):
        change.apply(SOLUTION)


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_every_change_applies_to_its_solution(source):
    exercises = sources.exercises(sources.read(source))
    for load in (mistakes.planted, mistakes.right):
        changes = load(source.stem[:2])
        assert exercises.keys() - references(source.stem[:2]).keys() <= changes.keys() <= exercises.keys()
        for exercise, exercise_changes in changes.items():
            for change in exercise_changes:
                solution = exercises[exercise].solution
                assert change.apply(solution) != solution
                assert bool(change.message) == (load is mistakes.planted)


def test_a_lab_without_a_file_has_no_mistakes(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    assert mistakes.planted("05") == {}
