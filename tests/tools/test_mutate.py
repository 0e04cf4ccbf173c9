"""The mutation tool finds the mistakes that a check does not see."""

import sys
from types import SimpleNamespace

import mutate
import pytest
from mutants import mutants

from labkit.exercises import core
from labkit.exercises.answers import call
from labkit.exercises.outcomes import expect
from labkit.system import paths
from labkit_author import catalogue, sources

LARGEST = """def largest(values, floor):
    ### BEGIN SOLUTION
    best = floor
    for value in values:
        if value > best:
            best = value
    return SCALE * best
    ### END SOLUTION"""


def test_a_mutant_has_one_small_mistake_in_what_a_student_writes():
    made = mutants(LARGEST)
    assert set(made.values()) >= {
        "if value > best: → if value >= best:",
        "if value > best: → if True:",
        "for value in values: → for value in list(values)[:-1]:",
        "best = value → pass",
        "best = value → best = values",
        "return SCALE * best → return best",
        "return SCALE * best → return floor",
    }
    assert all(mutant.startswith("def largest(values, floor):\n") for mutant in made)
    assert mutants("x = 1\n### BEGIN SOLUTION\n### END SOLUTION") == {}


class Student:
    """A student of a lab with one exercise, whose check does not see a mistake with the floor."""

    def __init__(self, exercises):
        lab = core.Lab("42")

        @lab.exercise(1, hints=("none",))
        def largest(answer):
            expect(call(answer, [3, 5, 4], 0) == 10, "10")

        self.check = core.Checker(lab, exercises, {"SCALE": 2})

    def answer(self, number, change=None):
        names = {"SCALE": 2}
        exec(LARGEST if change is None else change.after, names)
        return names["largest"]


@pytest.fixture
def lab(write_source, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "SOLUTIONS", tmp_path)
    source = write_source(LARGEST, "largest = check(1, largest)")
    exercises = catalogue.exercises(sources.read(source))
    tests = SimpleNamespace(TestExercises=SimpleNamespace(make_student=lambda folder: Student(exercises)))
    monkeypatch.setitem(sys.modules, "test_lab42", tests)
    monkeypatch.setattr(mutate, "EQUIVALENT", tmp_path / "equivalent.toml")
    mutate.EQUIVALENT.write_text("[42.1]\n'if value > best: → if value >= best:' = 'the same'\n'old → new' = 'gone'\n")


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_what_survives_is_what_the_check_does_not_see_and_is_not_known_to_be_right():
    tried = mutate.try_exercise("42", 1)
    assert tried.count == len(mutants(LARGEST))
    assert "for value in values: → for value in list(values)[:-1]:" in tried.survivors
    assert "return SCALE * best → return best" not in tried.survivors
    assert tried.equivalent == ["if value > best: → if value >= best:"]
    assert not set(tried.equivalent) & set(tried.survivors)
    assert tried.stale == ["old → new"]
    assert not tried.failures


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_a_mutant_that_spoils_the_process_spoils_no_other(monkeypatch):
    spoiling = {
        "import os\nos._exit(0)": "ends",
        f"import time\ntime.sleep(3600)\n{LARGEST}": "sleeps",
        LARGEST: "as it was",
    }
    monkeypatch.setattr(mutate, "mutants", lambda text: spoiling)
    monkeypatch.setattr(mutate, "MUTANT_LIMIT_S", 5.0)
    assert mutate.try_exercise("42", 1).survivors == ["as it was"]


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_what_is_known_to_be_right_is_a_mutant_of_its_solution(source):
    for number, exercise in sources.exercises(sources.read(source)).items():
        if known := mutate.equivalent(source.stem[:2], number):
            _, code = mutate.script_and_code(exercise.solution)
            assert set(known) <= set(mutants(code).values())
            assert all(known.values()), "a reason is missing"
