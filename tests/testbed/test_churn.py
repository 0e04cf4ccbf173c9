"""Testbeds leave nothing behind, however and whenever they end."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from labkit.system.processes import is_alive, wait_until

pytestmark = [
    pytest.mark.weekly,  # its child processes make many testbeds
    pytest.mark.usefixtures("wires_can_be_made"),
]

# A process that survives interrupts, like a notebook kernel, and reports its leftovers.
INTERRUPTED = """
    import contextlib, gc, json, os, random, signal, sys
    import psutil
    from labkit.system import processes
    from labkit.testbed import Testbed

    def use():
        with Testbed(2, "1 Gbit/s") as wires:
            str(wires)

    def leftovers():
        children = [child for child in psutil.Process().children(recursive=True) if processes.is_alive(child)]
        return [f"child {child.pid}" for child in children] + sorted(set(os.listdir("/proc/self/fd")) - before)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    use()  # some files are imported and opened once
    before = set(os.listdir("/proc/self/fd"))
    interrupted = 0
    for delay in map(float, sys.argv[1:]):
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            use()
        except KeyboardInterrupt:
            interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()  # frames of the interrupt may refer to each other
        if not processes.wait_until(lambda: not leftovers(), 10):
            break
    print(json.dumps([interrupted, leftovers()]))
"""


def test_an_interrupt_at_any_moment_leaves_nothing_in_a_surviving_process():
    moments = [str(random.uniform(0.001, 0.5)) for _ in range(20)]
    command = [sys.executable, "-c", textwrap.dedent(INTERRUPTED), *moments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    interrupted, leftovers = json.loads(done.stdout.splitlines()[-1])
    assert interrupted > 5
    assert leftovers == [], moments


AT_WORK = """
    from labkit.mpi import run_ranks
    from labkit.testbed import Testbed
    print("begins", flush=True)
    with Testbed(3, "1 Gbit/s") as wires:
        print(wires._shell.pid, *(node.pid for node in wires.nodes), flush=True)
        run_ranks(3, "rank.py", network=wires, show=False, timeout=60)
"""
RANK = """
    import time
    from mpi4py import MPI
    end = time.monotonic() + 60
    while MPI.COMM_WORLD.bcast(time.monotonic() < end):
        time.sleep(0.01)
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


@pytest.fixture
def process(nothing_left, tmp_path):
    """Start a process that begins to make a testbed for its ranks; afterwards, it must leave nothing behind."""
    (tmp_path / "rank.py").write_text(textwrap.dedent(RANK))
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(AT_WORK)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # it may be ignored here
    ) as started:
        assert started.stdout.readline() == b"begins\n"
        yield started
        started.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_killed_while_making_a_testbed_leaves_nothing(process, number):
    time.sleep(random.uniform(0, 0.5))
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(60) != 0
    assert wait_until(lambda: not any(map(is_alive, started)), 30), started


def name_of(process: psutil.Process) -> str:
    """Return a process's name; empty if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


@pytest.mark.parametrize("victim", [*SIGNALS, "the shell", "a node", "mpirun"])
def test_a_process_killed_while_ranks_run_leaves_nothing(process, nothing_left, victim):
    pids = list(map(int, process.stdout.readline().split()))
    nothing_left(*pids)

    def mpiruns() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children(recursive=True)
        return [child for child in children if is_alive(child) and name_of(child) == "mpiexec.hydra"]

    assert wait_until(mpiruns, 60)
    time.sleep(random.uniform(0, 3))
    started = psutil.Process(process.pid).children(recursive=True)
    if victim in SIGNALS:
        process.send_signal(victim)
    else:
        os.kill({"the shell": pids[0], "a node": pids[2], "mpirun": mpiruns()[0].pid}[victim], signal.SIGKILL)
    if victim not in ("the shell", "a node"):  # ranks keep its namespaces, and continue
        assert process.wait(60) != 0
    process.kill()
    assert wait_until(lambda: not any(map(is_alive, started)), 30), started
