import threading
from pathlib import Path

import pytest

from labkit.system.stacks import stack_of

WAITS = """\
def outer():
    inner()


def inner():
    here.set()
    go_on.wait(60)
"""


@pytest.mark.parametrize("name", ["answer.py", 'Übung “2”, line 7 in "x".py', "寿司 🍣.py"])
def test_says_in_which_line_a_thread_stands(tmp_path: Path, name: str) -> None:
    here, go_on = threading.Event(), threading.Event()
    file = str(tmp_path / name)
    names = {"here": here, "go_on": go_on}
    exec(compile(WAITS, file, "exec"), names)
    thread = threading.Thread(target=names["outer"])
    thread.start()
    try:
        assert here.wait(60)
        assert [line for at, line in stack_of(thread.ident) if at == file] in ([2, 6], [2, 7])
    finally:
        go_on.set()
        thread.join()
    assert stack_of(thread.ident) == []


def test_reads_the_stack_of_a_thread_that_never_stands_still() -> None:
    over = threading.Event()

    def down(depth: int) -> None:
        if depth:
            down(depth - 1)

    def run() -> None:
        while not over.is_set():
            down(40)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        own = run.__code__.co_firstlineno
        for _ in range(300):
            lines = [line for at, line in stack_of(thread.ident) if at == __file__]
            assert lines[0] in (own + 1, own + 2), "the outermost call is run's"
    finally:
        over.set()
        thread.join()


def test_knows_no_thread_that_does_not_run() -> None:
    assert stack_of(None) == []
