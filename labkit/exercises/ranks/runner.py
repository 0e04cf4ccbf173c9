"""Run a student's script on a rank; failures, and hangs after `LINE_LIMIT_S`, are reported with the script's line.

A probe (`run_cases`) runs on every rank. It gets the script's functions with `load`, calls them inside `watched`, and
sends its findings with `report`; `answers.run_answer` and `answers.reports` read them.

It imports nothing slow, because every rank of every check imports it.
"""

import contextlib
import json
import linecache
import os
import re
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from labkit.exercises.engine.outcomes import FAILED, REPORT
from labkit.system.stacks import stack_of

LINE_LIMIT_S = 10.0  # for one line of the script, and by default for all; the slowest needs a fraction of a second
IMPORT_LIMIT_S = 90.0  # for all of a script's imports, such as TensorFlow on four ranks
POLL_S = 0.1
WAIT_HINT = "Does every rank reach the call that this one waits for, and does every loop end?"
COLLECTIVE = re.compile(r"\.i?(all\w+|barrier|bcast|(ex)?scan|gatherv?|reduce\w*|scatterv?)\(", re.IGNORECASE)
COLLECTIVE_HINT = "Every rank must call it, the same number of times. Do all of them reach this line?"
SLOW_HINT = "Is it too slow, or does a loop never end?"
SEND_HINT = (
    "Is the rank that it waits for waiting too? Send returns at once only for a short message; for a long one, it "
    "waits until the other rank receives."
)
TRUNCATED_HINT = (
    "A message was longer than the receive buffer. Was it from another round, which a tag would tell apart? Or does "
    "the sender use other chunk lengths?"
)


def load(script: str, name: str) -> Callable[..., Any]:
    """Return a function of a script, which runs as if imported."""
    with watched(script, line_limit_s=IMPORT_LIMIT_S, total_limit_s=IMPORT_LIMIT_S):
        sys.path[0] = str(Path(script).resolve().parent)  # as if the script were run directly
        function: Callable[..., Any] | None = runpy.run_path(script, run_name="answer").get(name)
    if not callable(function):
        fail(f"There is no function {name} in {Path(script).name}")
    return function


def report(findings: Any) -> None:
    """Send JSON-serialisable findings to the check, on a new line even after unfinished output."""
    print(f"\n{REPORT}{json.dumps(findings)}", flush=True)


def fail(message: str, where: str = "", hint: str = "") -> NoReturn:
    """End this rank, and thus the run, with a message to the student: what happened, on which rank and in which case.

    `hint` is specific to this mistake (`outcomes.NotYet`).
    """
    print(f"\n{FAILED}{json.dumps([message, where, hint])}", flush=True)
    os._exit(1)


@contextlib.contextmanager
def watched(
    script: str,
    where: str = "",
    line_limit_s: float = LINE_LIMIT_S,
    total_limit_s: float = LINE_LIMIT_S,
    hint: str = "",
) -> Iterator[None]:
    """End this rank if the block fails, exits or hangs, and report the script's line.

    Parameters
    ----------
    script : str
        The student's script, as it was loaded.
    where : str
        The place to report, such as "on rank 1, for 12 numbers on 2 ranks".
    line_limit_s, total_limit_s : float
        Time limits in seconds for one line of the script, and for the whole block.
    hint : str
        The hint for whatever goes wrong in the block.
    """
    done = threading.Event()
    thread = threading.get_ident(), threading.get_native_id()  # Thread.native_id is the parent's after a fork
    watch = (script, where, *thread, done, line_limit_s, total_limit_s, hint)
    threading.Thread(target=_watch, args=watch, daemon=True).start()
    try:
        yield
    except BaseException as error:
        done.set()
        from labkit.exercises.engine.answers import failure  # takes a second, and only failures need it

        message = failure(error, script=script)
        fail(f"{message}. {TRUNCATED_HINT}" if "Message truncated" in message else message, where, hint)
    finally:
        done.set()


def _watch(
    script: str,
    where: str,
    thread: int,
    native_id: int,
    done: threading.Event,
    line_limit_s: float,
    total_limit_s: float,
    hint: str,
) -> None:
    """Report the line in which a thread hangs, unless it finishes in time."""
    started = since = _clock(native_id)
    stack = None
    while not done.wait(POLL_S):
        now = _clock(native_id)
        lines = [number for file, number in stack_of(thread) if file == script]
        if lines != stack:
            stack, since = lines, now
        if now - since > line_limit_s or now - started > total_limit_s:
            line = linecache.getline(script, lines[-1]).strip() if lines else ""
            in_line = f' in line {lines[-1]}: "{line}"' if lines else ""
            if now - since < (now - started) / 2:  # it was still moving between lines
                fail(f"It is not done after {now - started:.0f} s, and was{in_line}. {SLOW_HINT}", where, hint)
            sends, together = re.search(r"\b[Ss]end\(", line), COLLECTIVE.search(line)
            cause = SEND_HINT if sends else COLLECTIVE_HINT if together else WAIT_HINT
            fail(f"It hangs: after {now - started:.0f} s it is still{in_line}. {cause}", where, hint)


def _clock(native_id: int) -> float:
    """Return seconds that pass only while a thread runs or sleeps, not while it waits for a busy machine's cores."""
    waited_ns = 0
    with contextlib.suppress(OSError):  # in some sandboxes
        waited_ns = int(Path(f"/proc/self/task/{native_id}/schedstat").read_text(encoding="ascii").split()[1])
    return time.monotonic() - waited_ns / 1e9
