"""Run scripts one after another in one launch, because their imports take seconds on each rank:

    mpirun -n 3 python batch.py LIST OUT

LIST is a JSON file of pairs: the working folder, and the arguments of `python` in a separate launch. A rank's output
goes to OUT/NUMBER-RANK, and OUT/NUMBER-done appears when all ranks have finished a script. If some don't finish,
because they wait for one that failed, the launch ends.
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

from labkit.exercises.ranks import runner
from labkit.system.paths import ROOT

RANK = MPI.COMM_WORLD.rank
BATCH_COMM = MPI.COMM_WORLD.Dup()  # for the batch only: its messages never mix with a script's
ORIGINAL_WIN = MPI.Win
GRACE_S = 1.0  # for the other ranks to finish, once one has failed
PROBES = ROOT / "labkit" / "exercises"


class Failed(BaseException):
    """Raised by `runner.fail` here; neither the probe nor a student's code catches it."""


def fail(message: str, where: str = "", hint: str = "") -> NoReturn:
    """End this script on this rank; if another thread reports a hang, end the whole process."""
    if not isinstance(sys.exception(), Failed):  # when `runner.watched` handles it
        print(f"\n{runner.FAILED}{json.dumps([message, where, hint])}", flush=True)
    if threading.current_thread() is not threading.main_thread():
        os._exit(1)
    raise Failed


def run(script: str, *arguments: str) -> bool:
    """Run a probe or another script as in a separate process; return whether it succeeded."""
    MPI.COMM_WORLD, MPI.Win = BATCH_COMM.Dup(), ORIGINAL_WIN  # free of earlier scripts' messages and watched windows
    sys.argv[:] = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    if keras := sys.modules.get("keras"):
        keras.backend.clear_session()
    try:
        if Path(script).is_relative_to(PROBES):
            name = ".".join(Path(script).with_suffix("").relative_to(ROOT).parts)
            if "tensorflow" not in sys.modules:  # a probe with TensorFlow caches its single-process training
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
def redirect_output(path: Path) -> Iterator[None]:
    """Redirect all output of this process to a file, even from libraries that bypass `sys.stdout`."""
    originals = [os.dup(number) for number in (1, 2)]
    with path.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in zip((1, 2), originals, strict=True):
            os.dup2(stream, number)
            os.close(stream)


def forget_modules(folder: str) -> None:
    """Unload a script's modules, so that the next script imports its own under the same names."""
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            del sys.modules[name]


def main(list_file: str, out: str) -> NoReturn:
    """Run all scripts, until one doesn't finish on all ranks."""
    runner.fail = fail
    for number, (folder, args) in enumerate(json.loads(Path(list_file).read_text())):
        os.chdir(folder)
        with redirect_output(Path(out, f"{number}-{RANK}")):
            passed = run(*args)
        forget_modules(folder)
        deadline = math.inf if passed else time.monotonic() + GRACE_S
        barrier = BATCH_COMM.Ibarrier()
        while not barrier.Test():
            if time.monotonic() > deadline:
                os._exit(1)
            time.sleep(0.005)
        if RANK == 0:
            Path(out, f"{number}-done").touch()
    BATCH_COMM.Barrier()
    os._exit(0)  # Python would first join the threads that scripts left, which may wait in an MPI call forever


if __name__ == "__main__":
    main(*sys.argv[1:])
