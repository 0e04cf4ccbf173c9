"""Tests of a lab's exercises: untouched, with planted mistakes, and with alternative right answers."""

import functools
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from labkit.exercises import labs
from labkit.exercises.engine import answers
from labkit.exercises.engine.answers import remember_lines
from labkit.exercises.engine.checker import Checker, checker
from labkit_author import changed, mistakes, sources
from labkit_author.mistakes import Change
from labkit_author.notebooks import BEGIN, END


class Student:
    """A student of a lab, whose answers are made from its solutions; `names` are those that the notebook imports."""

    def __init__(self, number: str, names: Mapping[str, Any]):
        self.names = dict(names)
        self.check: Checker = checker(number, self.names)
        self._solved, self._blank = _solved_and_blank(number)

    def untouched(self, exercise: int) -> Any:
        """Return an exercise's stub: a function, or the path of a script."""
        return self._run(self._blank[exercise])

    def answer(self, exercise: int, change: Change | None = None) -> Any:
        """Return the solution of an exercise, with a change if there is one."""
        text = self._solved[exercise]
        if change is not None:
            text = change.apply(text)
            assert text != self._solved[exercise], "the change changes nothing"
        return self._run(text)

    def _run(self, text: str) -> Any:
        if text.startswith("%%writefile"):
            head, _, script = text.partition("\n")
            path = Path(head.split()[-1])
            if path.suffix == ".c":  # where the markers are no comments
                script = "\n".join(line for line in script.split("\n") if line.strip() not in (BEGIN, END))
            path.parent.mkdir(exist_ok=True)
            path.write_text(script + "\n")
            return str(path)
        names = dict(self.names)
        file = f"<cell {hash(text)}>"
        remember_lines(file, text)
        exec(compile(text, file, "exec"), names)
        new = (name for name, value in names.items() if value is not self.names.get(name) and name != "__builtins__")
        return names[next(new)]


@functools.cache
def _solved_and_blank(number: str) -> tuple[dict[int, str], dict[int, str]]:
    """Return the cells of a lab's exercises by number: the solutions and the stubs."""
    notebook = sources.read(sources.find(number))
    exercises, blank = sources.exercises(notebook), sources.blank(notebook)
    return {n: e.solution for n, e in exercises.items()}, {n: blank.cells[e.cell].source for n, e in exercises.items()}


class ThreeWays:
    """Tests of a lab's exercises, with the changes in `solutions/mistakes/NN.toml`; each lab has a subclass."""

    lab: str
    names: Mapping[str, Any] = {}  # that the notebook imports
    # Exercises whose check runs on ranks. Their answers share launches (`launches.py`), and their mistakes are tested
    # if the lab or the engine changed, and weekly.
    on_ranks: Set[int] = frozenset()
    slow: Set[int] = frozenset()  # exercises whose check takes seconds

    @classmethod
    def make_student(cls, folder: Path) -> Student:
        """Return a student whose working folder is the current, empty one."""
        return Student(cls.lab, cls.names)

    def test_untouched_is_not_attempted(self, student, exercise, capsys):
        student.check(exercise, student.untouched(exercise))
        assert f"Exercise {exercise} · not attempted." in capsys.readouterr().out

    def test_mistakes_are_reported(self, student, exercise, mistake, capsys):
        student.check(exercise, student.answer(exercise, mistake))
        out = capsys.readouterr().out
        assert mistake.message, "the expected message is empty"
        assert f"Exercise {exercise} · not yet." in out, out
        assert mistake.message in out, out

    def test_right_answers_pass(self, student, exercise, right, capsys, request, monkeypatch):
        # A right answer passes however short the time is.
        monkeypatch.setattr(answers, "CPU_LIMIT_S", 0.02 if request.config.getoption("--fast") else 0.1)
        student.check(exercise, student.answer(exercise, right))
        out = capsys.readouterr().out
        assert f"Exercise {exercise} · passed." in out, out

    def test_each_exercise_has_mistakes_and_alternative_answers(self):
        exercises = set(checker(self.lab, {}).lab.checks) - set(labs.references(self.lab))  # they bring their own
        assert {exercise for exercise, changes in mistakes.planted(self.lab).items() if changes} >= exercises
        assert {exercise for exercise, changes in mistakes.right(self.lab).items() if changes} >= exercises


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the tests of `ThreeWays`, with the exercise in the ids; conftest.py exports this hook."""
    lab = metafunc.cls
    if lab is None or not issubclass(lab, ThreeWays) or "exercise" not in metafunc.fixturenames:
        return
    if "mistake" in metafunc.fixturenames:
        _parametrize(metafunc, "mistake", mistakes.planted(lab.lab))
    elif "right" in metafunc.fixturenames:
        _parametrize(metafunc, "right", {n: [None, *right] for n, right in mistakes.right(lab.lab).items()})
    else:
        metafunc.parametrize("exercise", sorted(checker(lab.lab, {}).lab.checks))


def _parametrize(metafunc: pytest.Metafunc, name: str, changes: Mapping[int, Sequence[Change | None]]) -> None:
    lab = metafunc.cls
    is_rare = name == "mistake" and lab.on_ranks and not (changed.has_engine() or changed.has_lab(lab.lab))
    weekly = lab.on_ranks if is_rare else ()
    slow = lab.slow | lab.on_ranks
    marks = {n: [pytest.mark.slow] * (n in slow) + [pytest.mark.weekly] * (n in weekly) for n in changes}
    cases = [
        pytest.param(exercise, change, id=f"{exercise}-{index}", marks=marks[exercise])
        for exercise in sorted(changes.keys() - labs.on_ranks(lab.lab).keys())  # engine/test_on_ranks.py
        for index, change in enumerate(changes[exercise])
    ]
    metafunc.parametrize(("exercise", name), cases)
