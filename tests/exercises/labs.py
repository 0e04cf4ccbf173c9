"""Tests of a lab's exercises: untouched, with planted mistakes, and right in another way."""

import functools
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from labkit.exercises import answers
from labkit.exercises.core import Checker, checker
from labkit_author import sources


class Student:
    """A student of a lab, whose answers are made from its solutions, in an empty folder.

    Parameters
    ----------
    number : str
        The lab.
    namespace : dict
        What the notebook has imported.
    """

    def __init__(self, number: str, namespace: dict[str, Any]):
        self.namespace = namespace
        self.check: Checker = checker(number, namespace)
        self._solved, self._blank = _solved_and_blank(number)

    def answer(self, number: int, edit: Callable[[str], str] | None = None) -> Any:
        """Return the answer that the solution's text makes after `edit`; the untouched one without an edit."""
        text = self._blank[number] if edit is None else edit(self._solved[number])
        assert edit is None or text != self._solved[number] or edit is same, "the edit changed nothing"
        if text.startswith("%%writefile"):
            head, _, script = text.partition("\n")
            path = Path(head.split()[-1])
            path.parent.mkdir(exist_ok=True)
            path.write_text(script + "\n")
            return str(path)
        namespace = dict(self.namespace)
        exec(compile(_remembered(text), _FILE, "exec"), namespace)
        return next(value for name, value in namespace.items() if name not in self.namespace and name != "__builtins__")


@functools.cache
def _solved_and_blank(number: str) -> tuple[dict[int, str], dict[int, str]]:
    """Return the cells of a lab's exercises by their number, with the solution and with the stub."""
    notebook = sources.read(sources.find(number))
    exercises, blank = sources.exercises(notebook), sources.blank(notebook)
    return {n: e.solution for n, e in exercises.items()}, {n: blank.cells[e.cell].source for n, e in exercises.items()}


class ThreeWays:
    """The tests of a lab's exercises; its module has a subclass, and a fixture `student`.

    Attributes
    ----------
    lab : str
        The lab's number.
    mistakes : list of (exercise, edit, message)
        What `edit` makes of the solution is *not yet* right, and the student is told `message`.
    right : list of (exercise, edit)
        What `edit` makes of the solution is right too; `same` is the solution itself.
    slow : set of int
        The exercises whose check takes seconds, which nothing here shows, and which `--fast` leaves out.
    """

    lab: str
    mistakes: list[tuple[int, Callable[[str], str], str]]
    right: list[tuple[int, Callable[[str], str]]]
    slow: Set[int] = frozenset()

    def test_untouched_is_not_attempted(self, student, exercise, capsys):
        student.check(exercise, student.answer(exercise))
        assert f"Exercise {exercise} · not attempted." in capsys.readouterr().out

    def test_mistakes_are_reported(self, student, exercise, edit, message, capsys):
        student.check(exercise, student.answer(exercise, edit))
        out = capsys.readouterr().out
        assert message, "the message that the student must see is empty"
        assert f"Exercise {exercise} · not yet." in out, out
        assert message in out, out

    def test_right_answers_pass(self, student, exercise, edit, capsys, request, monkeypatch):
        if request.config.getoption("--fast"):  # what is right passes after any time; the whole suite draws for longer
            monkeypatch.setattr(answers, "CPU_LIMIT_S", 0.02)
        student.check(exercise, student.answer(exercise, edit))
        out = capsys.readouterr().out
        assert f"Exercise {exercise} · passed." in out, out

    def test_each_exercise_has_mistakes_a_solution_and_another_right_answer(self):
        exercises = set(checker(self.lab, {}).lab.checks)
        assert {exercise for exercise, *_ in self.mistakes} == exercises
        assert {exercise for exercise, edit in self.right if edit is same} == exercises
        assert {exercise for exercise, edit in self.right if edit is not same} == exercises


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of `ThreeWays` its cases; conftest.py hands this to pytest."""
    lab = metafunc.cls
    if lab is None or not issubclass(lab, ThreeWays):
        return
    if "message" in metafunc.fixturenames:
        metafunc.parametrize(("exercise", "edit", "message"), _marked(lab, lab.mistakes))
    elif "edit" in metafunc.fixturenames:
        metafunc.parametrize(("exercise", "edit"), _marked(lab, lab.right))
    elif "exercise" in metafunc.fixturenames:
        metafunc.parametrize("exercise", sorted({exercise for exercise, *_ in lab.mistakes}))


def _marked(lab: type[ThreeWays], cases: Sequence[tuple]) -> list:
    return [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] in lab.slow)) for case in cases]


def same(text: str) -> str:
    """The solution as it is."""
    return text


def swap(old: str, new: str) -> Callable[[str], str]:
    """An edit that puts `new` for `old`, which must be there."""

    def edit(text: str) -> str:
        assert old in text, f"the solution no longer has {old!r}: plant another mistake"
        return text.replace(old, new)

    return edit


def after(line: str, new: str) -> Callable[[str], str]:
    """An edit that puts `new` for all that comes after a line, which must be there."""

    def edit(text: str) -> str:
        head, found, _ = text.partition(f"{line}\n")
        assert found, f"the solution no longer has {line!r}: plant another mistake"
        return head + found + new

    return edit


_FILE = "<planted>"


def _remembered(text: str) -> str:
    import linecache

    linecache.cache[_FILE] = (len(text), None, text.splitlines(keepends=True), _FILE)
    return text
