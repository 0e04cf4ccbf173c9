"""The mutation tool finds mistakes that a check misses."""

import sys
from types import SimpleNamespace

import mutate
import pytest
from mutants import mutants

from labkit.exercises.engine.answers import call
from labkit.exercises.engine.checker import Check, Checker, Lab
from labkit.exercises.engine.outcomes import expect
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


def test_a_mutant_has_one_small_mistake_in_the_solution():
    results = mutants(LARGEST)
    assert set(results.values()) >= {
        "if value > best: → if value >= best:",
        "if value > best: → if True:",
        "for value in values: → for value in list(values)[:-1]:",
        "best = value → pass",
        "best = value → best = values",
        "return SCALE * best → return best",
        "return SCALE * best → return floor",
    }
    assert all(mutant.startswith("def largest(values, floor):\n") for mutant in results)
    assert mutants("x = 1\n### BEGIN SOLUTION\n### END SOLUTION") == {}


class Student:
    """A student of a lab with one exercise, whose check misses mistakes with the floor."""

    def __init__(self, exercises):
        lab = Lab("42")

        def largest(answer):
            expect(call(answer, [3, 5, 4], 0) == 10, "10")

        lab.checks[1] = Check(largest, ("none",))

        self.check = Checker(lab, exercises, {"SCALE": 2})

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
def test_survivors_pass_the_check_and_are_not_known_to_be_right():
    results = mutate.try_exercise("42", 1)
    assert results.count == len(mutants(LARGEST))
    assert "for value in values: → for value in list(values)[:-1]:" in results.survivors
    assert "return SCALE * best → return best" not in results.survivors
    assert results.equivalent == ["if value > best: → if value >= best:"]
    assert not set(results.equivalent) & set(results.survivors)
    assert results.stale == ["old → new"]
    assert not results.failures


@pytest.mark.slow
@pytest.mark.usefixtures("lab")
def test_a_mutant_that_ends_its_process_does_not_affect_others(monkeypatch):
    harmful = {
        "import os\nos._exit(0)": "ends",
        f"import time\ntime.sleep(3600)\n{LARGEST}": "sleeps",
        LARGEST: "unchanged",
    }
    monkeypatch.setattr(mutate, "mutants", lambda text: harmful)
    monkeypatch.setattr(mutate, "MUTANT_LIMIT_S", 5.0)
    assert mutate.try_exercise("42", 1).survivors == ["unchanged"]


@pytest.mark.parametrize("source", sources.labs(), ids=lambda source: source.stem)
def test_equivalent_lines_are_mutants_of_their_solutions(source):
    for number, exercise in sources.exercises(sources.read(source)).items():
        if known := mutate.equivalent(source.stem[:2], number):
            _, code = mutate.script_and_code(exercise.solution)
            assert set(known) <= set(mutants(code).values())
            assert all(known.values()), "a reason is missing"
