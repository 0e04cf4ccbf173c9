"""Exercises as data: the cases, what an answer returns in them, and the mistakes that have names.

A lab's module in `labkit.exercises.labs` has a `Reference` for each of its exercises:

    EXERCISES[1] = Reference(
        cases=[(0,), (3,)],
        more=st.tuples(st.integers(-9, 9)),
        wrong={"x were not doubled": {"2 * ": ""}},
        also=[lambda x: x + x],
        hints=("How much is twice x?", "2 * x"),
    )

The right answer is the lab's own solution (`catalogue.Exercise`). An answer is compared with it in each case, after it
has returned, within tolerances. The message names a mistake if that wrong answer behaves the same in all cases: it
returns the same, or raises too.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from labkit.exercises.catalogue import Exercise
from labkit.exercises.engine.answers import call, copied, for_all, format_call
from labkit.exercises.engine.outcomes import NotYet, refuse
from labkit.exercises.engine.values import describe, equal, expect_equal, has_format, parts, plain
from labkit.system.errors import LabError

Answer = Callable[..., Any]
Edits = Mapping[str, str]  # what replaces parts of the solution's text
RIGHT = "<right answer>"  # its file in tracebacks, which are not the student's
NAMING_LIMIT_S = 2.0  # CPU time for the name of a mistake; a slow answer's stays unnamed


class Case(NamedTuple):
    """One case of an exercise; a tuple of arguments alone will do where nothing is to be added.

    Attributes
    ----------
    args : tuple
        The arguments.
    label : str
        The case in messages; by default, `Reference.case` names it.
    because : str
        An explanation of the right result, such as "half of the warm-up".
    """

    args: tuple[Any, ...]
    label: str = ""
    because: str = ""


@dataclass(frozen=True)
class Result:
    """One value that an answer returns.

    Attributes
    ----------
    name : str
        Its name in messages, such as "operations"; empty if the answer returns nothing else.
    rel, abs : float
        Tolerances, as in `math.isclose`.
    array : bool
        Whether a later cell uses it as an array, so that a list won't do.
    format : str
        The format in which a later cell prints it, such as ".1f"; not every type of number supports one.
    hint : str
        The hint for a wrong value, unless the mistake has a name and a hint of its own.
    holds : callable, optional
        Raises `NotYet` if it lacks a property; it is then not compared.
    """

    name: str = ""
    rel: float = 1e-6
    abs: float = 1e-9
    array: bool = False
    format: str = ""
    hint: str = ""
    holds: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Reference:
    """One exercise.

    Attributes
    ----------
    cases : sequence of Case or tuple
        Examples, the simplest first. Together they tell all wrong answers apart.
    wrong : mapping of str to callable or dict
        Wrong answers, by the end of the sentence "It is as if …": functions, or edits to the solution.
    also : sequence of callable or dict
        Right answers that are written differently.
    hints : tuple of str
        From a nudge to nearly the answer (`checker.Check`).
    hint_for : mapping of str to str
        Hints for some of the wrong answers.
    returns : tuple of Result
        What an answer returns.
    more : Hypothesis strategy, optional
        Further cases: tuples of arguments.
    use : callable
        Takes an answer and a case's arguments, and returns what is compared; by default, it calls the answer with them.
    case : callable, optional
        Takes a case's arguments and returns its name in messages; by default, it is the call.
    """

    cases: Sequence[Case | tuple[Any, ...]]
    wrong: Mapping[str, Answer | Edits]
    also: Sequence[Answer | Edits]
    hints: tuple[str, ...]
    hint_for: Mapping[str, str] = field(default_factory=dict)
    returns: tuple[Result, ...] = (Result(),)
    more: Any = None
    use: Callable[..., Any] = lambda answer, *args: answer(*args)
    case: Callable[..., str] | None = None

    def check(self, exercise: Exercise, answer: Answer) -> None:
        """Raise `NotYet` unless an answer returns what the exercise's solution returns, in each case."""
        decide = functools.partial(self._decide, exercise, solution_of(exercise), answer)
        for case in self.examples():
            decide(case)
        if self.more is not None:
            for_all(lambda args: decide(Case(args)), self.more)

    def examples(self) -> list[Case]:
        """Return the fixed cases."""
        return [case if isinstance(case, Case) else Case(case) for case in self.cases]

    def outcome(self, function: Answer, case: Case) -> list[Any] | None:
        """Return a wrong function's results in one case; None if it raises."""
        try:
            with np.errstate(all="ignore"):
                return [plain(result) for result in self._results(function, case)]
        except Exception:  # a mistake may raise in some cases, as the answer that it describes does
            return None

    def same(self, first: Sequence[Any], second: Sequence[Any], indices: Iterable[int]) -> bool:
        """Return whether two answers have the same results, within tolerances."""
        parts = [(i, self.returns[i]) for i in indices if self.returns[i].holds is None]
        return all(equal(first[i], second[i], part.rel, part.abs) for i, part in parts)

    def _decide(self, exercise: Exercise, right: Answer, answer: Answer, case: Case) -> None:
        """Raise `NotYet` unless an answer is right in one case; compute what is right after it has returned."""
        label = case.label or (self.case or functools.partial(format_call, answer))(*case.args)
        results = self._results(functools.partial(call, answer), case, label)
        values = [plain(result) for result in results]
        expected = [plain(result) for result in self._results(right, case)]
        for index, (result, part) in enumerate(zip(results, self.returns, strict=True)):
            name = f"the {part.name} of {label}" if part.name else label
            if part.holds is not None:
                part.holds(result)
                continue
            if part.array and isinstance(result, list | tuple):
                refuse(f"{name} to be an array of shape {expected[index].shape}; it is {describe(result)}", part.hint)
            try:
                expect_equal(values[index], expected[index], name, part.rel, part.abs, case.because)
            except NotYet as mistake:
                why = self._name(exercise, case, index, answer)
                message = f"{mistake} It is as if {why}." if why else str(mistake)
                raise NotYet(message, self.hint_for.get(why, part.hint)) from None
            if not has_format(result, part.format):
                refuse(f"{name} to be an int or a float, for later cells to print; it is {describe(result)}")

    def _results(self, function: Answer, case: Case, label: str = "the case") -> list[Any]:
        """Return the results of a function in one case, as they are."""
        result = self.use(function, *copied(case.args))
        if len(self.returns) == 1:
            return [result]
        *first, last = [part.name for part in self.returns]
        return parts(result, len(self.returns), f"{', '.join(first)} and {last} of {label}")

    def _name(self, exercise: Exercise, failing: Case, index: int, answer: Answer) -> str:
        """Return the mistake that an answer makes in all cases, in all results or just the failing one, if any."""
        deadline = time.thread_time() + NAMING_LIMIT_S
        answered = []
        for case in (*self.examples(), failing):  # last, so that what it printed is quoted
            answered.append((case, self.outcome(functools.partial(call, answer), case)))
            if time.thread_time() > deadline:
                return ""

        def equals(wrong: Answer, indices: Iterable[int]) -> bool:
            for case, mine in reversed(answered):
                result = self.outcome(wrong, case)
                if result is None or mine is None:
                    if result is not mine:  # only one of them raises
                        return False
                elif not self.same(mine, result, indices):
                    return False
            return True

        every, one = range(len(self.returns)), (index,)
        functions = {why: function_of(exercise, wrong) for why, wrong in self.wrong.items()}
        names = (why for indices in (every, one) for why, wrong in functions.items() if equals(wrong, indices))
        return next(names, "")


def solution_of(
    exercise: Exercise, namespace: Mapping[str, Any] = MappingProxyType({}), filename: str = RIGHT
) -> Answer:
    """Return an exercise's solution, a function, defined in a copy of `namespace`."""
    names = dict(namespace)
    exec(compile(source_of(exercise), filename, "exec"), names)
    solution: Answer = names[exercise.name]
    return solution


def function_of(exercise: Exercise, answer: Answer | Edits) -> Answer:
    """Return an answer as a function, also if it is edits to the exercise's solution."""
    if callable(answer):
        return answer
    solution = exercise.solution
    for before, after in answer.items():
        if before not in solution:
            raise LabError(f"the solution of exercise {exercise.number} doesn't contain {before!r}: change the edit.")
        solution = solution.replace(before, after)
    return solution_of(replace(exercise, solution=solution))


def source_of(exercise: Exercise) -> str:
    """Return an exercise's solution with the imports that it uses."""
    if exercise.solution.startswith("%%writefile"):
        return script_of(exercise.solution)
    return f"{exercise.imports}\n\n\n{exercise.solution}\n".lstrip()


def script_of(cell_source: str) -> str:
    """Return the script that a `%%writefile` cell writes."""
    return cell_source.partition("\n")[2] + "\n"
