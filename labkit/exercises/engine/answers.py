"""Run answers: call functions, start scripts on ranks, and try many inputs.

Whatever an answer raises, prints or changes is reported as the answer's doing, with the student's own line.
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

from labkit.exercises.engine.outcomes import FAILED, REPORT, NotYet, expect, refuse
from labkit.exercises.engine.values import is_table, short
from labkit.mpi.failure import RankError
from labkit.mpi.launch import Run, run_ranks
from labkit.system.paths import ROOT
from labkit.testbed.testbed import SLEEP_WHILE_WAITING

STUB_LINE = re.compile(r"raise NotImplementedError(\(\))?")  # the line in place of a solution
STACK_LINE = re.compile(r"\S+\(\S*\) \[0x[0-9a-f]+\]")  # a frame of MPICH's stack trace
ABORT_LINE = re.compile(r"^\s*Abort\(\d+\)", re.MULTILINE)  # MPICH's last line when it ends a rank
# Likely causes, by MPICH's message.
MISMATCH_HINT = "Do the arrays on both sides have the same type and length?"
OVERLAP_HINT = (
    "A rank sent to itself, from the buffer that it receives into. A single rank is its own neighbour: does your "
    "script take one step too many there?"
)
COPY_HINT = (
    "Work on a copy: x.copy(), or copy.deepcopy(x) for nested lists. x *= 2, x.sort() and inplace=True change x."
)
MAX_EXAMPLES = 100  # generated inputs at most
CPU_LIMIT_S = 0.5  # CPU time, so a busy machine doesn't matter: to generate inputs, then again to shrink a failure
WALL_LIMIT_S = 5.0  # elapsed time, after which no more inputs are generated
LIBRARIES = ("builtins", "math", "numpy", "numpy.linalg", "numpy.random", "pandas", "tensorflow")  # that checks call

# The output of the answer's last call. The checker sets it for each check, and quotes it with the mistake.
answer_output: ContextVar[io.StringIO] = ContextVar("answer_output")


@dataclass
class Calls:
    """A check's calls of an answer: how many have returned, and which one is running."""

    returned: int = 0
    running: tuple[Any, ...] = ()  # the answer and its arguments

    def __str__(self) -> str:
        """Return the running call as the student would write it."""
        return format_call(*self.running) if self.running else ""


# The library functions that the notebook had replaced before a check.
changed_before: ContextVar[set[str]] = ContextVar("changed_before")

# Set for each check of a function, and reported when its time is up.
calls: ContextVar[Calls] = ContextVar("calls")


def call(answer: Callable[..., Any], *args: Any) -> Any:
    """Call a student's function with copies of the arguments and return what it returns.

    Raises
    ------
    NotYet
        If it raises or exits, or changes a library or an argument, such as an array, a table or a list.
    """
    args_copy = copied(args)
    output = answer_output.get(io.StringIO())
    output.seek(0)
    output.truncate()
    progress = calls.get(Calls())
    progress.running = (answer, *args)
    try:
        # The checker captures output and warnings, not this thread: if abandoned, it would restore the notebook's
        # settings at some later time.
        with np.errstate(all="ignore"):
            result = answer(*args_copy)
    except NotYet:  # from a function that the check passed to the answer
        raise
    except BaseException as error:  # the student's own interrupt reaches the main thread, not this one
        raise NotYet(f"{failure(error, answer)}. The check called {format_call(answer, *args)}.") from error
    if changed := ", ".join(sorted(changed_libraries() - changed_before.get(set()))):
        refuse(f"{changed} to stay; {_name(answer)} replaced it. Restart the kernel, as later cells use it too")
    progress.returned, progress.running = progress.returned + 1, ()
    for index, (before, after) in enumerate(zip(args, args_copy, strict=True)):
        if not _unchanged(before, after):
            name = _parameter_name(answer, index)
            refuse(f"{name} to stay unchanged; {_name(answer)} changed it, and later cells use it too", COPY_HINT)
    return result


