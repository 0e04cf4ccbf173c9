"""Capture another thread's stack."""

import faulthandler
import re
import tempfile

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in ')


def stack_of(ident: int | None) -> list[tuple[str, int]]:
    """Return the files and lines on a running thread's stack, the outermost call first.

    `traceback.extract_stack(sys._current_frames()[ident])` is safe only for a blocked thread. A running one may leave a
    frame between two steps of that walk, and Python 3.11 then follows a dangling pointer and crashes. `faulthandler`
    reads the whole stack while no other thread can run, and holds no reference to a frame.

    Parameters
    ----------
    ident : int or None
        `threading.Thread.ident`.

    Returns
    -------
    list of (str, int)
        At most the innermost hundred calls; empty for a thread that has ended.
    """
    with tempfile.TemporaryFile() as dump:
        faulthandler.dump_traceback(dump)
        dump.seek(0)
        lines = dump.read().decode("ascii", "replace").splitlines()
    stack: list[tuple[str, int]] = []
    in_thread = False
    for line in lines:
        if thread := _THREAD.match(line):
            in_thread = int(thread[1], 16) == ident
        elif in_thread and (frame := _FRAME.match(line)):
            stack.append((frame[1].encode().decode("unicode_escape"), int(frame[2])))
    return stack[::-1]
