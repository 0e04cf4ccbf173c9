"""Checks an answer and reports the verdict to the student.

A lab's module registers one function per exercise:

    lab = Lab("07")

    @lab.exercise(1, hints=("…", "…"))
    def shards_are_disjoint(answer):
        got = call(answer, 10, rank=0, size=2)
        expect(len(got) == 5, f"rank 0 of 2 to take 5 of 10 digits; it took {len(got)}")

It returns when the answer is right and raises `NotYet` when it isn't. What else it raises is its own failure, and is
shown as such: a student is never blamed for a changed library.
"""

import ast
import contextlib
import ctypes
import importlib
import io
import linecache
import sys
import threading
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

from IPython import get_ipython

from labkit.display import verdict
from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED, Results
from labkit.exercises import catalogue
from labkit.exercises.answers import Calls, blame, calls, is_student_code, printed, put_back, remember_lines
from labkit.exercises.catalogue import Exercise
from labkit.exercises.moving import isolate, module_text
from labkit.exercises.outcomes import NotAttempted, NotYet, expect
from labkit.exercises.values import describe, short
from labkit.system import files
from labkit.system.errors import LabError
from labkit.system.stacks import stack_of
from labkit.system.words import plural

ANSWER_LIMIT_S = 20.0  # spent in a function of the student's; a script's runs have limits of their own
CHECK_LIMIT_S = 60.0  # for a whole check of a function, of which a slow machine may take a part for itself
POLL_S = 0.25  # between two looks at where it is


@dataclass(frozen=True)
class Check:
    """What decides on one exercise.

    Attributes
    ----------
    decide : callable
        Takes the answer (a function, or a script's path), returns when it is right, raises `NotYet` otherwise.
    hints : tuple of str
        From a nudge to nearly the answer. Each changed answer that ran and was wrong shows one more, after the one for
        its mistake (`NotYet`); the last is shown only when asked for.
    moves : bool
        Whether the answer moves into a module: `decide` gets it as it is there, not as it is in the notebook.
    """

    decide: Callable[[Any], None]
    hints: tuple[str, ...]
    moves: bool = False


class Lab:
    """The checks of one lab, by exercise number."""

    def __init__(self, number: str):
        self.number = number
        self.checks: dict[int, Check] = {}

    def exercise(self, number: int, hints: tuple[str, ...], moves: bool = False) -> Callable[..., Any]:
        """Register the decorated function as the check of exercise `number`; see `Check`."""

        def register(decide: Callable[[Any], None]) -> Callable[[Any], None]:
            self.checks[number] = Check(decide, hints, moves)
            return decide

        return register