def changed_libraries() -> set[str]:
    """Return the functions and classes that were replaced in the libraries that checks call, by name.

    The reference is each library's state at the first call after it was loaded.
    """
    changed = set()
    for name in filter(sys.modules.get, LIBRARIES):
        current = vars(sys.modules[name])
        if name not in _originals:
            _originals[name] = {
                key: value
                for key, value in current.items()
                if callable(value) and (name != "builtins" or inspect.isbuiltin(value) or inspect.isclass(value))
            }
        if not _originals[name].items() <= current.items():
            changed |= {f"{name}.{key}" for key, value in _originals[name].items() if current.get(key) is not value}
    return changed


_originals: dict[str, dict[str, Any]] = {}  # the functions and classes of each library, by name


def blame(error: BaseException) -> BaseException:
    """Return `NotYet` for an error that an answer's lines raised after its call, as in an iterator; else the error.

    Anything that exits Python, such as `SystemExit`, is the answer's doing.
    """
    lines = (frame.filename for frame in traceback.extract_tb(error.__traceback__))
    if isinstance(error, NotYet) or (isinstance(error, Exception) and not any(map(is_student_code, lines))):
        return error
    mistake = NotYet(f"{failure(error)}.")
    mistake.__cause__ = error
    return mistake


def failure(error: BaseException, answer: Callable[..., Any] | None = None, script: str = "") -> str:
    """Return an answer's error and the last of the student's lines that led to it, without a full stop.

    For a script, only its own lines count: a line number alone would not show which file it refers to.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (frame.filename == script if script else is_student_code(frame.filename))
    ]
    number, line = (frames[-1].lineno or 0, frames[-1].line or "") if frames else (0, "")
    if isinstance(error, SyntaxError) and error.lineno and is_student_code(error.filename or ""):
        number, line = error.lineno, (error.text or "").strip()
    text = error.msg if isinstance(error, SyntaxError) else getattr(error, "message", None) or error  # without the file
    message, inner = _clean_message(str(text))
    if inner:  # inside a function that TensorFlow rewrote as a graph
        number, line = inner
    where = f', in line {number}: "{line}"' if line else ""
    if isinstance(error, NotImplementedError) and STUB_LINE.fullmatch(line):
        return f'Line {number} still says "{line}": replace it with your code'
    if isinstance(error, SystemExit):
        if script:
            return f"Your script called exit(){where}. Let its functions return, as the check continues after them"
        return f"{_name(answer)} called exit(){where}. Return the result instead"
    text = f": {message}" if message else ""
    return f"{type(error).__name__}{text}{where}"


def is_student_code(filename: str) -> bool:
    """Whether a file is a student's code, a cell or a script, rather than the kit's, a library's or Python's."""
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
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(Path(filename).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def _clean_message(message: str) -> tuple[str, tuple[int, str] | None]:
    """Return a message on one line, without TensorFlow's additions, and the student's line if it names one."""
    inner = None
    message = message.removeprefix("Graph execution error:").strip()
    if "in user code:" in message or "Detected at node" in message:  # while tracing; when a graph ran
        lines = message.partition("\nTraceback (")[0].splitlines()
        matches = [match for line in lines if (match := re.match(r'\s*File "([^"]+)", line (\d+), in ', line))]
        frames = [(match[1], int(match[2])) for match in matches if is_student_code(match[1])]
        inner = next(((number, linecache.getline(file, number).strip()) for file, number in reversed(frames)), None)
        rest = message.partition(matches[-1].string)[2] if matches else message
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


def format_call(answer: Callable[..., Any], *args: Any) -> str:
    """Return a call as a student would write it, with long arguments shortened."""
    return f"{_name(answer)}({', '.join(map(short, args))})"


def _parameter_name(answer: Callable[..., Any], index: int) -> str:
    """Return the name of a parameter by its position."""
    with contextlib.suppress(TypeError, ValueError, IndexError):
        return list(inspect.signature(answer).parameters)[index]
    return f"argument {index + 1}"


def copied(value: Any) -> Any:
    """Return copies of whatever can change in place; anything else, such as a graph or a communicator, as it is."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if is_table(value):
        return value.copy(deep=True)
    if type(value) in (list, tuple, set):
        return type(value)(map(copied, value))
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    return value


