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


def test_gives_every_line_of_both_outputs_and_the_status():
    heard = []
    done = processes.run(
        python("import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"), on_line=heard.append
    )
    assert sorted(done.lines) == ["one", "two"]
    assert heard == list(done.lines)
    assert done.status == 3
    assert done.failure == "exit status 3"


def test_sets_and_takes_away_variables(monkeypatch):
    monkeypatch.setenv("THERE", "1")
    done = processes.run(
        python("import os; print(os.environ.get('THERE'), os.environ['N'])"), env={"THERE": None, "N": 4}
    )
    assert done.lines == ("None 4",)


def test_a_last_line_without_its_end_and_a_progress_bar_are_heard():
    done = processes.run(python(r"import sys; sys.stdout.write('10%\r20%\ndone')"))
    assert done.lines == ("20%", "done")


def test_what_is_not_over_in_time_is_ended_with_its_children(tmp_path):
    start = "print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    script = f"import subprocess, time; {start}; time.sleep(60)"
    done = processes.run(python(script), timeout=2)
    assert done.status is None
    assert done.failure == "not over after 2 s"
    assert not alive(int(done.lines[0]))


def test_what_outlives_the_command_is_ended_and_not_waited_for():
    done = processes.run(python("import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"), timeout=30)
    assert done.status == 0
    assert done.seconds < 20
    assert not alive(int(done.lines[0]))


def test_a_signal_is_told():
    done = processes.run(python("import os; os.kill(os.getpid(), 9)"))
    assert done.failure == "killed by signal 9 (did memory run out?)"


def test_an_interrupt_ends_the_command():
    heard = []
    timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(python("import os, time; print(os.getpid()); time.sleep(60)"), on_line=heard.append, timeout=30)
    timer.join()
    time.sleep(0.1)
    assert not alive(int(heard[0]))


def test_a_command_that_is_not_there_is_one_line():
    with pytest.raises(LabError, match="cannot start no-such-command: No such file"):
        processes.run(["no-such-command"])