class Checker:
    """The `check` of a notebook: shows an answer's verdict and returns one that works.

    Parameters
    ----------
    lab : Lab
        The checks.
    exercises : dict of int to Exercise
        The exercises, with their stubs and solutions.
    namespace : dict
        The notebook's globals. A solution that must stand in runs in a copy of them.
    quick : bool
        Whether this is a small run.

    Attributes
    ----------
    results : Results
        Keeps how the exercises stand, and what the notebook measures.
    """

    def __init__(self, lab: Lab, exercises: Mapping[int, Exercise], namespace: dict[str, Any], quick: bool = False):
        self.lab = lab
        self._exercises = exercises
        self._namespace = namespace
        self.results = Results(lab.number, quick)
        self._shown: defaultdict[int, list[str]] = defaultdict(list)  # hints, by exercise
        self._last_wrong: dict[int, tuple[Any, str]] = {}  # the last wrong answer's code, and the hint that it got
        self._fallbacks: dict[int, Any] = {}
        self._working: dict[int, Any] = {}
        put_back()  # remembers the libraries as they are before the first cell can change them

    def __call__(self, number: int, answer: Any, given: bool = False) -> Any:
        """Check `answer` to exercise `number`, show the verdict, and return an answer that works.

        Parameters
        ----------
        number : int
            The exercise.
        answer : callable or path
            The student's function, or script.
        given : bool
            Whether the notebook came with the solution, as a catch-up copy does: that one is not attempted.

        Returns
        -------
        object
            `answer` when it passes, the solution otherwise.
        """
        self._refuse_unknown(number)
        outcome, message = self.judge(number, answer, given)
        verdict.show(number, outcome, message.splitlines(), solution=self._exercises[number].solution)
        self.results.exercise(number, outcome, hint=len(self._shown[number]))
        self._working[number] = answer if outcome == PASSED else self._solution(number)
        return self._working[number]

    def module_text(self, *numbers: int) -> str:
        """Return the text of a module with functions of the notebook that work: own ones, or the kit's solutions."""
        answers = {self._exercises[number].name: self._working.get(number) for number in numbers}
        missing = [number for number in numbers if number not in self._working]
        return module_text(answers | {self._exercises[number].name: self._solution(number) for number in missing})

    def hint(self, number: int) -> None:
        """Show the next hint of exercise `number`, be it the last, which is nearly the answer."""
        self._refuse_unknown(number)
        verdict.show_hint(number, self._next_hint(number))
        self.results.hint(number, len(self._shown[number]))

    def _refuse_unknown(self, number: int) -> None:
        if number not in self._exercises:
            raise LabError(f"lab {self.lab.number} has no exercise {number}, only {sorted(self._exercises)}.")

    def judge(self, number: int, answer: Any, given: bool = False) -> tuple[str, str]:
        """Return the verdict on an answer and what the student should know, without showing or keeping either."""
        replaced = ", ".join(put_back())
        outcome, message = self._judge(number, answer, given)
        note = f"Your notebook had replaced {replaced}; the check has put it back." if replaced else ""
        return outcome, "\n".join(filter(None, [message, note]))

    def _judge(self, number: int, answer: Any, given: bool) -> tuple[str, str]:
        output = io.StringIO()
        before = printed.set(output)
        try:
            self._refuse_stub(number, answer, given)
            # IPython's exit() would end the kernel after the cell.
            exit_raises = mock.patch.object(get_ipython() or self, "ask_exit", sys.exit, create=True)
            with contextlib.redirect_stdout(output), warnings.catch_warnings(), exit_raises:
                warnings.simplefilter("ignore")  # of numpy on odd inputs, say: the verdict says what is wrong
                self._decide(number, answer)
        except NotAttempted as error:
            return NOT_ATTEMPTED, f"{error}The lab goes on with a solution."
        except NotYet as error:
            lines = (str(error), *_quote_output(output.getvalue()), *self._hints(number, answer, error))
            return NOT_YET, "\n".join([*lines, "The lab goes on with a solution."])
        except Exception:
            return CHECK_FAILED, (
                "This is the kit's failure, not yours; please report it. (Has a cell changed a library? Then restart "
                "the kernel.) The lab goes on with a solution.\n" + traceback.format_exc()
            )
        finally:
            printed.reset(before)
        return PASSED, ""

    def _refuse_stub(self, number: int, answer: Any, given: bool) -> None:
        """Raise `NotYet` for another kind of answer, and `NotAttempted` for the stub and the kit's own solution."""
        exercise = self._exercises[number]
        if _is_script(exercise.solution):
            expect(isinstance(answer, str | Path), f"the path of your script; it is {describe(answer)}")
            answer = Path(answer)
            expect(answer.is_file(), f"a script {answer}; run the cell that writes it")
        else:
            expect(callable(answer), f"a function; {short(answer)} is of type {type(answer).__name__}")
        fallback = self._fallbacks.get(number, self)
        if answer is fallback or (isinstance(answer, Path) and answer == fallback):
            raise NotAttempted(
                "This is the kit's solution, not yours. Run your own cell again first, then this one; if yours ends in "
                "an error, correct it. "
            )
        if _does_the_same(answer, exercise.stub, exercise.name):
            raise NotAttempted()
        if given and _does_the_same(answer, exercise.solution, exercise.name):
            raise NotAttempted("It was solved when you got it. ")

    def _decide(self, number: int, answer: Any) -> None:
        """Let the check decide, on a function within a limited time and as it is where it is used."""
        check = self.lab.checks[number]
        if not callable(answer):
            check.decide(answer)
            return
        name = self._exercises[number].name
        _run_with_limit(lambda: check.decide(isolate(name, answer) if check.moves else answer), name)

    def _solution(self, number: int) -> Any:
        """Return the lab's solution: a function, or the path of a script in the folder of the student's."""
        exercise = self._exercises[number]
        if _is_script(exercise.solution):
            script = Path(exercise.solution.split("\n")[0].split()[-1])
            script = script.with_name(f"solution_{script.name}")
            script.parent.mkdir(parents=True, exist_ok=True)
            files.write(script, _script_of(exercise.solution))
            self._fallbacks[number] = script
            return script
        filename = f"<solution of exercise {number}>"
        remember_lines(filename, exercise.solution)
        namespace = dict(self._namespace)
        exec(compile(exercise.solution, filename, "exec"), namespace)
        self._fallbacks[number] = namespace[exercise.name]
        return self._fallbacks[number]

    def _hints(self, number: int, answer: Any, mistake: NotYet) -> list[str]:
        """Return the hint that a wrong answer gets, if any: one more only when it is another answer, and ran."""
        code = _fingerprint(answer)
        last_code, last_hint = self._last_wrong.get(number, (None, ""))
        if mistake.hint and mistake.hint not in self._shown[number]:
            told = self._show(number, mistake.hint)
        elif code == last_code:
            told = last_hint
        elif _crashed(mistake):
            told = ""
        else:
            told = self._next_hint(number, unasked=True)
        self._last_wrong[number] = code, told
        return [told] if told else []

    def _next_hint(self, number: int, unasked: bool = False) -> str:
        """Return the exercise's next hint, or the last once more; the last only for who asks for it."""
        hints, shown = self.lab.checks[number].hints, self._shown[number]
        hint = next((hint for hint in hints if hint not in shown), hints[-1])
        if unasked and hint == hints[-1] and hint not in shown:
            return f"The last hint is nearly the answer. To see it, run check.hint({number}) in a new cell."
        return self._show(number, hint)

    def _show(self, number: int, hint: str) -> str:
        """Note that a hint is shown, and return it as it is told."""
        hints, shown = self.lab.checks[number].hints, self._shown[number]
        if hint not in shown:
            shown.append(hint)
        place = f" {hints.index(hint) + 1} of {len(hints)}" if hint in hints else ""
        return f"Hint{place}: {hint}"


