"""Tests of a lab's exercises, and a student of the lab."""

import functools
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import pytest

from labkit.exercises.engine.answers import remember_lines
from labkit.exercises.engine.checker import Checker, checker
from labkit.exercises.engine.on_ranks import Script
from labkit_author import sources
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

    def answer(self, exercise: int, change: Script | None = None) -> Any:
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
    """A lab's exercises are "not attempted" while untouched; each lab has a subclass. `engine` tests all answers."""

    lab: str
    names: Mapping[str, Any] = {}  # that the notebook imports
    on_ranks: Set[int] = frozenset()  # exercises whose check runs on ranks
    slow: Set[int] = frozenset()  # exercises whose check takes seconds

    @classmethod
    def make_student(cls, folder: Path) -> Student:
        """Return a student whose working folder is the current, empty one."""
        return Student(cls.lab, cls.names)

    def test_untouched_is_not_attempted(self, student, exercise, capsys):
        student.check(exercise, student.untouched(exercise))
        assert f"Exercise {exercise} · not attempted." in capsys.readouterr().out


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the test of `ThreeWays`, with the exercise in the ids; conftest.py exports this hook."""
    lab = metafunc.cls
    if lab is not None and issubclass(lab, ThreeWays) and "exercise" in metafunc.fixturenames:
        metafunc.parametrize("exercise", sorted(checker(lab.lab, {}).lab.checks))
