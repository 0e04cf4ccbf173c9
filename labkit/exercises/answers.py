"""Running answers: calling functions, moving them into a module, starting scripts on ranks, trying many inputs.

What an answer raises, prints or changes is reported as the answer's doing, by the line that the student wrote.
"""

import contextlib
import functools
import inspect
import io
import json
import linecache
import math
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.exercises.outcomes import FAILED, REPORT, NotYet, expect
from labkit.exercises.values import is_table, short
from labkit.mpi.launch import RankError, Run, run_ranks
from labkit.system.paths import ROOT
from labkit.testbed.testbed import SLEEP_WHILE_WAITING

STUB_LINE = re.compile(r"raise NotImplementedError(\(\))?")  # the line that stands where a solution was
STACK_LINE = re.compile(r"\S+\(\S*\) \[0x[0-9a-f]+\]")  # of MPICH's own functions
ABORT_LINE = re.compile(r"^\s*Abort\(\d+\)", re.MULTILINE)  # by which it ends a rank
# What its reason may be, by what MPICH says.
OTHER_KIND = "Have the arrays on both sides the same type and length?"
ONTO_ITSELF = (
    "A rank sent to itself from the very place where it receives. A single rank is its own neighbour: on it, does your "
    "script take a step too many?"
)
PICKLING = 300  # bytes by which a message grows, at the most, where it is sent as a pickled object
COPY_HINT = (
    "Work on a copy: x.copy(), or copy.deepcopy(x) of lists in a list. x *= 2, x.sort() and inplace=True change x."
)
MAX_EXAMPLES = 100  # generated inputs at most
CPU_LIMIT_S = 0.5  # of computing, however busy the machine is: to generate inputs, and then to find the smallest
WALL_LIMIT_S = 5.0  # after which no more are generated, computing or not
LIBRARIES = ("builtins", "math", "numpy", "numpy.linalg", "numpy.random", "pandas", "tensorflow")  # that checks call

# What the answer's last call printed. The checker sets it for each check, and quotes it beside what went wrong.
printed: ContextVar[io.StringIO] = ContextVar("printed")


@dataclass
class Calls:
    """The calls of an answer that a check makes: how many have returned, and the one that is running."""

    returned: int = 0
    under_way: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None

    def __str__(self) -> str:
        """Return the call under way as the student would write it."""
        return _format_call(*self.under_way) if self.under_way else ""


# Set for each check of a function, and told when its time is up.
calls: ContextVar[Calls] = ContextVar("calls")


def call(answer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a student's function with copies of the arguments and return what it returns.

    Raises
    ------
    NotYet
        When it raises or leaves, or changes a library, or an array, a table, a list or the like that it was given.
    """
    given, given_by_name = _copied(args), _copied(kwargs)
    output = printed.get(io.StringIO())
    output.seek(0)
    output.truncate()
    made = calls.get(Calls())
    made.under_way = (answer, args, kwargs)
    try:
        # What is printed and warned about, the checker catches: not here, in a thread that may be left behind and would
        # undo it for the notebook at some later time.
        with np.errstate(all="ignore"):
            result = answer(*given, **given_by_name)
    except NotYet:  # of a function that the check gave to the answer
        raise
    except BaseException as error:  # the student's own interrupt reaches the main thread, not this one
        raise NotYet(f"{failure(error, answer)}. The check called {_format_call(answer, args, kwargs)}.") from error
    finally:
        replaced = put_back()
    expect(not replaced, f"{', '.join(replaced)} to stay; {_name(answer)} replaced it, and the check has put it back")
    made.returned, made.under_way = made.returned + 1, None
    for name, before, after in [
        *((_parameter_name(answer, index), *pair) for index, pair in enumerate(zip(args, given, strict=True))),
        *((name, kwargs[name], given_by_name[name]) for name in kwargs),
    ]:
        expect(
            _unchanged(before, after),
            f"{name} to stay as it was; {_name(answer)} changed it, and later cells use it too",
            hint=COPY_HINT,
        )
    return result


def put_back() -> list[str]:
    """Undo assignments such as `np.isclose = …` to the libraries that checks call, and return their names.

    A library counts as it was when this was first called with it loaded.
    """
    replaced = []
    for name in filter(sys.modules.get, LIBRARIES):
        now = vars(sys.modules[name])
        if name not in _originals:
            _originals[name] = {
                key: value
                for key, value in now.items()
                if callable(value) and (name != "builtins" or inspect.isbuiltin(value) or inspect.isclass(value))
            }
        if not _originals[name].items() <= now.items():
            changed = {key: value for key, value in _originals[name].items() if now.get(key) is not value}
            now.update(changed)
            replaced += [f"{name}.{key}" for key in changed]
    return replaced


_originals: dict[str, dict[str, Any]] = {}  # the functions and classes of each library, by name


def blame(error: BaseException) -> BaseException:
    """Return `NotYet` for an error that an answer's own lines raised after its call, as an iterator's; else the error.

    Whatever leaves Python, such as `SystemExit`, is an answer's.
    """
    lines = (frame.filename for frame in traceback.extract_tb(error.__traceback__))
    if isinstance(error, NotYet) or (isinstance(error, Exception) and not any(map(is_student_code, lines))):
        return error
    mistake = NotYet(f"{failure(error)}.")
    mistake.__cause__ = error
    return mistake


def failure(error: BaseException, answer: Callable[..., Any] | None = None, script: str = "") -> str:
    """Return what an answer raised and the last of the student's own lines that led there, without a full stop.

    Of a script, only its own lines count: a line's number alone would not tell which file it is of.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (frame.filename == script if script else is_student_code(frame.filename))
    ]
    number, line = (frames[-1].lineno or 0, frames[-1].line or "") if frames else (0, "")
    if isinstance(error, SyntaxError) and error.lineno and is_student_code(error.filename or ""):
        number, line = error.lineno, (error.text or "").strip()
    message, inner = _clean_message(str(getattr(error, "message", None) or error))
    if inner:  # inside a function that TensorFlow rewrote as a graph
        number, line = inner
    where = f', in line {number}: "{line}"' if line else ""
    if isinstance(error, NotImplementedError) and STUB_LINE.fullmatch(line):
        return f'Line {number} still says "{line}": delete it, and put your code in its place'
    if isinstance(error, SystemExit):
        if script:
            return f"Your script called exit(){where}. Let its functions return, since the check goes on after them"
        return f"{_name(answer)} called exit(){where}. Return the result instead"
    text = f": {message}" if message else ""
    return f"{type(error).__name__}{text}{where}"


