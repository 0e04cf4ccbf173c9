"""Check answers and report the verdicts to the student.

A check returns if the answer is right and raises `NotYet` if it isn't. Any other exception is a failure of the check
and is shown as one: a student is never blamed for a changed library.
"""

import ast
import contextlib
import ctypes
import io
import linecache
import re
import sys
import threading
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

from IPython import get_ipython

from labkit.display import verdict
from labkit.display.results import CHECK_FAILED, NOT_ATTEMPTED, NOT_YET, PASSED, Results
from labkit.exercises import catalogue, labs
from labkit.exercises.catalogue import Exercise
from labkit.exercises.engine import launches, modules
from labkit.exercises.engine.answers import (
    Calls,
    answer_output,
    blame,
    calls,
    changed_before,
    changed_libraries,
    is_student_code,
    remember_lines,
)
from labkit.exercises.engine.outcomes import NotAttempted, NotYet, expect
from labkit.exercises.engine.reference import Reference, script_of, solution_of, source_of
from labkit.exercises.engine.values import describe, short
from labkit.system import files
from labkit.system.errors import LabError
from labkit.system.stacks import stack_of
from labkit.system.words import plural

ANSWER_LIMIT_S = 20.0  # inside the student's function; script runs have their own limits
CHECK_LIMIT_S = 60.0  # for a function's whole check, including the check's own time on a slow machine
POLL_S = 0.25  # between samples of the student's line
_BLANK_IN_C = re.compile(r"//[^\n]*|/\*.*?\*/|\s+", re.S)  # comments and white space
STILL_RUNS = "Python can't end it, so it still runs: restart the kernel before you measure."


@dataclass(frozen=True)
class Check:
    """The check of one exercise.

    Attributes
    ----------
    decide : callable
        Takes the answer (a function or a script's path); returns if it is right and raises `NotYet` otherwise.
    hints : tuple of str
        From a nudge to nearly the answer. Each new answer that runs and is wrong shows one more, after the hint for its
        mistake (`NotYet`); the last is shown only on request.
    loads : bool
        Whether the answer is a file that ranks import: `decide` gets its function (`modules`).
    mistakes : tuple of str
        The mistakes that it names, each the end of the sentence "It is as if …".
    """

    decide: Callable[[Any], None]
    hints: tuple[str, ...]
    loads: bool = False
    mistakes: tuple[str, ...] = ()


class Lab:
    """The checks of one lab, by exercise number."""

    def __init__(self, number: str):
        self.number = number
        self.checks: dict[int, Check] = {}

    def add(self, exercise: Exercise, reference: Reference) -> None:
        """Add an exercise that is data."""
        decide, in_file = partial(reference.check, exercise), _is_script(exercise.solution)
        self.checks[exercise.number] = Check(decide, reference.hints, loads=in_file, mistakes=tuple(reference.wrong))


class _Output(io.StringIO):
    """The output of an answer, which the answer can't close."""

    def close(self) -> None:
        pass


