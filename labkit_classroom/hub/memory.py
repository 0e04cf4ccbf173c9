"""The memory that a lab takes, measured by running it: of all its processes, what is shared counted once."""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from labkit.exercises import notebooks, sources
from labkit.system import files, paths
from labkit_author import build
from labkit_classroom.lecture import rehearsal

FILE = paths.STATE / "memory.json"  # bytes at a lab's peak, by the lab's number
SAMPLE_INTERVAL_S = 0.5
ERRORS = 2  # the descriptor of standard error
GIB = 1 << 30


def pss(process: psutil.Process) -> int:
    """Return a process's proportional set size in bytes (proc(5)): each shared page divided by those who share it."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("Pss:")))
    return 0


def of_labs(labs: Sequence[str], on_lab: Callable[[str], None]) -> dict[str, int]:
    """Return the bytes that each lab takes at its peak; run those that have not been measured, small as in tests."""
    peaks = known_labs()
    for number in labs:
        source = sources.find(number)
        lab = source.stem[:2]
        if lab not in peaks:
            on_lab(sources.title(source))
            with rehearsal.small_runs() as folder, _off_the_screen(), _Peak() as peak:
                build.execute(notebooks.solution(source), f"{source.stem}-memory", cwd=folder, QUICK=True)
            peaks[lab] = peak.bytes
            files.write(FILE, json.dumps(peaks))
    return {lab: peaks[lab] for lab in (sources.find(number).stem[:2] for number in labs)}


@contextlib.contextmanager
def _off_the_screen() -> Iterator[None]:
    """Throw away what processes print as errors: of a kernel, TensorFlow's notices. What fails in a lab is raised."""
    sys.stderr.flush()
    screen = os.dup(ERRORS)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), ERRORS)
        yield
    finally:
        os.dup2(screen, ERRORS)
        os.close(screen)


def known_labs() -> dict[str, int]:
    """Return the bytes at the peak of each lab that was measured."""
    try:
        peaks: dict[str, int] = json.loads(FILE.read_text())
        return peaks
    except (FileNotFoundError, ValueError):
        return {}


class _Peak:
    """The most memory that this process's children have had at a time, within a `with` block."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process(os.getpid())
        while not self._over.wait(SAMPLE_INTERVAL_S):
            self.bytes = max(self.bytes, sum(map(pss, own.children(recursive=True))))