def is_student_code(filename: str) -> bool:
    """Whether a file holds a student's code: a cell or a script, and not the kit's, a library's or Python's own."""
    return (
        bool(linecache.getline(filename, 1))
        and not filename.startswith(("<frozen ", "<__array_function__"))
        and not (
            "__autograph_generated_file" in filename
            or Path(filename).is_relative_to(ROOT / "labkit")
            or _is_library(filename)
        )
    )


@functools.cache
def _is_library(filename: str) -> bool:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(filename).resolve().is_relative_to(Path(place).resolve()) for place in places)


def _clean_message(message: str) -> tuple[str, tuple[int, str] | None]:
    """Return a message on one line, without what TensorFlow adds to it; and the student's line, if it names one."""
    inner = None
    message = message.removeprefix("Graph execution error:").strip()
    if "in user code:" in message or "Detected at node" in message:  # while tracing; when a graph ran
        lines = message.partition("\nTraceback (")[0].splitlines()
        found = [place for line in lines if (place := re.match(r'\s*File "([^"]+)", line (\d+), in ', line))]
        places = [(place[1], int(place[2])) for place in found if is_student_code(place[1])]
        inner = next(((at, linecache.getline(file, at).strip()) for file, at in reversed(places)), None)
        rest = message.partition(found[-1].string)[2] if found else message
        if "in user code:" in message:
            rest = next((line for line in reversed(rest.splitlines()) if line.strip()), "").strip()
            rest = re.sub(r"^\w+(Error|Exception): ", "", rest)
        message = re.sub(r"^Node: .*\n", "", rest.strip())
    message = re.sub(r"'\{\{node ([^}]*)\}\} = [^']*'", r"'\1'", message)
    message = re.sub(r"\{\{(function_)?node [^}]*\}\}\s*", "", message).partition(". Received args: ")[0]
    message = re.sub(r"\s*\[(\[\]\]|Op:).*", "", message, flags=re.DOTALL)
    message = message.partition(", error stack:")[0]  # of MPICH's own calls
    message = " ".join(message.partition("\n\n")[0].partition("\nTraceback (")[0].split())
    return (message if len(message) <= 300 else f"{message[:299]}…").rstrip("."), inner


def _name(answer: Any) -> str:
    return getattr(answer, "__name__", "your answer").replace("<lambda>", "your function")