class Checker:
    """A notebook's `check`: shows the verdict on an answer and returns a working one.

    Parameters
    ----------
    lab : Lab
        The checks.
    exercises : dict of int to Exercise
        The exercises, with their stubs and solutions.
    namespace : dict
        The notebook's globals. A fallback solution runs in a copy of them.
    quick : bool
        Whether this is a small run.

    Attributes
    ----------
    results : Results
        Stores the verdicts, and the notebook's measurements.
    """

    def __init__(self, lab: Lab, exercises: Mapping[int, Exercise], namespace: dict[str, Any], quick: bool = False):
        self.lab = lab
        self._exercises = exercises
        self._namespace = namespace
        self.results = Results(lab.number, quick)
        self._shown: defaultdict[int, list[str]] = defaultdict(list)  # hints, by exercise
        self._last_wrong: dict[int, tuple[Any, str]] = {}  # the last wrong answer's code and its hint
        self._fallbacks: dict[int, Any] = {}
        self._outcomes: dict[int, str] = {}
        changed_libraries()  # records the libraries before any cell can change them

    def __call__(self, number: int, answer: Any, given: bool = False) -> Any:
        """Check `answer` to exercise `number`, show the verdict, and return a working answer.

        Parameters
        ----------
        number : int
            The exercise.
        answer : callable or path
            The student's function, script, or file with the function.
        given : bool
            Whether the notebook came with the solution, as a catch-up copy does: unchanged, it is not attempted.

        Returns
        -------
        object
            `answer`, or its function, when it passes; the solution otherwise.
        """
        self._refuse_unknown(number)
        outcome, message = self.judge(number, answer, given)
        verdict.show(number, outcome, message.splitlines(), solution=self._solution_text(number))
        self.results.exercise(number, outcome, hint=len(self._shown[number]))
        self._outcomes[number] = outcome
        if self.lab.checks[number].loads:
            return self._publish(number, answer)
        return answer if outcome == PASSED else self._solution(number)

    def hint(self, number: int) -> None:
        """Show the next hint of exercise `number`, even the last, which is nearly the answer."""
        self._refuse_unknown(number)
        verdict.show_hint(number, self._next_hint(number))
        self.results.hint(number, len(self._shown[number]))

    def _refuse_unknown(self, number: int) -> None:
        if number not in self._exercises:
            raise LabError(f"lab {self.lab.number} has no exercise {number}; choose from {sorted(self._exercises)}.")

    def judge(self, number: int, answer: Any, given: bool = False, hints: bool = True) -> tuple[str, str]:
        """Return the verdict on an answer and the message for the student, without showing or storing either.

        Without `hints`, the message has none, and the answer doesn't count as an attempt.
        """
        changed = changed_libraries()
        before = changed_before.set(changed)
        try:
            outcome, message = self._judge(number, answer, given, hints)
        finally:
            changed_before.reset(before)
        note = f"Your notebook replaced {', '.join(sorted(changed))}, which checks use: restart the kernel."
        return outcome, "\n".join(filter(None, [message, note if changed else ""]))

    def _judge(self, number: int, answer: Any, given: bool, hints: bool) -> tuple[str, str]:
        output = _Output()
        before = answer_output.set(output)
        try:
            # IPython's exit() would end the kernel after the cell.
            exit_raises = mock.patch.object(get_ipython() or self, "ask_exit", sys.exit, create=True)
            with contextlib.redirect_stdout(output), warnings.catch_warnings(), exit_raises:
                warnings.simplefilter("ignore")  # NumPy's on odd inputs, say; the verdict says what is wrong
                with self._loaded(number, answer) as answer:
                    self._refuse_stub(number, answer, given)
                    self._decide(number, answer)
        except NotAttempted as error:
            return NOT_ATTEMPTED, f"{error}The lab continues with a solution."
        except NotYet as error:
            shown = self._hints(number, answer, error) if hints else []
            lines = (str(error), *_quote_output(output.getvalue()), *shown)
            return NOT_YET, "\n".join([*lines, "The lab continues with a solution."])
        except Exception:
            return CHECK_FAILED, (
                "This is the kit's fault, not yours; please report it. (If a cell changed a library, restart the "
                "kernel.) The lab continues with a solution.\n" + traceback.format_exc()
            )
        finally:
            answer_output.reset(before)
        return PASSED, ""

    def _refuse_stub(self, number: int, answer: Any, given: bool) -> None:
        """Raise `NotYet` for an answer of the wrong type, and `NotAttempted` for the stub or the kit's solution."""
        exercise = self._exercises[number]
        if _is_script(exercise.solution) and not self.lab.checks[number].loads:
            answer = _existing(answer)
        else:
            expect(callable(answer), f"a function; {short(answer)} is of type {type(answer).__name__}")
        fallback = self._fallbacks.get(number, self)
        if answer is fallback or (isinstance(answer, Path) and answer == fallback):
            raise NotAttempted(
                "This is the kit's solution, not yours. Run your own cell again, then this one; if yours raises an "
                "error, fix it first. "
            )
        if _has_same_code(answer, exercise.stub, exercise.name):
            raise NotAttempted()
        if given and _has_same_code(answer, exercise.solution, exercise.name):
            raise NotAttempted("Your copy came with the solution. ")

    @contextlib.contextmanager
    def _loaded(self, number: int, answer: Any) -> Iterator[Any]:
        """Let the block use the function in a file that ranks import; another answer is as it is."""
        if not self.lab.checks[number].loads:
            yield answer
            return
        path, exercise, names = _existing(answer), self._exercises[number], dict[str, Any]()
        imported = _path_of(exercise.solution)
        expect(path.resolve() == imported.resolve(), f"the file {imported}, which scripts import; the answer is {path}")
        _run_with_limit(lambda: names.update(modules.load(path.parent, path.stem)), str(path))
        expect(exercise.name in names, f"{path} to define {exercise.name}")
        with modules.importable(path.parent):
            yield names[exercise.name]

    def _publish(self, number: int, answer: Any) -> Any:
        """Publish the functions of the file that an exercise shares with others, and return the exercise's."""
        exercise = self._exercises[number]
        passed = {}
        for n, other in self._exercises.items():
            if other.cell == exercise.cell:  # what its own check refused stays the kit's until it is checked again
                known = n == number or self._outcomes.get(n) == NOT_YET
                outcome = self._outcomes[n] if known else self.judge(n, answer, hints=False)[0]
                passed[other.name] = outcome == PASSED
        return modules.publish(_path_of(exercise.solution), passed, script_of(exercise.solution))[exercise.name]

    def _solution_text(self, number: int) -> str:
        """Return the solution to show; of a file that exercises share, only this exercise's function."""
        exercise = self._exercises[number]
        if not self.lab.checks[number].loads:
            return exercise.solution
        return modules.function_text(script_of(exercise.solution), exercise.name)

    def _decide(self, number: int, answer: Any) -> None:
        """Run the check; a function gets a time limit."""
        check = self.lab.checks[number]
        if not callable(answer):
            check.decide(answer)
            return
        _run_with_limit(lambda: check.decide(answer), self._exercises[number].name)

    def _solution(self, number: int) -> Any:
        """Return the lab's solution: a function, or the path of a script next to the student's."""
        exercise = self._exercises[number]
        if _is_script(exercise.solution):
            script = _path_of(exercise.solution)
            script = script.with_name(f"solution_{script.name}")
            script.parent.mkdir(parents=True, exist_ok=True)
            files.write(script, script_of(exercise.solution))
            self._fallbacks[number] = script
            return str(script)
        filename = f"<solution of exercise {number}>"
        remember_lines(filename, source_of(exercise))
        self._fallbacks[number] = solution_of(exercise, self._namespace, filename)
        return self._fallbacks[number]

    def _hints(self, number: int, answer: Any, mistake: NotYet) -> list[str]:
        """Return the hint for a wrong answer, if any: the next one only for a new answer that ran."""
        code = _fingerprint(answer)
        last_code, last_hint = self._last_wrong.get(number, (None, ""))
        if mistake.hint and mistake.hint not in self._shown[number]:
            hint = self._show(number, mistake.hint)
        elif code == last_code:
            hint = last_hint
        elif _crashed(mistake):
            hint = ""
        else:
            hint = self._next_hint(number, requested=False)
        self._last_wrong[number] = code, hint
        return [hint] if hint else []

    def _next_hint(self, number: int, requested: bool = True) -> str:
        """Return the exercise's next hint, or the last one again; the last one only on request."""
        hints, shown = self.lab.checks[number].hints, self._shown[number]
        hint = next((hint for hint in hints if hint not in shown), hints[-1])
        if not requested and hint == hints[-1] and hint not in shown:
            return f"The last hint is nearly the answer. To see it, run check.hint({number}) in a new cell."
        return self._show(number, hint)

    def _show(self, number: int, hint: str) -> str:
        """Record that a hint is shown, and return its text with its number."""
        hints, shown = self.lab.checks[number].hints, self._shown[number]
        if hint not in shown:
            shown.append(hint)
        position = f" {hints.index(hint) + 1} of {len(hints)}" if hint in hints else ""
        return f"Hint{position}: {hint}"


