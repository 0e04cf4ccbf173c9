"""Slurm's commands, a job to follow and signal, and ranks on this machine as its substitute.

`Job` and `RankJob` have the same methods, so a notebook also runs without Slurm.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from labkit.mpi.failure import RankError
from labkit.mpi.launch import run_ranks
from labkit.slurm.cluster import Slurm
from labkit.system.errors import LabError

COMMAND_TIMEOUT_S = 60.0  # the limit for one of Slurm's commands
SMALL_TIMEOUT_S = 10.0  # the limit with the small Slurm: once it is gone, its commands look for it for a minute
QUEUE_TIMEOUT_S = 120.0  # the limit for a job to start
JOB_TIMEOUT_S = 600.0  # the limit for a job to end, including its time in the queue
OUTPUT_TIMEOUT_S = 60.0  # the limit for a file written by a node to appear here, on a shared file system
LOG_INTERVAL_S = 0.05  # the pause between two reads of a log
STATE_INTERVAL_S = {"own": 0.3, "real": 3.0}  # the pause between queries; a real cluster's Slurm serves others too
OUTPUT_LINES = 10  # the number of a failed job's last lines that its error quotes

# The final states of a job, as squeue(1) names them.
END_STATES = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE"}

OnText = Callable[[str], None]


class NotStarted(LabError):
    """Slurm rejects a job, or does not start it soon."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason.rstrip('.')}. With slurm = None, this cell and the next ones run on ranks of this machine."
        )


def slurm_command(*argv: object) -> str:
    """Print a Slurm command as typed, run it, and return its output.

    Raises
    ------
    LabError
        If it fails or does not answer, with its error.
    """
    return _print_and_run(argv, LabError)


def submit_job(
    slurm: Slurm, *sbatch: object, output: Path, env: Mapping[str, object] | None = None, show: bool = True
) -> "Job":
    """Submit a job, and print the command as typed.

    Parameters
    ----------
    slurm : Slurm
        The Slurm to submit to.
    sbatch
        The command: `"sbatch", "--parsable", …`.
    output : Path
        The file for the job's output, as in the command.
    env : mapping, optional
        Additional environment variables for the job.
    show : bool
        Whether to print the command.

    Raises
    ------
    NotStarted
        If Slurm rejects the job.
    """
    number = _print_and_run(sbatch, NotStarted, env, show)
    return Job(slurm, number.partition(";")[0], output)  # some sites append the cluster's name


class Job:
    """A Slurm job.

    Parameters
    ----------
    slurm : Slurm
        The Slurm that has the job.
    number : str
        The job's number.
    output : Path
        The file with the job's output.
    """

    def __init__(self, slurm: Slurm, number: str, output: Path) -> None:
        self.slurm, self.number, self.output = slurm, number, output
        self._signalled = False

    def state(self) -> str:
        """Return the state as squeue names it: PENDING, RUNNING, COMPLETED, …; UNKNOWN if Slurm does not answer."""
        command = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={self.number}")
        status, output, errors = self._run(*command)
        if status:
            return "COMPLETED" if "Invalid job id" in errors else "UNKNOWN"  # Slurm forgets a job after some minutes
        return output or "COMPLETED"

    def wait(
        self,
        log: Path | None = None,
        on_line: OnText | None = None,
        on_state: OnText | None = None,
        timeout_s: float = JOB_TIMEOUT_S,
    ) -> str:
        """Wait for the job to end and return its final state; an error or interrupt meanwhile cancels it.

        Parameters
        ----------
        log : Path, optional
            The file to follow, by default `output`; existing lines are read first.
        on_line : callable, optional
            Called with each complete line of the log as it arrives.
        on_state : callable, optional
            Called with each new state.
        timeout_s : float
            Seconds after which the job is cancelled.

        Raises
        ------
        NotStarted
            If the job stays in the queue for too long.
        LabError
            If the job does not end in time, or fails without having been signalled; within seconds if the small Slurm
            is gone.
        """
        new_lines = _LogLines(log or self.output, on_line)
        interval = STATE_INTERVAL_S[self.slurm.kind]
        began, state, state_seen = time.monotonic(), "", float("-inf")
        try:
            while True:
                now = time.monotonic()
                if now - state_seen >= interval:
                    if gone := self.slurm.missing():
                        raise LabError(
                            f"the small Slurm has ended, and job {self.number} with it ({gone}): start it again with "
                            "./lab cluster up or the cell that started it, and submit the job again."
                        )
                    previous, state, state_seen = state, self.state(), now
                    if on_state and state != previous:
                        on_state(state)
                new_lines.pass_on()
                if state in END_STATES:
                    break
                if state == "PENDING" and now - began > QUEUE_TIMEOUT_S:
                    raise NotStarted(f"Job {self.number} is still in the queue after {QUEUE_TIMEOUT_S:.0f} s.")
                if now - began > timeout_s:
                    raise LabError(f"job {self.number} did not end within {timeout_s:g} s: read {self.output}.")
                time.sleep(LOG_INTERVAL_S)
        except BaseException:
            if not self.slurm.missing():
                self._run("scancel", self.number)
            raise
        if state != "COMPLETED" and not self._signalled:
            last = self.read_output().splitlines()[-OUTPUT_LINES:]
            raise LabError("\n  ".join([f"job {self.number} is {state}; the last lines of {self.output}:", *last]))
        return state

    def signal(self, name: str) -> None:
        """Send a signal to all ranks.

        SIGTERM is sent with a plain `scancel`, which ends the job: SIGKILL follows some time later.

        Parameters
        ----------
        name : str
            Such as "TERM".
        """
        self._signalled = True
        slurm_command("scancel", *([] if name == "TERM" else [f"--signal={name}"]), self.number)

    def _run(self, *argv: str) -> tuple[int, str, str]:
        is_small = self.slurm.kind == "own"
        return _run(argv, timeout_s=min(SMALL_TIMEOUT_S, COMMAND_TIMEOUT_S) if is_small else COMMAND_TIMEOUT_S)

    def read_output(self) -> str:
        """Return the job's output; wait for its file, which may appear late on a shared file system."""
        began = time.monotonic()
        while not self.output.exists():
            if time.monotonic() - began > OUTPUT_TIMEOUT_S:
                raise LabError(f"there is no {self.output}: is its folder on a file system that all nodes see?")
            time.sleep(LOG_INTERVAL_S)
        return self.output.read_text(encoding="utf-8", errors="replace")


