"""How is an answer checked, and what is the student told?

A lab's module registers one function per exercise:

    lab = Lab("07")

    @lab.exercise(1, hints=("…", "…"))
    def shards_are_disjoint(answer):
        got = call(answer, 10, rank=0, size=2)
        expect(len(got) == 5, f"rank 0 of 2 to take 5 of 10 digits; it took {len(got)}")

It returns when the answer is right and raises `NotYet` when it isn't. What else it raises is its own failure, and is
shown as such: a student is never blamed for a changed library.
"""

import importlib
import inspect
import json
import linecache
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit import sources
from labkit.errors import LabError
from labkit.launch import RankError, Run, run_ranks
from labkit.results import PASSED, Results


class NotYet(Exception):
    """The answer does something else than it should: what was expected and what came, for the student."""


class NotAttempted(Exception):
    """The answer is still the stub, or the solution that stood in for it: what to do, if anything, for the student."""


@dataclass(frozen=True)
class Check:
    """What decides on one exercise.

    Attributes
    ----------
    decide : callable
        Takes the answer (a function, or a script's path), returns when it is right, raises `NotYet` otherwise.
    hints : tuple of str
        From a nudge to nearly the answer; each further try shows one more.
    """

    decide: Callable[[Any], None]
    hints: tuple[str, ...]


class Lab:
    """The checks of one lab, by exercise number."""

    def __init__(self, number: str):
        self.number = number
        self.checks: dict[int, Check] = {}

    def exercise(self, number: int, hints: tuple[str, ...]) -> Callable:
        """Register the decorated function as the check of exercise `number`."""

        def register(decide: Callable[[Any], None]) -> Callable[[Any], None]:
            self.checks[number] = Check(decide, hints)
            return decide

        return register


def expect(condition: bool, expectation: str) -> None:
    """Raise `NotYet` unless `condition`; `expectation` completes the sentence "Expected …"."""
    if not condition:
        raise NotYet(f"Expected {expectation}.")


def kind(value: object) -> str:
    """Say of what type an answer is, for an expectation that it is of another."""
    return "None: does it return?" if value is None else f"a {type(value).__name__}"


def is_number(value: object) -> bool:
    """Whether an answer is a number; True and False are none."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def call(answer: Callable, *args: Any, **kwargs: Any) -> Any:
    """Call a student's function; what it raises is the answer's failure, not the check's."""
    try:
        return answer(*args, **kwargs)
    except NotImplementedError as error:
        raise NotAttempted from error
    except Exception as error:
        shown = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f' in line {line.lineno}: "{line.line}"' if line.line else ""
        name = getattr(answer, "__name__", "your answer")
        raise NotYet(f"{name}({shown}) raised {type(error).__name__}: {error}{where}.") from error


def alone(answer: Callable, **modules: Any) -> Callable:
    """Give the function as it is without the notebook around it, with `modules` as its only globals.

    For a function that moves into a script's module: what works by a notebook variable would fail there.
    """
    namespace = dict(modules)
    text = inspect.getsource(answer)
    filename = f"<{answer.__name__} on its own>"
    _remember_lines(filename, text)
    exec(compile(text, filename, "exec"), namespace)
    return namespace[answer.__name__]


def run_answer(ranks: int, script: Path, *args: Any, **options: Any) -> Run:
    """Run a student's script (or a probe that imports it) on `ranks` ranks; a rank's failure is the answer's."""
    try:
        return run_ranks(ranks, script, *args, show=False, **options)
    except RankError as error:
        raise NotYet(f"Your script, on {ranks} {'rank' if ranks == 1 else 'ranks'}: {error}") from error


def facts(run: Run) -> list[dict[str, Any]]:
    """Give what each rank of a run printed as `FACTS {…}`, by rank.

    Raises
    ------
    NotYet
        When a rank ended before it came to that line, as after an early `sys.exit(0)`.
    """
    told = [[line.removeprefix("FACTS ") for line in lines if line.startswith("FACTS ")] for lines in run.lines]
    for rank, found in enumerate(told):
        expect(len(found) == 1, f"rank {rank} to come to the end of the script; it left before")
    return [json.loads(found[0]) for found in told]