def checker(number: str, namespace: dict[str, Any], quick: bool = False) -> Checker:
    """Return the `check` of lab `number` ("07"), for a notebook with the globals `namespace`."""
    return Checker(checks_of(number), catalogue.find(number).exercises, namespace, quick)


def checks_of(number: str) -> Lab:
    """Return the checks of lab `number`."""
    lab = Lab(number)
    for exercise, reference in labs.references(number).items():
        lab.add(catalogue.find(number).exercises[exercise], reference)
    for exercise, on_ranks in labs.on_ranks(number).items():
        lab.checks[exercise] = Check(partial(launches.check, on_ranks), on_ranks.hints)
    for exercise, in_c in labs.in_c(number).items():
        lab.checks[exercise] = Check(in_c.check, in_c.hints)
    return lab


def _is_script(cell_source: str) -> bool:
    return cell_source.startswith("%%writefile")


def _path_of(cell_source: str) -> Path:
    """Return the path that a `%%writefile` cell writes."""
    return Path(cell_source.partition("\n")[0].split()[-1])


def _existing(answer: Any) -> Path:
    """Return the path of a script or file that exists."""
    expect(isinstance(answer, str | Path), f"the path of your script; the answer is {describe(answer)}")
    expect(Path(answer).is_file(), f"the script {answer} to exist; run the cell that writes it")
    return Path(answer)