class RankJob:
    """Ranks on this machine instead of a job's; `wait` starts them.

    Parameters
    ----------
    n : int
        The number of ranks.
    script : Path
        The script to run.
    args
        The script's arguments.
    threads : int
        Threads per rank.
    """

    def __init__(self, n: int, script: Path, *args: object, threads: int) -> None:
        self.n, self.script, self.args, self.threads = n, script, args, threads
        self._sent: str | None = None  # the last signal's name
        self._output: tuple[str, ...] = ()

    def wait(
        self,
        log: Path | None = None,
        on_line: OnText | None = None,
        on_state: OnText | None = None,
        timeout_s: float = JOB_TIMEOUT_S,
    ) -> str:
        """Run the ranks to their end and return the state that Slurm would report; see `Job.wait`.

        `on_line` is called in another thread, and needs a `log` to follow.

        Raises
        ------
        RankError
            If a rank fails without having been signalled, or the ranks don't end in time.
        """
        script = os.path.relpath(self.script)
        print("$", shlex.join(["mpirun", "-n", str(self.n), "python", script, *map(str, self.args)]), flush=True)
        on_state = on_state or (lambda state: None)
        on_state("RUNNING")
        with _following(log, on_line):
            try:
                run = run_ranks(self.n, self.script, *self.args, threads=self.threads, show=False, timeout=timeout_s)
                state, self._output = "COMPLETED", run.lines[0]
            except RankError as error:
                if not self._sent:
                    raise
                state, self._output = "CANCELLED" if self._sent == "TERM" else "FAILED", tuple(str(error).splitlines())
        on_state(state)
        return state

    def signal(self, name: str) -> None:
        """Send a signal, such as "TERM", to all ranks."""
        self._sent = name
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                if process.name().startswith("python") and self.script.name in " ".join(process.cmdline()):
                    process.send_signal(signal.Signals[f"SIG{name}"])

    def read_output(self) -> str:
        """Return rank 0's output, or the error of a run that a signal ended."""
        return "\n".join(self._output)


class _LogLines:
    """The complete lines of a growing file, passed on as they arrive; after a truncation, those after its new end."""

    def __init__(self, path: Path, on_line: OnText | None) -> None:
        self.path, self.on_line = path, on_line
        self._read = 0  # the bytes that were read

    def pass_on(self) -> None:
        """Pass on new lines."""
        if not self.on_line or not self.path.exists():
            return
        with self.path.open("rb") as file:
            self._read = min(self._read, file.seek(0, os.SEEK_END))
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        for line in whole.split(b"\n") if newline else ():
            self.on_line(line.decode(errors="replace"))


@contextlib.contextmanager
def _following(log: Path | None, on_line: OnText | None) -> Iterator[None]:
    """Pass on a log's lines from another thread; an error of `on_line` is raised at the end."""
    if not (log and on_line):
        yield
        return
    new_lines, over = _LogLines(log, on_line), threading.Event()
    errors: list[Exception] = []

    def follow() -> None:
        try:
            while not over.wait(LOG_INTERVAL_S):
                new_lines.pass_on()
            new_lines.pass_on()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def _print_and_run(
    command: Sequence[object], error: type[LabError], env: Mapping[str, object] | None = None, show: bool = True
) -> str:
    """Print and run a command and return its output; raise `error` if it fails."""
    argv = [str(part) for part in command]
    if show:
        print("$", shlex.join(argv), flush=True)
    status, output, errors = _run(argv, env)
    if status:
        raise error(f"{argv[0]} failed: {errors or output}")
    return output


def _run(
    argv: Sequence[str], env: Mapping[str, object] | None = None, timeout_s: float | None = None
) -> tuple[int, str, str]:
    """Return a command's status, stdout and stderr; it runs without the variables of a job that this process is in.

    A kernel's temporary folder is on this machine, and gone when the kernel ends: a job uses its node's.
    """
    environ = {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or "SLURM" not in name}
    environ.pop("TMPDIR", None)
    environ |= {name: str(value) for name, value in (env or {}).items()}
    timeout_s = timeout_s or COMMAND_TIMEOUT_S
    try:
        done = subprocess.run(argv, capture_output=True, timeout=timeout_s, env=environ)
    except OSError as error:
        return 1, "", f"{error.strerror}. Is Slurm installed?"
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {timeout_s:.0f} s. Is the cluster up?"
    output, errors = (text.decode(errors="replace").strip() for text in (done.stdout, done.stderr))
    return done.returncode, output, errors
