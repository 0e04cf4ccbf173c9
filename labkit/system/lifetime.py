"""Settings that the kernel has for a process (prctl(2)). Standard library only: every rank imports this first."""

import ctypes
import os
import signal

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # options of prctl(2), numbered in linux/prctl.h
_prctl = ctypes.CDLL(None).prctl


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends: to be exact, the parent's thread that started it."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # ended since
        os._exit(1)


def adopt_orphans() -> None:
    """Make all processes under this one its children when their parents end."""
    _prctl(_SET_CHILD_SUBREAPER, 1)