class Checker:
    """The `check` of a notebook: says how an answer does and gives back one that works.

    Parameters
    ----------
    lab : Lab
        The checks.
    source : Path
        The lab's source, which has the solutions.
    namespace : dict
        The notebook's globals. A solution that must stand in runs in a copy of them.
    quick : bool
        Whether this is a small run.

    Attributes
    ----------
    results : Results
        Keeps how the exercises stand, and what the notebook measures.
    """

    def __init__(self, lab: Lab, source: Path, namespace: dict[str, Any], quick: bool = False):
        self.lab = lab
        self._notebook = sources.read(source)
        self._exercises = sources.exercises(self._notebook)
        self._namespace = namespace
        self.results = Results(lab.number, quick)
        self._tries: Counter[int] = Counter()
        self._stand_ins: dict[int, Any] = {}

    def __call__(self, number: int, answer: Any) -> Any:
        """Check `answer` to exercise `number`, say what came of it in print, and give an answer that works.

        Returns
        -------
        object
            `answer` when it passes, the solution otherwise.
        """
        if number not in self.lab.checks:
            raise LabError(f"lab {self.lab.number} has no exercise {number}, only {sorted(self.lab.checks)}.")
        try:
            self._refuse_stub(number, answer)
            self.lab.checks[number].decide(answer)
        except NotAttempted as error:
            self._say(number, "not attempted", f"{error}The lab goes on with a solution.")
        except NotYet as error:
            self._say(number, "not yet", f"{error}\n{self._hint(number)}\nThe lab goes on with a solution.")
        except Exception:
            self._say(
                number,
                "the check itself failed",
                "This is the kit's failure, not yours; please report it. The lab goes on with a solution.\n"
                + traceback.format_exc(),
            )
        else:
            self._say(number, PASSED)
            return answer
        return self._solution(number)

    def _refuse_stub(self, number: int, answer: Any) -> None:
        """Raise `NotAttempted` for a stand-in given back, and for a script that is still as the notebook wrote it."""
        if isinstance(answer, str | Path):
            script = Path(answer)
            expect(script.is_file(), f"a script {script}; run the cell that writes it")
            cell = sources.blank(self._notebook).cells[self._exercises[number].cell]
            if _script_of(cell.source).strip() == script.read_text().strip():
                raise NotAttempted
        elif answer is self._stand_ins.get(number):
            raise NotAttempted("This is the solution that stood in. Run your own cell again first, then this one. ")
        else:
            expect(callable(answer), f"a function; {answer!r} is of type {type(answer).__name__}")

    def _solution(self, number: int) -> Any:
        """Give the solution from the lab's source: a function, or the path of a script written beside the student's."""
        exercise = self._exercises[number]
        if exercise.solution.startswith("%%writefile"):
            script = Path(exercise.solution.split("\n")[0].split()[-1])
            script = script.with_name(f"solution_{script.name}")
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(_script_of(exercise.solution))
            return script
        filename = f"<solution of exercise {number}>"
        _remember_lines(filename, exercise.solution)
        namespace = dict(self._namespace)
        exec(compile(exercise.solution, filename, "exec"), namespace)
        self._stand_ins[number] = namespace[exercise.name]
        return self._stand_ins[number]

    def _hint(self, number: int) -> str:
        hints = self.lab.checks[number].hints
        shown = min(self._tries[number], len(hints) - 1)
        self._tries[number] += 1
        return f"Hint {shown + 1} of {len(hints)}: {hints[shown]}"

    def _say(self, number: int, verdict: str, more: str = "") -> None:
        print(f"Exercise {number} · {verdict}.", *more.splitlines(), sep="\n   ")
        self.results.exercise(number, verdict)


def checker(number: str, namespace: dict[str, Any], quick: bool = False) -> Checker:
    """Give the `check` of lab `number` ("07"), for a notebook with the globals `namespace`."""
    lab = importlib.import_module(f"labkit.exercises.lab{number}").lab
    return Checker(lab, sources.find(number), namespace, quick)


def _script_of(cell_source: str) -> str:
    """Give what a `%%writefile` cell writes."""
    return cell_source.partition("\n")[2] + "\n"


def _remember_lines(filename: str, text: str) -> None:
    """Let tracebacks and `inspect.getsource` find text that was compiled from a string."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