def _format_call(answer: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    shown = [short(arg, 40) for arg in args] + [f"{name}={short(value, 40)}" for name, value in kwargs.items()]
    return f"{_name(answer)}({', '.join(shown)})"


def _parameter_name(answer: Callable[..., Any], index: int) -> str:
    """Return the name of a parameter by its place."""
    with contextlib.suppress(TypeError, ValueError, IndexError):
        return list(inspect.signature(answer).parameters)[index]
    return f"argument {index + 1}"


def _copied(value: Any) -> Any:
    """Return copies of what a function could change in place; all else, such as a graph or a communicator, as it is."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if is_table(value):
        return value.copy(deep=True)
    if type(value) in (list, tuple, set):
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {key: _copied(part) for key, part in value.items()}
    return value


def _unchanged(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if isinstance(before, np.ndarray):
        same_form: bool = before.shape == after.shape and before.dtype == after.dtype
        return same_form and before.tobytes() == after.tobytes()
    if is_table(before):
        return bool(before.equals(after)) and list(before.axes[-1]) == list(after.axes[-1])
    if type(before) in (list, tuple):
        return len(before) == len(after) and all(map(_unchanged, before, after))
    if type(before) is dict:
        return list(before) == list(after) and all(_unchanged(before[key], after[key]) for key in before)
    return bool(before == after)


def remember_lines(filename: str, text: str) -> None:
    """Let tracebacks and `inspect.getsource` find text that was compiled from a string."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


# Generated inputs


def for_all(decide: Callable[..., object], *, examples: int = MAX_EXAMPLES, **strategies: Any) -> None:
    """Check generated inputs as well, always the same ones; of those that fail, report the smallest.

    Parameters
    ----------
    decide : callable
        Takes one input, given by the names of `strategies`; raises `NotYet` when the answer is wrong for it.
    examples : int
        How many to generate at most; fewer for an answer that is slow.
    **strategies
        Hypothesis' strategies (https://hypothesis.readthedocs.io), by the names of the parameters.
    """
    import hypothesis  # takes half a second, which only a check needs

    budget, until = math.inf, math.inf
    failed: NotYet | None = None

    def trial(**case: Any) -> None:
        nonlocal budget, until, failed
        if budget == math.inf:  # Hypothesis itself takes a while to begin
            budget, until = time.thread_time() + CPU_LIMIT_S, time.monotonic() + WALL_LIMIT_S
        if time.thread_time() > budget or time.monotonic() > until:
            return
        try:
            decide(**case)
        except NotYet as error:
            budget = time.thread_time() + CPU_LIMIT_S if failed is None else budget
            failed = error  # while Hypothesis shrinks, each is smaller than the one before
            raise

    settings = hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    try:
        settings(hypothesis.given(**strategies)(trial))()
    except NotYet:
        pass  # reported below, without the notes that Hypothesis adds
    except hypothesis.errors.Flaky:
        pass  # the time was up, or the answer gave two different results for one input; the failure is there
    if failed:
        raise NotYet(str(failed), failed.hint) from failed


# Scripts


def run_answer(ranks: int, script: Path, *args: Any, **options: Any) -> Run:
    """Run a student's script (or a probe that imports it) on `ranks` ranks; a rank's failure is the answer's."""
    try:
        # Ranks sleep while they wait: so a check takes down to a third of the computing, and what hangs hardly any.
        return run_ranks(ranks, script, *args, show=False, env=SLEEP_WHILE_WAITING, **options)
    except RankError as error:
        if reported := [line for line in error.lines if line.startswith(FAILED)]:
            message, where, hint = json.loads(reported[-1].removeprefix(FAILED))
            lines = [line for line in error.lines if line and not line.startswith((REPORT, FAILED))]
            printed.get(io.StringIO()).write("\n".join(lines))
            where = where or f"on rank {error.rank}" + f" of {ranks}" * (ranks > 1)
            raise NotYet(f"{message}{'' if message.endswith(('.', '?')) else '.'} That was {where}.", hint) from error
        if any(STUB_LINE.fullmatch(line.strip()) for line in error.lines):
            raise NotYet(
                'Your script still says "raise NotImplementedError()": delete that line once your code is in place.'
            ) from error
        told = "\n".join(line for line in str(error).splitlines() if not STACK_LINE.fullmatch(line.strip()))
        if ABORT_LINE.search(told):
            told += f"\nMPI gave up within a call. {ONTO_ITSELF if 'ranges overlap' in told else OTHER_KIND}"
        raise NotYet(f"Your script, on {ranks} {'rank' if ranks == 1 else 'ranks'}: {told}") from error


def reports(run: Run) -> list[Any]:
    """Return what a probe handed back on each rank, by rank; see `ranks.report`.

    Raises
    ------
    NotYet
        When a rank ended before it came to that line, as after an early `sys.exit(0)`.
    """
    found = [[line.removeprefix(REPORT) for line in lines if line.startswith(REPORT)] for lines in run.lines]
    for rank, lines in enumerate(found):
        expect(bool(lines), f"rank {rank} to reach the end of the script; it exited early")
    return [json.loads(lines[-1]) for lines in found]
