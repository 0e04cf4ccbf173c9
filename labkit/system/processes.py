"""Processes: start a command, read its output line by line, wait, and end it with all its descendants."""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from labkit.system.errors import LabError
from labkit.system.lifetime import end_with
from labkit.system.paths import STATE, shown

COMMAND_VARIABLE = "LABKIT_COMMAND"  # marks descendants of a command, in case they leave its session
POLL_INTERVAL_S = 0.05
KILL_TIMEOUT_S = 15.0  # the wait for killed processes to end
ADMIN_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")  # with `ip`, `tc` and daemons; not on users' PATH in Debian


# Finding programs


def search_path() -> str:
    """Return the PATH with the administrators' folders at its end."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *ADMIN_PATH])


def which(program: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    return shutil.which(program, path=search_path())


def uv() -> str:
    """Return the path of the uv that made this environment: the one that `./lab` installed, if any.

    Raises
    ------
    LabError
        If it is gone.
    """
    installed = STATE / "uv" / "bin" / "uv"
    path = str(installed) if installed.exists() else shutil.which("uv")
    if not path:
        raise LabError("uv is missing: ./lab setup installs it.")
    return path


# Running a command to its end


class Completed(NamedTuple):
    """The result of a command: its output, status and time."""

    lines: tuple[str, ...]  # the lines on stdout, and on stderr unless that is separate
    status: int | None  # its exit status, or minus the number of the signal that ended it; None after a timeout
    seconds: float  # the time from its start to its end
    errors: tuple[str, ...] = ()  # the lines on stderr, if that is separate

    @property
    def failure(self) -> str:
        """The failure in words; empty after a success."""
        if self.status is None:
            return f"timed out after {self.seconds:.0f} s"
        return describe_exit(self.status) if self.status else ""


def run(
    argv: Sequence[str | Path],
    env: Mapping[str, object] | None = None,
    cwd: Path | None = None,
    timeout: float = 600.0,
    on_line: Callable[[str], None] = lambda line: None,
    separate_errors: bool = False,
) -> Completed:
    """Run a command to its end; none of its descendants survive it, even after an interrupt.

    Parameters
    ----------
    argv : sequence of str or Path
        The command and its arguments.
    env : mapping, optional
        Variables to set; None removes one.
    cwd : Path, optional
        The folder to run in; by default the current one.
    timeout : float
        Seconds after which it is ended.
    on_line : callable
        Called with each line as it arrives.
    separate_errors : bool
        Whether to separate stderr from stdout, as `Completed.errors`.

    Raises
    ------
    LabError
        If there is no such command.
    """
    token = uuid.uuid4().hex
    variables = {**os.environ, **(env or {}), COMMAND_VARIABLE: token}
    began = time.monotonic()
    try:
        process = start(
            argv,
            env={name: str(value) for name, value in variables.items() if value is not None},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if separate_errors else subprocess.STDOUT,
        )
    except OSError as error:
        raise LabError(_cannot_start(str(argv[0]), error)) from error

    def end() -> None:
        end_all(lambda: find(partial(belongs, sessions={process.pid}, variable=COMMAND_VARIABLE, value=token)))
        process.wait()
        for pipe in _pipes(process):
            pipe.close()

    lines: list[str] = []
    errors: list[str] = []
    try:
        for number, line in _read_lines(process, began + timeout):
            (lines, errors)[number].append(line)
            on_line(line)
        in_time, seconds = process.poll() is not None, time.monotonic() - began
    finally:
        despite_interrupts(end)
    return Completed(tuple(lines), process.returncode if in_time else None, seconds, errors=tuple(errors))


def _cannot_start(program: str, error: OSError) -> str:
    if os.sep in program:
        return f"cannot start {shown(Path(program))}: {error.strerror}."
    return f"cannot start {program}: {error.strerror}. Is it spelt right, and on the PATH?"


def _pipes(process: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [pipe for pipe in (process.stdout, process.stderr) if pipe]


def _read_lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[tuple[int, str]]:
    """Yield (0 for stdout, 1 for stderr; a line) until the process has ended, or the deadline has passed."""
    splitters = [LineSplitter() for _ in _pipes(process)]
    with selectors.DefaultSelector() as selector:
        for number, pipe in enumerate(_pipes(process)):
            selector.register(pipe, selectors.EVENT_READ, number)
        while time.monotonic() < deadline:
            ended = process.poll() is not None  # before the last read of its output
            events = selector.select(0 if ended else 2 * POLL_INTERVAL_S)
            for key, _ in events:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                yield from ((key.data, last_state(line)) for line in splitters[key.data].split(data))
            if ended and not events:
                break
    for number, splitter in enumerate(splitters):
        yield from ((number, last_state(line)) for line in splitter.flush())


# Shared by runs of commands and of ranks


def start(
    argv: Sequence[str | Path],
    env: Mapping[str, str],
    cwd: Path | None,
    stdout: int,
    stderr: int,
    pass_fds: Collection[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command with no input, in a new session, that ends with the calling thread.

    Interrupting a terminal or a notebook cell signals a whole process group. In its own session, the command is not in
    that group, and its caller decides what to do with it.
    """
    return subprocess.Popen(
        list(argv),
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        start_new_session=True,
        preexec_fn=partial(end_with, os.getpid()),
    )


