"""Run one mpirun: start it, read its ranks line by line, and end it with all its descendants."""

import contextlib
import math
import os
import re
import selectors
import subprocess
import sysconfig
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

from labkit.mpi import rank_runner
from labkit.system import compiler, processes
from labkit.system.errors import LabError
from labkit.testbed.testbed import VARIABLES

BIN = Path(sysconfig.get_path("scripts"))
EXIT_GRACE_S = 1.0  # the time for mpirun to end on its own once its output has stopped
REPORT_TIMEOUT_S = 5.0  # the wait for a rank's last report, queued after other ranks' output

# Prefixes of variables set by an mpirun that started this process, or by a testbed that it runs on.
_OUTER_RUN = ("PMI_", "PMIX_", "HYDI_", "MPI_LOCAL", *VARIABLES)
_ABORT = re.compile(r"Abort\((\d+)\) .*application called MPI_Abort")  # MPICH's line before it ends the job
# Lines of MPICH libraries on a rank, such as "[1700000000.123456] [host:7:0]  sys.c:9  UCX  WARN  …" (UCX 1.20,
# ucs/debug/log.c).
_MPI = re.compile(
    rb"\[\d+\.\d+\] \[[^\[\]]+:\d+ *:\d+\] +\S+:\d+ +UCX +[A-Z]+ "
    rb"|(?:\[hwloc/|libfabric:\d+:|WARNING: No MPI_THREAD_MULTIPLE|Warning: MPIR_CVAR_)"
)
_NOTICES = re.compile(  # lines that TensorFlow 2.21 prints at every start, on each rank
    "WARNING: All log messages before absl::InitializeLog|I0000 .*(oneDNN custom operations are on|cpu_feature_guard)"
    "|To enable the following instructions:"
)
SRUN = re.compile("srun: ")  # a message of Slurm's launcher
_BAD_TERMINATION = "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
_ROUTINE = re.compile(
    "$|=|YOUR APPLICATION|This typically|Please see the FAQ"
    "|srun: cluster configuration lacks support for cpu binding"  # although binding is off
)


@dataclass
class Rank:
    """The state of one rank, as far as known; times are in seconds since the start."""

    number: int
    lines: list[str] = field(default_factory=list)  # the lines on its stdout and stderr
    mpi_lines: list[str] = field(default_factory=list)  # the lines of MPI libraries, for administrators
    last_output_at: float = 0.0  # when it last printed
    started: bool = False  # whether its Python has started
    local: bool = False  # whether it is on this node
    finished_at: float | None = None  # when its script finished
    exit_code: int | None = None  # its exit status as reported by itself, or minus the number of the signal
    ended_at: float | None = None  # when it ended, if known
    aborted: bool = False  # whether it called MPI_Abort
    gone_at: float | None = None  # when its process was observed to end


