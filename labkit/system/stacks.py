"""Where another thread is."""

import faulthandler
import re
import tempfile

_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in ')


def stack_of(ident: int | None) -> list[tuple[str, int]]:
    """Return the files and lines that a running thread is in, the outermost call first.

    `traceback.extract_stack(sys._current_frames()[ident])` says the same of a thread that stands still. One that runs
    may leave a frame between two steps of that walk: Python 3.11 then follows a pointer to nothing, and crashes.
    `faulthandler` reads a whole stack while no other thread can run, and takes no frame into its hands.

    Parameters
    ----------
    ident : int or None
        `threading.Thread.ident`.

    Returns
    -------
    list of (str, int)
        The innermost hundred calls at most; none for a thread that has ended.
    """
    with tempfile.TemporaryFile() as written:
        faulthandler.dump_traceback(written)
        written.seek(0)
        lines = written.read().decode("ascii", "replace").splitlines()
    stack: list[tuple[str, int]] = []
    here = False
    for line in lines:
        if thread := _THREAD.match(line):
            here = int(thread[1], 16) == ident
        elif here and (frame := _FRAME.match(line)):
            stack.append((frame[1].encode().decode("unicode_escape"), int(frame[2])))
    return stack[::-1]
