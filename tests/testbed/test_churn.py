"""However testbeds end, and whenever an interrupt comes, nothing of them is left."""

import json
import subprocess
import sys
import textwrap

import pytest

from labkit.system import paths
from labkit.system.processes import wait_until

pytestmark = [
    pytest.mark.slow,  # its child processes make many testbeds
    pytest.mark.usefixtures("wires_can_be_made"),
]

CHURN = paths.ROOT / "tests" / "benchmarks" / "testbed_churn.py"

# An interrupt comes at a line of namespaces.py that is run, in one attempt after the other at each; the process lives
# on, as a notebook's kernel does, and is asked what it has then.
INTERRUPTED = """
    import contextlib, gc, json, os, signal, sys
    from pathlib import Path
    import psutil
    from labkit.system import processes
    from labkit.testbed import namespaces

    def trace(reached):
        def local(frame, event, argument):
            if event == "line":
                reached(f"{frame.f_code.co_name}, line {frame.f_lineno}")
            return local
        ours = namespaces.__file__
        sys.settrace(lambda frame, *_: local if frame.f_code.co_filename == ours else None)

    def use():
        with contextlib.closing(namespaces.Shell()) as shell:
            shell.spawn()

    def attempt(reached):
        trace(reached)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                use()
        finally:
            sys.settrace(None)

    def interrupt_at(line):
        def reached(at):
            if at == line and not came:
                came.append(at)
                signal.raise_signal(signal.SIGINT)
        came = []
        attempt(reached)
        return bool(came)

    def left():
        children = [each for each in psutil.Process().children(recursive=True) if processes.lives(each)]
        return [f"child {each.pid}" for each in children] + sorted(set(os.listdir("/proc/self/fd")) - before)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    use()  # what is imported and opened once
    lines = {}
    attempt(lambda at: lines.setdefault(at))
    before = set(os.listdir("/proc/self/fd"))
    found, missed = {}, []
    for line in lines:
        if not interrupt_at(line):
            missed.append(line)
        gc.collect()  # frames of the interrupt may refer to each other
        if not processes.wait_until(lambda: not left(), 10):
            found[line] = left()
            break  # each takes as long
    print(json.dumps([len(lines), missed, found]))
"""


def test_an_interrupt_at_any_line_leaves_nothing_in_a_process_that_lives_on():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    lines, missed, left = json.loads(done.stdout)
    assert lines > 50
    assert missed == []
    assert left == {}


KILLED_AT_WORK = """
    import sys
    from labkit.testbed import namespaces
    shell = namespaces.Shell()
    node = shell.spawn()
    print(shell.pid, node, flush=True)
    shell.run(f"nsenter -t {node} -n sh -c 'echo at work >&3; sleep 60' 3>{sys.argv[1]} & wait", timeout=90)
"""


def test_what_the_shell_is_at_ends_with_its_process(nothing_left, tmp_path):
    at_work = tmp_path / "at-work"
    command = [sys.executable, "-c", textwrap.dedent(KILLED_AT_WORK), at_work]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        nothing_left(*map(int, process.stdout.readline().split()))
        assert wait_until(lambda: at_work.exists() and at_work.read_text(), 60)
        process.kill()


def test_the_benchmark_finds_nothing_left():
    done = subprocess.run(
        [sys.executable, CHURN, "--times", "6", "--nodes", "3", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=280,
    )
    if done.returncode == 2:
        pytest.skip(f"THE END OF TESTBEDS AT RANDOM MOMENTS NOT TESTED HERE: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "LEFT" not in done.stdout
    assert "6/6" in done.stdout