class MpiRun:
    """One mpirun and its n ranks.

    Parameters
    ----------
    n : int
        Number of ranks.
    folder : Path
        A folder for the named pipes with the ranks' outputs.
    show : bool
        Whether to print their lines.
    """

    def __init__(self, n: int, folder: Path, show: bool) -> None:
        self.ranks = [Rank(number) for number in range(n)]
        self._output: list[str] = []  # the lines of mpirun itself
        self._folder, self._show = folder, show
        self._token = uuid.uuid4().hex
        self._sessions: set[int] = set()  # the ranks' sessions: Hydra gives each its own, with its process id
        self._mpirun: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._streams: list[tuple[Rank | None, processes.LineSplitter]] = []  # of each rank, and of mpirun itself
        self._unprinted: list[str] = []
        self._began = time.monotonic()
        self._last_event_at = 0.0  # in seconds since the start

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def start(self, argv: Sequence[str], variables: Mapping[str, str], library: Path | None = None) -> None:
        """Start mpirun, with a library preloaded into it, so that it ends if this process ends.

        By default, Hydra interleaves pieces of the ranks' lines. Here it writes each rank's stdout and stderr to
        separate files: named pipes (docs/contribute/upstream.md).
        """
        for rank in self.ranks:
            for name in ("out", "err"):
                fifo = self._folder / f"{rank.number}.{name}"
                os.mkfifo(fifo)
                # Also open for writing, so that the pipe has no end of file before mpirun opens it.
                self._register(os.open(fifo, os.O_RDWR), rank)
        read, write = os.pipe()
        self._register(read, None)
        # These options only redirect the ranks' output. Hydra splits this file at spaces and limits the length of names
        # in it, so the folder is named by a descriptor that mpirun inherits:
        # https://github.com/pmodels/mpich/issues/1160
        folder = os.open(self._folder, os.O_RDONLY)
        options = [f"-{name}file-pattern /dev/fd/{folder}/%r.{name}" for name in ("out", "err")]
        (self._folder / "hydra.conf").write_text(" ".join(options), encoding="utf-8")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_OUTER_RUN)}
        plumbing = {
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HYDRA_CONFIG_FILE": f"/dev/fd/{folder}/hydra.conf",
            rank_runner.RUN_VARIABLE: self._token,
        }
        if library:
            (self._folder / "preload").symlink_to(library)  # LD_PRELOAD is also split at spaces
            plumbing |= compiler.preload(f"/dev/fd/{folder}/preload", environ)
        try:
            self._mpirun = processes.start(
                argv, {**environ, **variables, **plumbing}, None, stdout=write, stderr=write, pass_fds=[folder]
            )
        except OSError as error:
            raise LabError(f"cannot start mpirun: {error.strerror}. Is one of the arguments too long?") from error
        finally:
            os.close(folder)
            os.close(write)

    def wait(self, timeout: float) -> bool:
        """Read until the run is over or has failed; return False after a timeout."""
        while self._is_running():
            if self._is_overdue():
                return True
            if self.elapsed() > timeout:
                return False
            self._poll(0.1)
        return True

    def _is_running(self) -> bool:
        return self._mpirun is not None and self._mpirun.poll() is None

    def _is_overdue(self) -> bool:
        """Return whether mpirun should have ended: srun started no rank, a rank failed a while ago, or all are gone."""
        if any(map(SRUN.match, self._output)) and not any(rank.started for rank in self.ranks):
            return self._launcher_has_ended()
        now = self.elapsed()
        failed = (
            rank.ended_at + (EXIT_GRACE_S if rank.exit_code else REPORT_TIMEOUT_S)
            for rank in self.ranks
            if rank.ended_at and rank.exit_code != 0
        )
        # A rank that ended before it could be watched, or on another node, is gone some time after its report.
        gone = all(rank.gone_at or (rank.ended_at and now > rank.ended_at + REPORT_TIMEOUT_S) for rank in self.ranks)
        return now > min(failed, default=math.inf) or (gone and now > self._last_event_at + EXIT_GRACE_S)

    def _launcher_has_ended(self) -> bool:
        """Return whether mpirun's srun is gone, which Hydra does not notice: it keeps waiting for ranks."""
        assert self._mpirun is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._mpirun.pid).children()
            return all(child.status() == psutil.STATUS_ZOMBIE for child in children)
        return True

    # Ending

    def end(self) -> None:
        """End the rest of the run and read the rest of its output, despite interrupts."""
        try:
            processes.despite_interrupts(self._end)
        finally:
            for key in list(self._selector.get_map().values()):
                self._close(key.fd)
            self._selector.close()

    def _end(self) -> None:
        """Kill the ranks first, so that mpirun can report them and clean up; then mpirun and leftover processes.

        On the other nodes of a Slurm job, Hydra's proxies kill their ranks when they lose mpirun.
        """
        if self._is_running():
            self._kill(ranks_only=True)
            self._poll_while(self._is_running)
        self._poll_while(self._kill)
        if self._mpirun:
            self._mpirun.wait()
        while self._poll(0):
            pass
        for rank, splitter in self._streams:
            for line in splitter.flush():
                self._handle_line(rank, line)
        self._print_lines()

    def _kill(self, ranks_only: bool = False) -> bool:
        """Kill the remaining processes of this run; return whether there were any."""

        def matches(process: psutil.Process) -> bool:
            ours = processes.belongs(process, self._sessions, rank_runner.RUN_VARIABLE, self._token)
            return ours and (not ranks_only or "PMI_RANK" in processes.environ_of(process))

        return processes.kill(processes.find(matches))

    # Reading

    def _register(self, descriptor: int, rank: Rank | None) -> None:
        os.set_blocking(descriptor, False)
        splitter = processes.LineSplitter()
        self._streams.append((rank, splitter))
        self._selector.register(descriptor, selectors.EVENT_READ, partial(self._read, rank, splitter))

    def _poll(self, seconds: float) -> bool:
        """Handle the first events within `seconds`; return whether there were any.

        epoll returns events in the order in which they happened, even for ranks that end at nearly the same time.
        """
        events = self._selector.select(seconds)
        for key, _ in events:
            key.data(key.fd)
        self._print_lines()
        if events:
            self._last_event_at = self.elapsed()
        return bool(events)

    def _poll_while(self, condition: Callable[[], bool]) -> None:
        """Read while the condition holds, until nothing has arrived for a while."""
        began = self.elapsed()
        while condition() and self.elapsed() < max(began, self._last_event_at) + EXIT_GRACE_S:
            self._poll(0.05)

    def _print_lines(self) -> None:
        if self._unprinted and self._show:
            print("\n".join(self._unprinted), flush=True)
        self._unprinted.clear()

    def _read(self, rank: Rank | None, splitter: processes.LineSplitter, descriptor: int) -> None:
        data = os.read(descriptor, 1 << 16)
        if not data:
            self._close(descriptor)
        if rank:
            rank.last_output_at = self.elapsed()
        for line in splitter.split(data):
            self._handle_line(rank, line)

    def _handle_line(self, rank: Rank | None, line: bytes) -> None:
        """Handle a line of a rank's script, MPI libraries, the rank runner, or mpirun."""
        if rank and _MPI.match(line):
            rank.mpi_lines.append(line.decode(errors="replace").rstrip())
            self._unprinted.append(f"[{rank.number}] MPI: {rank.mpi_lines[-1]}")
            return
        raw, mark, report = line.partition(rank_runner.REPORT_PREFIX.encode())
        text = processes.last_state(raw)
        if rank is None:
            self._output.append(text)
        elif (text or not mark) and not _NOTICES.match(text):
            rank.lines.append(text)
            self._unprinted.append(f"[{rank.number}] {text}")
            if abort := _ABORT.match(text):
                rank.aborted = True
                self._record_exit(rank, int(abort[1]) % 256 or 1, self.elapsed())
        if rank and mark:
            self._handle_report(rank, *report.decode().split())

    def _handle_report(self, rank: Rank, event: str, *values: str) -> None:
        """Handle a report of a rank runner."""
        if event == "start":
            rank.started = True
            self._watch_process(rank, int(values[0]))
        elif event == "done":
            rank.finished_at = self.elapsed()
        else:
            # The report may arrive after other ranks have ended because of it. On this node, the clock is shared.
            at = float(values[1]) - self._began if rank.local else self.elapsed()
            self._record_exit(rank, int(values[0]), at)

    def _record_exit(self, rank: Rank, code: int | None, at: float) -> None:
        if rank.exit_code is None:
            rank.exit_code, rank.ended_at = code, at

    def _watch_process(self, rank: Rank, pid: int) -> None:
        """Notice when the rank's process ends, even if it cannot report that: usually, when it is killed.

        This is not possible on the other nodes of a Slurm job, nor before Linux 5.3.
        """
        with contextlib.suppress(OSError, psutil.Error):
            if processes.environ_of(psutil.Process(pid)).get(rank_runner.RUN_VARIABLE) == self._token:
                rank.local = True
                self._sessions.add(pid)
                self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, partial(self._handle_exit, rank))

    def _handle_exit(self, rank: Rank, descriptor: int) -> None:
        self._close(descriptor)
        rank.gone_at = self.elapsed()
        self._record_exit(rank, None, rank.gone_at)

    def _close(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    # mpirun's own output

    def remarks(self) -> tuple[str, ...]:
        """Return mpirun's own lines, without those that it prints after every failure."""
        return tuple(line for line in self._output if not _ROUTINE.match(line))

    def abort_status(self) -> int | None:
        """Return the exit status of a rank's MPI_Abort, if that ended the run."""
        status = self._mpirun.returncode if self._mpirun else 0
        messages = [line for line in self.remarks() if not _MPI.match(line.encode())]
        return status if status > 0 and _BAD_TERMINATION not in self._output and not messages else None
