"""A student's script on a rank: its failures, and its hangs after `LINE_LIMIT_S`, are reported by its own lines.

A lab's probe runs on every rank. It takes the script's functions by `load`, calls them within `watched`, and hands
back what it found by `report`; `answers.run_answer` and `answers.reports` read that. This module itself runs a whole
script, watched:

    mpirun -n 2 python ranks.py SCRIPT ARGUMENTS…

It imports nothing that takes time, as every rank of every check imports it.
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

from labkit.exercises.outcomes import FAILED, REPORT
from labkit.system.stacks import stack_of

LINE_LIMIT_S = 10.0  # seconds in one line of the script, and by default in all; the longest takes a fraction of one
IMPORT_LIMIT_S = 30.0  # seconds for all that a script imports
POLL_S = 0.1
WAIT_HINT = "Does every rank reach the call that this one waits for, and does each loop end?"
SLOW_HINT = "Is it too slow, or does a loop never end?"
SEND_HINT = (
    "Is the rank that it waits for waiting too? Send returns at once only for a short message; with a long one it "
    "waits until the other rank receives."
)
TRUNCATED_HINT = (
    "A longer message came than there was room for. Was it one of another round, which a tag would tell? Or has the "
    "rank that sent it other lengths of chunks?"
)


def load(script: str, *names: str) -> list[Callable[..., Any]]:
    """Return functions of a script, run as `import` would run it."""
    with watched(script, line_limit_s=IMPORT_LIMIT_S, total_limit_s=IMPORT_LIMIT_S):
        sys.path[0] = str(Path(script).resolve().parent)  # as for a script of its own
        module = runpy.run_path(script, run_name="answer")
    for name in names:
        if not callable(module.get(name)):
            fail(f"There is no {'class' if name[0].isupper() else 'function'} {name} in {Path(script).name}")
    return [module[name] for name in names]


def report(findings: Any) -> None:
    """Send findings, as JSON takes them, to the check; on a line of their own, whatever was printed before."""
    print(f"\n{REPORT}{json.dumps(findings)}", flush=True)


def fail(message: str, where: str = "", hint: str = "") -> NoReturn:
    """End this rank, and with it all, with a message to the student: what happened, and on which rank in which case.

    `hint` is one for this mistake (`outcomes.NotYet`).
    """
    print(f"\n{FAILED}{json.dumps([message, where, hint])}", flush=True)
    os._exit(1)


@contextlib.contextmanager
def watched(
    script: str, where: str = "", line_limit_s: float = LINE_LIMIT_S, total_limit_s: float = LINE_LIMIT_S
) -> Iterator[None]:
    """End this rank when what is inside fails, leaves or hangs, and report the line of the script.

    Parameters
    ----------
    script : str
        The student's script, as it was loaded.
    where : str
        Where that is, such as "on rank 1, for 12 numbers on 2 ranks".
    line_limit_s, total_limit_s : float
        How many seconds may pass in one line of the script, and in all.
    """
    over = threading.Event()
    watch = (script, where, threading.get_ident(), over, line_limit_s, total_limit_s)
    threading.Thread(target=_watch, args=watch, daemon=True).start()
    try:
        yield
    except BaseException as error:
        over.set()
        from labkit.exercises.answers import failure  # takes a second, which only a failure needs

        told = failure(error, script=script)
        fail(f"{told}. {TRUNCATED_HINT}" if "Message truncated" in told else told, where)
    finally:
        over.set()


def _watch(
    script: str, where: str, thread: int, over: threading.Event, line_limit_s: float, total_limit_s: float
) -> None:
    """Report the line that a thread hangs in, unless it ends in time."""
    began = since = time.monotonic()
    place = None
    while not over.wait(POLL_S):
        now = time.monotonic()
        lines = [number for file, number in stack_of(thread) if file == script]
        if lines != place:
            place, since = lines, now
        if now - since > line_limit_s or now - began > total_limit_s:
            line = linecache.getline(script, lines[-1]).strip() if lines else ""
            in_line = f' in line {lines[-1]}: "{line}"' if lines else ""
            if now - since < (now - began) / 2:  # it still moved between lines
                fail(f"It is not done after {now - began:.0f} s, and was{in_line}. {SLOW_HINT}", where)
            why = SEND_HINT if re.search(r"\b[Ss]end\(", line) else WAIT_HINT
            fail(f"It hangs: after {now - began:.0f} s it is still{in_line}. {why}", where)


def main() -> None:
    """Run a script as Python would, watched."""
    del sys.argv[0]
    script = sys.argv[0]
    sys.path[0] = str(Path(script).resolve().parent)
    with watched(script, total_limit_s=60.0):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as leave:
            if leave.code not in (None, 0):
                raise


if __name__ == "__main__":
    main()
