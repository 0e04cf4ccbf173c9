"""The labs as students get them: titles, sections with their minutes, and exercises with their stubs and solutions.

It is all read from `solutions/labs.json`, which `./lab build` writes from the labs' sources.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from labkit.system import paths
from labkit.system.errors import LabError

FILE = "labs.json"  # in solutions/
T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """The minutes of one section of a lab.

    Attributes
    ----------
    name : str
        Its number, or "questions".
    read, do, wait : float
        Minutes to read it and run its cells, to do its exercises, and to wait for its cells on two cores.
    core : bool
        Whether later sections or labs need it.
    heading : str
        Its heading in the lab, in Markdown.
    """

    name: str
    read: float = 0
    do: float = 0
    wait: float = 0
    core: bool = True
    heading: str = ""

    @property
    def minutes(self) -> float:
        """The total of its minutes."""
        return self.read + self.do + self.wait


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab.

    Attributes
    ----------
    number : int
        Its number in the lab, from 1.
    name : str
        The variable that holds the student's answer.
    cell : str
        The id of its cell, in both notebooks of the lab.
    stub, solution : str
        The cell's text in the student's notebook and in the solution.
    section : str
        The name of its section.
    title : str
        Its title, in Markdown.
    imports : str
        The lab's imports that the solution of a function uses, one per line.
    """

    number: int
    name: str
    cell: str
    stub: str
    solution: str
    section: str
    title: str
    imports: str = ""


@dataclass(frozen=True)
class Question:
    """A question that students answer with a guess.

    Attributes
    ----------
    lab : str
        The number of its lab, such as "07".
    number : int
        Its number in the lab, from 1.
    text : str
        The question in a few words; "…" stands for what is known only once the lab runs.
    unit : str
        The unit of a numeric guess, such as "×"; empty for a choice.
    choices : tuple of str
        The choices; empty for a numeric guess.
    pairs : bool
        Whether a room's wall draws each guess with its result.
    """

    lab: str
    number: int
    text: str
    unit: str = ""
    choices: tuple[str, ...] = ()
    pairs: bool = False


@dataclass(frozen=True)
class LabInfo:
    """One lab.

    Attributes
    ----------
    name : str
        The name of its files, such as "07_horovod_mnist".
    title : str
        Its title, such as "07 · Horovod on the MNIST CNN".
    sections : tuple of Section
        Its sections, in order.
    exercises : dict of int to Exercise
        Its exercises by number.
    questions : tuple of Question
        Its questions, in order.
    needs, better_with : tuple of str
        The doctor's checks without which it can't run, or has less to show, in addition to those that all labs need.
    """

    name: str
    title: str
    sections: tuple[Section, ...]
    exercises: Mapping[int, Exercise]
    questions: tuple[Question, ...]
    needs: tuple[str, ...] = ()
    better_with: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """Its number, such as "07"."""
        return self.name[:2]

    @property
    def notebook(self) -> Path:
        """The notebook that students open."""
        return paths.NOTEBOOKS / f"{self.name}.ipynb"

    @property
    def solution(self) -> Path:
        """The executed notebook with the solutions and the instructor's notes."""
        return paths.SOLUTIONS / f"{self.name}.ipynb"


def labs() -> list[LabInfo]:
    """Return all labs, in order."""
    return list(_read((paths.SOLUTIONS / FILE).read_text(encoding="utf-8")))


def find(lab: str) -> LabInfo:
    """Return the lab that `lab` refers to: `7`, `07`, `07_horovod_mnist` or the path of one of its files.

    Raises
    ------
    LabError
        If there is no such lab.
    """
    return match(lab, {info.name: info for info in labs()})


def match(lab: str, known: Mapping[str, T]) -> T:
    """Return the value of the lab that `lab` refers to (see `find`) from a mapping by file name."""
    query = Path(lab).name.removesuffix(".py").removesuffix(".ipynb")
    query = query.zfill(2) if query.isdigit() else query
    for name, value in known.items():
        if query in (name, name[:2]):
            return value
    raise LabError(f"there is no lab {lab!r}: the labs are {', '.join(known)}.")


@functools.cache
def _read(text: str) -> tuple[LabInfo, ...]:
    return tuple(_lab(name, entry) for name, entry in json.loads(text).items())


def _lab(name: str, entry: dict[str, Any]) -> LabInfo:
    return LabInfo(
        name,
        entry["title"],
        tuple(Section(**section) for section in entry["sections"]),
        {exercise["number"]: Exercise(**exercise) for exercise in entry["exercises"]},
        tuple(
            Question(name[:2], **question | {"choices": tuple(question["choices"])}) for question in entry["questions"]
        ),
        tuple(entry["needs"]),
        tuple(entry["better_with"]),
    )
