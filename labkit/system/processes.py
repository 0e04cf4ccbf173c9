"""How is one command run, on_lined line by line, and ended with all that it started?"""

import contextlib
import os
import selectors
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from labkit.system import load
from labkit.system.errors import LabError
from labkit.system.lifetime import end_with

TOKEN = "LABKIT_COMMAND"  # marks all that a command starts, should it leave the command's session


class Ended(NamedTuple):
    """How a command ended.

    Attributes
    ----------
    lines : tuple of str
        What it printed on stdout and stderr.
    status : int or None
        Its exit status, or minus the number of the signal that ended it; None when its time was up.
    seconds : float
        From its start to its end.
    others : load.Others
        What else had the cores meanwhile.
    """

    lines: tuple[str, ...]
    status: int | None
    seconds: float
    others: load.Others = load.Others()

    @property
    def failure(self) -> str:
        """How it failed, in words; empty when it did not."""
        if self.status is None:
            return f"not over after {self.seconds:.0f} s"
        if self.status < 0:
            return f"killed by signal {-self.status}" + " (did memory run out?)" * (self.status == -9)
        return f"exit status {self.status}" if self.status else ""


def run(
    argv: Sequence[str],
    env: Mapping[str, object] | None = None,
    cwd: Path | None = None,
    timeout: float = 600.0,
    on_line: Callable[[str], None] = lambda line: None,
) -> Ended:
    """Run a command to its end; nothing that it started is left then, also after an interrupt.

    Parameters
    ----------
    argv : sequence of str
        The command and its arguments.
    env : mapping, optional
        Variables to set; None as a value takes one away.
    cwd : Path, optional
        The folder to run in; by default the current one.
    timeout : float
        Seconds after which it is ended.
    on_line : callable
        Is given each line as it comes.

    Raises
    ------
    LabError
        When there is no such command.
    """
    with load.watch(show=False) as others:
        ended = _run(argv, env, cwd, timeout, on_line)
    return ended._replace(others=others)


def _run(
    argv: Sequence[str],
    env: Mapping[str, object] | None,
    cwd: Path | None,
    timeout: float,
    on_line: Callable[[str], None],
) -> Ended:
    token = uuid.uuid4().hex
    changed = {**os.environ, **(env or {}), TOKEN: token}
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            env={name: str(value) for name, value in changed.items() if value is not None},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt is for us alone: we end it
            preexec_fn=partial(end_with, os.getpid()),
        )
    except OSError as error:
        raise LabError(f"cannot start {argv[0]}: {error.strerror}. Is it spelt right, and on the PATH?") from error
    lines: list[str] = []
    try:
        for line in _lines(process, began + timeout):
            lines.append(line)
            on_line(line)
        in_time, seconds = process.poll() is not None, time.monotonic() - began
    finally:
        _end(process, token)
    return Ended(tuple(lines), process.returncode if in_time else None, seconds)


def _lines(process: subprocess.Popen, deadline: float) -> Iterator[str]:
    """Yield its lines until it has ended, or the time is up; of a progress bar, the last state."""
    os.set_blocking(process.stdout.fileno(), False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            ended = process.poll() is not None  # before the last look at what it wrote
            data = process.stdout.read() if selector.select(0 if ended else 0.1) else None
            *lines, rest = (rest + (data or b"")).split(b"\n")
            yield from map(_text, lines)
            if data == b"" and not ended:  # it closed its output and works on
                time.sleep(0.1)
            if ended and not data:
                break
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def _end(process: subprocess.Popen, token: str) -> None:
    """Kill what is left of it, however often that is interrupted."""
    interrupt = None
    while True:
        try:
            while ours := [other for other in psutil.process_iter() if _belongs(other, process.pid, token)]:
                for other in ours:
                    with contextlib.suppress(psutil.Error):
                        other.kill()
                time.sleep(0.02)
            process.wait()
            process.stdout.close()
            break
        except KeyboardInterrupt as again:
            interrupt = again
    if interrupt:
        raise interrupt


def _belongs(process: psutil.Process, session: int, token: str) -> bool:
    """Whether it runs in the command's session or, should it have left that, carries its token."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) == session or process.environ().get(TOKEN) == token
    except (psutil.Error, OSError):  # it has just ended, or is another user's
        return False
