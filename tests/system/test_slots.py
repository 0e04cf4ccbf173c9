"""A measuring slot runs one measurement at a time, however that ends."""

import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import uuid
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from labkit.system import cores, kernels, load, processes
from labkit.system.errors import LabError
from labkit.system.machine import this_machine

ALL_CPUS = os.sched_getaffinity(0)
SLOT = {min(ALL_CPUS)}
TIMEOUT_S = 30
PREFIX = f"labkit-test-{uuid.uuid4().hex}-"  # of names that nothing else uses
HOLDER = """
import sys, time
from labkit.system import cores
cores.SLOT_PREFIX = sys.argv[2]
with cores.reserve():
    print(time.monotonic(), flush=True)
    time.sleep(float(sys.argv[1]))
    print(time.monotonic(), flush=True)
"""


@pytest.fixture
def one_slot(monkeypatch):
    """Partition this machine into one slot of one CPU."""
    monkeypatch.setenv(cores.SLOTS_VARIABLE, str(min(SLOT)))
    monkeypatch.setattr(cores, "SLOT_PREFIX", PREFIX)


@pytest.fixture
def hold(one_slot):
    """Start processes that hold a slot for some seconds."""
    started = []

    def start(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(seconds), PREFIX]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for holder in started:
        holder.kill()
        holder.communicate()


def is_free() -> bool:
    return PREFIX not in Path("/proc/net/unix").read_text()


def test_measurements_of_several_processes_never_overlap(hold):
    outputs = [holder.communicate(timeout=TIMEOUT_S) for holder in [hold(0.1) for _ in range(4)]]
    intervals = sorted(tuple(map(float, out.split())) for out, _ in outputs)
    assert all(left <= entered for (_, left), (entered, _) in itertools.pairwise(intervals))
    assert any(err.startswith("Waiting for 1 measuring slot, ") and "Waited" in err for _, err in outputs)


def test_a_killed_holder_frees_its_slot(hold):
    holder = hold(1000)
    holder.stdout.readline()
    assert not is_free()
    holder.kill()
    assert processes.wait_until(lambda: is_free(), TIMEOUT_S)


def test_waiting_ends_with_an_error(hold, monkeypatch):
    monkeypatch.setattr(cores, "SLOT_WAIT_S", 0.1)
    hold(1000).stdout.readline()
    with pytest.raises(LabError, match="no measuring slot was free"), cores.reserve():
        pass
    assert os.sched_getaffinity(0) == ALL_CPUS


def test_threads_and_children_move_to_the_slots_cores_and_back(one_slot):
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(2)]
    threads[0].start()
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as child:
        with cores.reserve():
            threads[1].start()
            pids = [child.pid, os.getpid(), *(thread.native_id for thread in threads)]
            assert [os.sched_getaffinity(pid) for pid in pids] == [SLOT] * 4
            assert not is_free()
        assert [os.sched_getaffinity(pid) for pid in pids] == [ALL_CPUS] * 4
        child.kill()
    assert is_free()
    over.set()


def test_children_of_a_holder_use_its_slot(one_slot):
    code = "import os; from labkit.system import cores\nwith cores.reserve(): print(os.environ[cores.SLOT_VARIABLE])"
    with cores.reserve():
        inner = processes.run([sys.executable, "-c", code], timeout=TIMEOUT_S)
        assert not is_free()
    assert inner.lines == (str(min(SLOT)),)
    assert cores.SLOT_VARIABLE not in os.environ


def test_an_interrupt_releases_the_slot(one_slot):
    with pytest.raises(KeyboardInterrupt), cores.reserve():
        signal.raise_signal(signal.SIGINT)
    assert is_free()
    assert os.sched_getaffinity(0) == ALL_CPUS


def test_wrong_slots_and_unusable_cpus_are_one_line_errors(one_slot, monkeypatch):
    monkeypatch.setenv(cores.SLOTS_VARIABLE, "/var/slots")
    with pytest.raises(LabError, match=r"unusable"), load.watch():
        pass
    monkeypatch.setenv(cores.SLOTS_VARIABLE, str(max(ALL_CPUS) + 4096))
    with pytest.raises(LabError, match="CPUAffinity="), cores.reserve():
        pass
    assert is_free()
    assert os.sched_getaffinity(0) == ALL_CPUS


def test_outside_a_slot_the_usable_machine_is_as_large_as_a_slot(one_slot):
    alone, shared = this_machine(), cores.usable_machine()
    assert (shared.usable_cores, shared.quota, shared.cpus) == (1, 1.0, alone.cpus)
    with cores.reserve():
        assert set(cores.usable_machine().cpus) == SLOT


def test_a_kernel_creates_one_thread_per_core_of_a_slot_and_reports_no_cleared_variable(one_slot):
    specs = KernelSpecManager(kernel_dirs=[str(kernels.SPECS)], ensure_native_kernel=False)
    manager = KernelManager(kernel_name=kernels.KERNEL["name"], kernel_spec_manager=specs)
    code = """
        import json, os, numpy, threadpoolctl
        names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
        cleared = {*names} & {*os.environ["LAB_CLEARED"].split()}
        print(json.dumps([pools, *map(os.environ.get, names), *cleared]))
    """
    printed = []
    manager.start_kernel()  # with the variable that the hub sets
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        hook = lambda message: printed.append(message["content"].get("text", ""))  # noqa: E731
        client.execute_interactive(textwrap.dedent(code), timeout=120, output_hook=hook)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert json.loads("".join(printed)) == [[1], "1", "1", "1"]