def _fingerprint(answer: Any) -> Any:
    """Return a value that is equal for answers with the same code."""
    if isinstance(answer, str | Path):
        with contextlib.suppress(OSError):
            return Path(answer).read_bytes()
    code = getattr(answer, "__code__", None)
    return _instructions(code) if code else id(answer)  # for an array, == is not a bool


def _crashed(mistake: NotYet) -> bool:
    """Whether the answer raised or did not run, rather than giving a wrong result."""
    cause = mistake.__cause__
    while isinstance(cause, NotYet):
        cause = cause.__cause__
    return cause is not None


def _quote_output(output: str) -> list[str]:
    """Return a line of the verdict with the last lines that an answer printed, if any."""
    lines = [line for line in output.splitlines() if line.strip()]
    return [f"It printed: {' / '.join(line[:100] for line in lines[-3:])}"] if lines else []


def _has_same_code(answer: Any, cell_source: str, name: str) -> bool:
    """Whether an answer, a script or the function `name`, has the same code as a cell, comments aside."""
    if isinstance(answer, Path):
        if answer.suffix == ".c":
            texts = answer.read_text(encoding="utf-8", errors="replace"), script_of(cell_source)
            return len({_BLANK_IN_C.sub("", text) for text in texts}) == 1
        try:
            trees = [ast.parse(text) for text in (answer.read_bytes(), script_of(cell_source))]
        except (SyntaxError, ValueError):  # ValueError: a null byte
            return False
        return ast.dump(trees[0]) == ast.dump(trees[1])
    module = compile(script_of(cell_source) if _is_script(cell_source) else cell_source, "<cell>", "exec")
    code = next((part for part in module.co_consts if isinstance(part, CodeType) and part.co_name == name), None)
    return code is not None and hasattr(answer, "__code__") and _instructions(answer.__code__) == _instructions(code)


def _instructions(code: CodeType) -> tuple[Any, ...]:
    """Return the parts of a code object that determine its behaviour, without docstring and line numbers."""
    constants = [
        _instructions(constant) if isinstance(constant, CodeType) else (type(constant), repr(constant))
        for constant in code.co_consts[code.co_name != "<lambda>" :]  # without the first, the docstring or None
    ]
    return code.co_code, code.co_names, code.co_varnames, constants


def _run_with_limit(decide: Callable[[], None], name: str) -> None:
    """Run a check; when the time is up, raise `NotYet` with the student's line in which it hangs.

    The check runs in its own thread, which can be abandoned if it blocks forever in compiled code.
    """
    failed: list[BaseException] = []
    done = threading.Event()  # an interrupt during Thread.join makes Python 3.11 take the thread for an ended one

    def run() -> None:
        try:
            decide()
        except BaseException as error:
            failed.append(blame(error))
        finally:
            done.set()

    progress = Calls()
    context = copy_context()
    context.run(calls.set, progress)
    thread = threading.Thread(target=context.run, args=(run,), daemon=True)
    started, inside_s, where, in_time = time.monotonic(), 0.0, "", True
    try:
        thread.start()
        while in_time and not done.wait(POLL_S):
            if line := _student_line(thread):
                inside_s, where = inside_s + POLL_S, f" It was in {line}."
            in_time = inside_s < ANSWER_LIMIT_S and time.monotonic() < started + CHECK_LIMIT_S
    finally:  # also after an interrupt
        stopped = _stop(thread, done)
    if not in_time:
        message = _timeout_message(name, progress, time.monotonic() - started, where)
        raise NotYet(message if stopped else f"{message} {STILL_RUNS}")
    if failed:
        raise failed[0]


def _timeout_message(name: str, progress: Calls, elapsed_s: float, where: str) -> str:
    """Return the message for a timeout: the call that was running, and the number of calls that had returned."""
    before = f"{plural(progress.returned, 'call')} and " if progress.returned else ""
    return (
        f"Expected {str(progress) or name} to finish; it was still running after {before}{elapsed_s:.0f} s.{where} Is "
        "it too slow, does its loop never end, or does it wait for something that never happens?"
    )


def _student_line(thread: threading.Thread) -> str:
    """Return the line of the student's code that a thread is in, or an empty string."""
    lines = [(file, number) for file, number in stack_of(thread.ident) if is_student_code(file)]
    return f'line {lines[-1][1]}: "{linecache.getline(*lines[-1]).strip()}"' if lines else ""


def _stop(thread: threading.Thread, done: threading.Event) -> bool:
    """Raise SystemExit in a running thread, again for up to a second if it is caught; return whether it ended."""
    for _ in range(10):
        if done.is_set():
            break
        if thread.ident is not None:  # an interrupt can come before it has one
            error = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), error)
        done.wait(0.1)
    return done.is_set()
