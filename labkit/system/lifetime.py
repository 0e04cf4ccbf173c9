"""Tie processes' lifetimes together (prctl(2)). Standard library only: every rank imports this first."""

import ctypes
import os
import signal

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # options of prctl(2), numbered in linux/prctl.h
_prctl = ctypes.CDLL(None).prctl


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends: more exactly, the parent's thread that started it."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # already ended
        os._exit(1)


def adopt_orphans() -> None:
    """Make descendants whose parents end children of this process."""
    _prctl(_SET_CHILD_SUBREAPER, 1)
