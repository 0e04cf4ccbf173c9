"""Testbeds leave nothing behind, however and whenever they end."""

import json
import random
import subprocess
import sys
import textwrap

import pytest

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
