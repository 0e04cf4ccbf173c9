"""Runs scripts one after the other in one launch, since what they import takes seconds on each rank:

    mpirun -n 3 python batch.py LIST OUT

LIST is a JSON file of pairs: the folder to run in, and what would follow `python` in a launch of its own. What a rank
prints is in the file OUT/NUMBER-RANK, and OUT/NUMBER-done is there when all ranks are through with a script. Where some
are not, as one has failed for which they wait, the launch ends.
"""

import contextlib
import importlib
import json
import math
import os
import runpy
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from mpi4py import MPI

from labkit.exercises import ranks

RANK = MPI.COMM_WORLD.rank
THROUGH = MPI.COMM_WORLD.Dup()  # for the batch alone: no script's message meets its own
WINDOWS = MPI.Win
PATIENCE_S = 1.0  # for the other ranks to be through, once one has failed
PROBES = Path(ranks.__file__).parent


class Failed(BaseException):
    """What `ranks.fail` raises here; no handler of the probe's, or of a student's, catches it."""


def fail(message: str, where: str = "", hint: str = "") -> NoReturn:
    """End this script on this rank; a rank that hangs, which another thread has found, can only be ended itself."""
    if not isinstance(sys.exception(), Failed):  # as `ranks.watched` sees it
        print(f"\n{ranks.FAILED}{json.dumps([message, where, hint])}", flush=True)
    if threading.current_thread() is not threading.main_thread():
        os._exit(1)
    raise Failed


def run(script: str, *arguments: str) -> bool:
    """Run a probe or another script as in a process of its own; return whether it has not failed."""
    MPI.COMM_WORLD, MPI.Win = THROUGH.Dup(), WINDOWS  # no message of an earlier script's, nor its watched windows
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    if keras := sys.modules.get("keras"):
        keras.backend.clear_session()
    try:
        if Path(script).parent == PROBES:
            name = f"labkit.exercises.{Path(script).stem}"
            if "tensorflow" not in sys.modules:  # a probe with it keeps what it has trained in one process
                sys.modules.pop(name, None)
            importlib.import_module(name).main()
        else:
            runpy.run_path(script, run_name="__main__")
    except Failed:
        return False
    finally:
        if horovod := sys.modules.get("horovod.tensorflow"):
            horovod.shutdown()
    return True


@contextlib.contextmanager
def printing_into(path: Path) -> Iterator[None]:
    """Have all that this process prints go into a file; libraries too, which know no `sys.stdout`."""
    before = [os.dup(number) for number in (1, 2)]
    with path.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in zip((1, 2), before, strict=True):
            os.dup2(stream, number)
            os.close(stream)


def forget_modules(folder: str) -> None:
    """Have the next script import its own modules, which have the names of the last one's."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            del sys.modules[name]


def main(listed: str, out: str) -> None:
    """Run all scripts, until one does not end on all ranks."""
    ranks.fail = fail
    for number, (folder, words) in enumerate(json.loads(Path(listed).read_text())):
        os.chdir(folder)
        with printing_into(Path(out, f"{number}-{RANK}")):
            passed = run(*words)
        forget_modules(folder)
        deadline = math.inf if passed else time.monotonic() + PATIENCE_S
        through = THROUGH.Ibarrier()
        while not through.Test():
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.005)
        if RANK == 0:
            Path(out, f"{number}-done").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