class LineSplitter:
    """Splits output that arrives in pieces into complete lines."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, data: bytes) -> list[bytes]:
        """Return the lines that this piece completes, without line ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[rest.rstrip(b"\r").rfind(b"\r") + 1 :]  # a progress bar's last state is enough
        return lines

    def flush(self) -> list[bytes]:
        """Return the last line, if it is incomplete."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def last_state(line: bytes) -> str:
    """Return the final text of a line: a progress bar keeps returning to the line's start."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def describe_exit(status: int) -> str:
    """Return an exit status, or minus the number of the signal that killed a process, in words."""
    if status >= 0:
        return f"exit status {status}"
    names = {number.value: number.name for number in signal.Signals}  # excludes SIGRTMIN to SIGRTMAX
    hint = " (did memory run out?)" if status == -signal.SIGKILL else ""
    return f"killed by {names.get(-status, f'signal {-status}')}{hint}"


# Finding, waiting for and ending processes


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process is still running; another one that has reused its id does not count."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def environ_of(process: psutil.Process) -> dict[str, str]:
    """Return the variables that a process was started with.

    `psutil.Process.environ` stops at the empty entries that programs leave when they change their title.

    Raises
    ------
    OSError
        If the process has ended, or is another user's.
    """
    entries = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name}


def find(condition: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Return the running processes that meet a condition; unreadable ones, such as another user's, don't."""
    matches = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and condition(process):
                matches.append(process)
    return matches


def belongs(process: psutil.Process, sessions: Collection[int], variable: str, value: str) -> bool:
    """Return whether a process is in one of these sessions, or has left them but was started with this variable."""
    return os.getsid(process.pid) in sessions or environ_of(process).get(variable) == value


def with_children(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return these processes and all their descendants."""
    tree = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            tree += [*process.children(recursive=True), process]
    return tree


def wait_until(condition: Callable[[], object], timeout: float) -> bool:
    """Wait until a condition is true, for at most `timeout` seconds; return whether it became true."""
    deadline = time.monotonic() + timeout
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL_S)
    return bool(result)


def kill(processes: Iterable[psutil.Process]) -> bool:
    """Kill processes, some of which may have ended; return whether there were any."""
    any_left = False
    for process in processes:
        any_left = True
        with contextlib.suppress(psutil.Error):
            process.kill()
    return any_left


def end_all(find_left: Callable[[], Iterable[psutil.Process]]) -> bool:
    """Kill processes until none are left, as they may start others meanwhile; return whether all ended."""
    return wait_until(lambda: not kill(find_left()), KILL_TIMEOUT_S)


def despite_interrupts(action: Callable[[], object]) -> None:
    """Call `action` again after each interrupt until it completes; then raise the interrupt."""
    interrupt = None
    while True:
        try:
            action()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt:
        raise interrupt