def checker(number: str, namespace: dict[str, Any], quick: bool = False) -> Checker:
    """Return the `check` of lab `number` ("07"), for a notebook with the globals `namespace`."""
    return Checker(checks_of(number), catalogue.find(number).exercises, namespace, quick)


def checks_of(number: str) -> Lab:
    """Return the checks of lab `number`."""
    lab: Lab = importlib.import_module(f"labkit.exercises.lab{number}").lab
    return lab


def _is_script(cell_source: str) -> bool:
    return cell_source.startswith("%%writefile")


def _script_of(cell_source: str) -> str:
    """Return the script that a `%%writefile` cell writes."""
    return cell_source.partition("\n")[2] + "\n"


def _fingerprint(answer: Any) -> Any:
    """Return what two answers share that do the same by the same code."""
    if isinstance(answer, str | Path):
        with contextlib.suppress(OSError):
            return Path(answer).read_bytes()
    code = getattr(answer, "__code__", None)
    return _instructions(code) if code else id(answer)  # of an array, == is no bool


def _crashed(mistake: NotYet) -> bool:
    """Whether the answer raised, or did not run, in place of doing something wrong."""
    cause = mistake.__cause__
    while isinstance(cause, NotYet):
        cause = cause.__cause__
    return cause is not None


def _quote_output(output: str) -> list[str]:
    """Return what an answer printed as a line of the verdict, which has room for its last words; none for nothing."""
    lines = [line for line in output.splitlines() if line.strip()]
    return [f"It printed: {' / '.join(short_line[:100] for short_line in lines[-3:])}"] if lines else []


def _does_the_same(answer: Any, cell_source: str, name: str) -> bool:
    """Whether an answer is what a cell makes, a script or the function `name`, whatever its comments."""
    if isinstance(answer, Path):
        try:
            trees = [ast.parse(text) for text in (answer.read_bytes(), _script_of(cell_source))]
        except (SyntaxError, ValueError):  # ValueError: of a null byte
            return False
        return ast.dump(trees[0]) == ast.dump(trees[1])
    module = compile(cell_source, "<cell>", "exec")
    code = next((part for part in module.co_consts if isinstance(part, CodeType) and part.co_name == name), None)
    return code is not None and hasattr(answer, "__code__") and _instructions(answer.__code__) == _instructions(code)


def _instructions(code: CodeType) -> tuple[Any, ...]:
    """Return what code does, whatever its docstring and its place in a file."""
    constants = [
        _instructions(constant) if isinstance(constant, CodeType) else (type(constant), repr(constant))
        for constant in code.co_consts[code.co_name != "<lambda>" :]  # but for the first, the docstring or None
    ]
    return code.co_code, code.co_names, code.co_varnames, constants


def _run_with_limit(decide: Callable[[], None], name: str) -> None:
    """Let a check decide; raise `NotYet` with the student's line that it hangs in when the time is up.

    It has a thread of its own, which can be left behind when it waits in compiled code for what never comes.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            decide()
        except BaseException as error:
            failed.append(blame(error))

    made = Calls()
    context = copy_context()
    context.run(calls.set, made)
    thread = threading.Thread(target=context.run, args=(run,), daemon=True)
    thread.start()
    began, inside_s, where = time.monotonic(), 0.0, ""
    try:
        while thread.is_alive() and inside_s < ANSWER_LIMIT_S and time.monotonic() < began + CHECK_LIMIT_S:
            thread.join(POLL_S)
            if line := _student_line(thread):
                inside_s, where = inside_s + POLL_S, f" It was in {line}."
        if thread.is_alive():
            raise NotYet(_time_is_up(name, made, time.monotonic() - began, where))
    finally:  # also after an interrupt
        _stop(thread)
    if failed:
        raise failed[0]


def _time_is_up(name: str, made: Calls, took_s: float, where: str) -> str:
    """Return what was running when the time was up, and how many calls had returned before."""
    before = f"{plural(made.returned, 'call')} and " if made.returned else ""
    return (
        f"Expected {str(made) or name} to finish; it was still running after {before}{took_s:.0f} s.{where} Is it too "
        "slow, does its loop never end, or does it wait for what never happens?"
    )


def _student_line(thread: threading.Thread) -> str:
    """Return which line of the student's code a thread is in; empty when it is in none."""
    lines = [(file, number) for file, number in stack_of(thread.ident) if is_student_code(file)]
    return f'line {lines[-1][1]}: "{linecache.getline(*lines[-1]).strip()}"' if lines else ""


def _stop(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread that still runs, for a second should it be caught, and leave it alone then."""
    for _ in range(10):
        if thread.ident is None or not thread.is_alive():
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        thread.join(0.1)
