"""Run a script in an MPI rank so that a failure ends the whole run instead of leaving the other ranks waiting.

`mpirun -n 2 python -u -m labkit.mpi.rank_runner train.py` runs `train.py` in each rank as `python -u train.py`
would, except after a failure. Python would then first call the functions registered with `atexit`, including
`MPI_Finalize`, which waits for ranks that wait for this one. Here, a failed rank exits at once, and mpirun ends the
others; `python -m mpi4py` does the same for scripts that import mpi4py (https://mpi4py.readthedocs.io, mpi4py.run).

The script runs in a child process of the one that mpirun started. The parent waits, then ends in the same way as its
child. As both hold the connection through which mpirun notices that a rank is gone, the parent can report how it ended
before mpirun ends the other ranks: under `labkit.mpi.launch`, in lines on stderr that start with `REPORT_PREFIX`.
"""

import contextlib
import faulthandler
import io
import os
import runpy
import signal
import sys
import time
import traceback
from types import TracebackType

from labkit.system.imports import gc_rare, lighten_keras
from labkit.system.lifetime import end_with

RUN_VARIABLE = "LABKIT_RUN"  # set in all processes of a run
REPORT_PREFIX = "\x1elabkit "  # starts with ASCII's record separator, which scripts don't print by chance
# Signals of a crash, and the delay before the runner of a crashed rank exits. A rank that loses another can crash in
# MPI: without the delay, mpirun ended the other's runner before it could report the original failure.
CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
CRASH_DELAY_S = 0.5
# In runs with PyTorch: the variables that torchrun sets for `init_process_group`, from the variables of mpirun.
TORCH_VARIABLES = {"RANK": "PMI_RANK", "WORLD_SIZE": "PMI_SIZE"}


def main(script: str, *args: str) -> None:
    """Run the script in a child; return in the child if the script succeeds, else exit the process."""
    parent = os.getpid()
    _report("start", parent)
    if child := os.fork():
        _exit_like(child)
    end_with(parent)
    sys.argv[:] = [script, *args]
    sys.path[0] = os.path.dirname(os.path.realpath(script))  # noqa: PTH120
    if "MASTER_ADDR" in os.environ:
        os.environ.update({name: os.environ[pmi] for name, pmi in TORCH_VARIABLES.items() if pmi in os.environ})
    faulthandler.enable(all_threads=False)  # so that a crash in compiled code shows Python's stack
    lighten_keras()
    _write_lines_whole()
    with gc_rare():
        status = _run(script)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if status:
        os._exit(status)
    _report("done")


def _write_lines_whole() -> None:
    """Write each printed line at once, while `python -u` would write each argument of print separately.

    Otherwise, the lines of ranks that share a terminal would mix.
    """
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True, write_through=False)


def _report(*words: object) -> None:
    if RUN_VARIABLE in os.environ:
        os.write(2, f"{REPORT_PREFIX}{' '.join(map(str, words))}\n".encode())


def _exit_like(child: int) -> None:
    """Wait for the child, report how it ended, and end the same way."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # mpirun sends such signals to both, and the script decides what to do
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    _report("end", code, time.monotonic())
    if code < 0:
        time.sleep(CRASH_DELAY_S if -code in CRASHES else 0)
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _run(script: str) -> int:
    """Run the script; print its error, and return its exit status, as Python would."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return (exit_.code or 0) & 0xFF
        print(exit_.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback.print_exception(error.with_traceback(_inside(script, error.__traceback__)))
        return 1
    return 0


def _inside(script: str, trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames that led to the script."""
    while trace and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main(*sys.argv[1:])
