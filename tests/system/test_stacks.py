import threading
from pathlib import Path

import pytest

from labkit.system.stacks import stack_of

WAITS = """\
def outer():
    inner()


def inner():
    reached.set()
    resume.wait(60)
"""


@pytest.mark.parametrize("name", ["answer.py", 'Übung “2”, line 7 in "x".py', "寿司 🍣.py"])
def test_the_line_of_a_blocked_thread_is_reported(tmp_path: Path, name: str) -> None:
    reached, resume = threading.Event(), threading.Event()
    file = str(tmp_path / name)
    names = {"reached": reached, "resume": resume}
    exec(compile(WAITS, file, "exec"), names)
    thread = threading.Thread(target=names["outer"])
    thread.start()
    try:
        assert reached.wait(60)
        assert [line for at, line in stack_of(thread.ident) if at == file] in ([2, 6], [2, 7])
    finally:
        resume.set()
        thread.join()
    assert stack_of(thread.ident) == stack_of(None) == []