def _unchanged(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if isinstance(before, np.ndarray):
        same_layout: bool = before.shape == after.shape and before.dtype == after.dtype
        return same_layout and before.tobytes() == after.tobytes()
    if is_table(before):
        return bool(before.equals(after)) and list(before.axes[-1]) == list(after.axes[-1])
    if type(before) in (list, tuple):
        return len(before) == len(after) and all(map(_unchanged, before, after))
    if type(before) is dict:
        return list(before) == list(after) and all(_unchanged(before[key], after[key]) for key in before)
    return type(before) is type(after) and bool(before == after)


def remember_lines(filename: str, text: str) -> None:
    """Let tracebacks and `inspect.getsource` find source that was compiled from a string."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


# Generated inputs


def for_all(decide: Callable[[Any], object], inputs: Any) -> None:
    """Check generated inputs, the same ones each time; if any fail, report the smallest.

    Parameters
    ----------
    decide : callable
        Takes one input; raises `NotYet` if the answer is wrong for it.
    inputs : Hypothesis strategy
        The inputs (https://hypothesis.readthedocs.io); a slow answer gets fewer than `MAX_EXAMPLES`.
    """
    import hypothesis  # takes half a second, and only checks need it

    cpu_deadline, deadline = math.inf, math.inf
    failed: NotYet | None = None

    def trial(case: Any) -> None:
        nonlocal cpu_deadline, deadline, failed
        if cpu_deadline == math.inf:  # Hypothesis itself takes a while to start
            cpu_deadline, deadline = time.thread_time() + CPU_LIMIT_S, time.monotonic() + WALL_LIMIT_S
        if time.thread_time() > cpu_deadline or time.monotonic() > deadline:
            return
        try:
            decide(case)
        except NotYet as error:
            cpu_deadline = time.thread_time() + CPU_LIMIT_S if failed is None else cpu_deadline
            failed = error  # while Hypothesis shrinks, each failure is smaller than the last
            raise

    settings = hypothesis.settings(
        max_examples=MAX_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    try:
        settings(hypothesis.given(inputs)(trial))()
    except NotYet:
        pass  # reported below, without the notes that Hypothesis adds
    except hypothesis.errors.Flaky:
        pass  # time was up, or the answer gave different results for one input; `failed` is set
    if failed:
        raise NotYet(str(failed), failed.hint) from failed


# Scripts


def run_answer(ranks: int, script: Path, *args: Any, **options: Any) -> Run:
    """Run a student's script (or a probe that imports it) on `ranks` ranks; blame the answer if a rank fails."""
    try:
        # Waiting ranks sleep: a check then needs as little as a third of the CPU time, and a hang hardly any.
        return run_ranks(ranks, script, *args, show=False, env=SLEEP_WHILE_WAITING, **options)
    except RankError as error:
        if reported := [line for line in error.lines if line.startswith(FAILED)]:
            message, where, hint = json.loads(reported[-1].removeprefix(FAILED))
            lines = [line for line in error.lines if line and not line.startswith((REPORT, FAILED))]
            answer_output.get(io.StringIO()).write("\n".join(lines))
            where = where or f"on rank {error.rank}" + f" of {ranks}" * (ranks > 1)
            raise NotYet(f"{message}{'' if message.endswith(('.', '?')) else '.'} That was {where}.", hint) from error
        if any(STUB_LINE.fullmatch(line.strip()) for line in error.lines):
            raise NotYet(
                'Your script still says "raise NotImplementedError()": replace that line with your code.'
            ) from error
        text = "\n".join(line for line in str(error).splitlines() if not STACK_LINE.fullmatch(line.strip()))
        if ABORT_LINE.search(text):
            text += f"\nMPI aborted inside a call. {OVERLAP_HINT if 'ranges overlap' in text else MISMATCH_HINT}"
        raise NotYet(f"Your script, on {ranks} {'rank' if ranks == 1 else 'ranks'}: {text}") from error


def reports(run: Run) -> list[Any]:
    """Return a probe's reports by rank; see `ranks.runner.report`.

    Raises
    ------
    NotYet
        If a rank ended before it reported, as after an early `sys.exit(0)`.
    """
    by_rank = [[line.removeprefix(REPORT) for line in lines if line.startswith(REPORT)] for lines in run.lines]
    for rank, lines in enumerate(by_rank):
        expect(bool(lines), f"rank {rank} to reach the end of the script; it exited early")
    return [json.loads(lines[-1]) for lines in by_rank]
