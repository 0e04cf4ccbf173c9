import contextlib
import os
import signal
import sys
import threading
import time

import psutil
import pytest

from labkit.system import processes
from labkit.system.errors import LabError


def python(text):
    return [sys.executable, "-u", "-c", text]


def alive(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_all_lines_of_both_outputs_and_the_status_are_returned():
    printed = []
    done = processes.run(
        python("import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"), on_line=printed.append
    )
    assert sorted(done.lines) == ["one", "two"]
    assert printed == list(done.lines)
    assert done.status == 3
    assert done.failure == "exit status 3"


def test_variables_are_set_and_removed(monkeypatch):
    monkeypatch.setenv("THERE", "1")
    done = processes.run(
        python("import os; print(os.environ.get('THERE'), os.environ['N'])"), env={"THERE": None, "N": 4}
    )
    assert done.lines == ("None 4",)


@pytest.mark.slow
def test_a_timeout_ends_the_command_and_its_children(tmp_path):
    start = "print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    script = f"import subprocess, time; {start}; time.sleep(60)"
    done = processes.run(python(script), timeout=10)
    assert done.status is None
    assert done.failure == "timed out after 10 s"
    assert not alive(int(done.lines[0]))


def test_leftover_processes_are_killed_without_waiting():
    done = processes.run(python("import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"), timeout=30)
    assert done.status == 0
    assert done.seconds < 20
    assert not alive(int(done.lines[0]))


@pytest.mark.slow
def test_an_interrupt_ends_the_command():
    printed = []
    timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(python("import os, time; print(os.getpid()); time.sleep(60)"), on_line=printed.append, timeout=30)
    timer.join()
    time.sleep(0.1)
    assert not alive(int(printed[0]))


def test_a_missing_command_is_a_one_line_error():
    with pytest.raises(LabError, match="cannot start no-such-command: No such file"):
        processes.run(["no-such-command"])
    with pytest.raises(LabError, match=r"cannot start /nowhere/python: No such file or directory\.$"):
        processes.run(["/nowhere/python"])


def test_stderr_is_separate_on_request():
    both = "import sys; print('one', file=sys.stderr); print('two'); sys.stderr.write('three')"
    done = processes.run(python(both), separate_errors=True)
    assert (done.lines, done.errors) == (("two",), ("one", "three"))


def test_a_command_that_closes_its_outputs_is_waited_for():
    done = processes.run(python("import os, sys, time; os.close(1); os.close(2); time.sleep(0.5); os._exit(4)"))
    assert (done.lines, done.status) == ((), 4)


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_lines_are_complete_however_they_are_split(size):
    data, splitter = b"one\r\n10%\r20%\r\n\ntwo\n30%\r40%\r", processes.LineSplitter()
    lines = [line for i in range(0, len(data), size) for line in splitter.split(data[i : i + size])]
    assert [processes.last_state(line) for line in (*lines, *splitter.flush())] == ["one", "20%", "", "two", "40%"]
    assert splitter.flush() == []


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exit status 0"),
        (75, "exit status 75"),
        (-signal.SIGTERM, "killed by SIGTERM"),
        (-signal.SIGKILL, "killed by SIGKILL (did memory run out?)"),
        (-(signal.SIGRTMIN + 1), f"killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_exits_are_described_in_words(status, words):
    assert processes.describe_exit(status) == words
