"""A measuring slot runs one measurement at a time, however that ends; a server's cores are partitioned into slots."""

import itertools
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import machines
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from labkit.system import kernels, lease, load, locks, processes
from labkit.system.errors import LabError
from labkit.system.lease import Partition
from labkit.system.machine import this_machine

ALL_CPUS = os.sched_getaffinity(0)
SLOT = {min(ALL_CPUS)}
TIMEOUT_S = 30
HOLDER = """
import os, sys, time
from labkit.system import lease
with lease.take():
    print(time.monotonic(), flush=True)
    time.sleep(float(sys.argv[1]))
    print(time.monotonic(), flush=True)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Partition this machine into one slot of one CPU; return the folder."""
    monkeypatch.setenv(lease.FOLDER_VARIABLE, str(tmp_path / "slots"))
    lease.create(Partition(tuple(ALL_CPUS), (tuple(SLOT),), 1), tmp_path / "slots")
    return tmp_path / "slots"


@pytest.fixture
def hold(folder):
    """Start processes that hold a slot for some seconds."""
    started = []

    def start(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, str(seconds)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for holder in started:
        holder.kill()
        holder.communicate()


def is_free(folder: Path) -> bool:
    return not any(locks.is_locked(file) for file in folder.iterdir())


def test_measurements_of_several_processes_never_overlap(hold):
    outputs = [holder.communicate(timeout=TIMEOUT_S) for holder in [hold(0.1) for _ in range(4)]]
    intervals = sorted(tuple(map(float, out.split())) for out, _ in outputs)
    assert all(left <= entered for (_, left), (entered, _) in itertools.pairwise(intervals))
    assert any(err.startswith("Waiting for 1 measuring slot, ") and "Waited" in err for _, err in outputs)


def test_a_killed_holder_frees_its_slot(hold, folder):
    holder = hold(1000)
    holder.stdout.readline()
    assert not is_free(folder)
    holder.kill()
    assert processes.wait_until(lambda: is_free(folder), TIMEOUT_S)


def test_waiting_ends_with_an_error(hold, monkeypatch):
    monkeypatch.setattr(lease, "WAIT_LIMIT_S", 0.1)
    hold(1000).stdout.readline()
    with pytest.raises(LabError, match="no measuring slot was free"), lease.take():
        pass
    assert os.sched_getaffinity(0) == ALL_CPUS


def test_threads_and_children_move_to_the_slots_cores_and_back(folder):
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, daemon=True) for _ in range(2)]
    threads[0].start()
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as child:
        with lease.take():
            threads[1].start()
            pids = [child.pid, os.getpid(), *(thread.native_id for thread in threads)]
            assert [os.sched_getaffinity(pid) for pid in pids] == [SLOT] * 4
            assert not is_free(folder)
        assert [os.sched_getaffinity(pid) for pid in pids] == [ALL_CPUS] * 4
        child.kill()
    assert is_free(folder)
    over.set()


def test_other_processes_of_the_measurement_move_too(folder):
    orphan = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], check=True, capture_output=True, text=True
    )
    pid = int(orphan.stdout)
    with lease.take():
        assert os.sched_getaffinity(pid) == ALL_CPUS
    with load.watch(also=[pid], show=False):
        assert os.sched_getaffinity(pid) == SLOT
    assert os.sched_getaffinity(pid) == ALL_CPUS
    os.kill(pid, signal.SIGKILL)


def test_children_of_a_holder_use_its_lease(folder):
    code = "from labkit.system import lease\nwith lease.take(): print(lease.is_held())"
    with lease.take():
        inner = processes.run([sys.executable, "-c", code], timeout=TIMEOUT_S)
        assert not is_free(folder)
    assert inner.lines == ("True",)
    assert not lease.is_held()


def test_an_interrupt_releases_the_slot(folder):
    with pytest.raises(KeyboardInterrupt), lease.take():
        signal.raise_signal(signal.SIGINT)
    assert is_free(folder)
    assert os.sched_getaffinity(0) == ALL_CPUS


def test_an_unpartitioned_machine_has_no_leases(monkeypatch, tmp_path):
    monkeypatch.delenv(lease.FOLDER_VARIABLE, raising=False)
    with lease.take():
        assert not lease.is_held()
    monkeypatch.setenv(lease.FOLDER_VARIABLE, str(tmp_path / "gone"))
    with lease.take():
        assert not lease.is_held()


def test_other_files_in_the_folder_and_unusable_cpus_are_one_line_errors(folder):
    (folder / "notes").touch()
    with pytest.raises(LabError, match=r"unusable.*notes"), load.watch():
        pass
    for file in folder.iterdir():
        file.unlink()
    (folder / str(max(ALL_CPUS) + 4096)).touch()
    with pytest.raises(LabError, match="CPUAffinity="), lease.take():
        pass
    assert is_free(folder)
    assert os.sched_getaffinity(0) == ALL_CPUS


def test_outside_a_lease_the_usable_machine_is_as_large_as_a_slot(folder):
    alone, shared = this_machine(), lease.usable_machine()
    assert (shared.usable_cores, shared.quota, shared.cpus) == (1, 1.0, alone.cpus)
    with lease.take():
        assert set(lease.usable_machine().cpus) == SLOT


# Partitioning a machine


@pytest.mark.parametrize(
    ("machine", "people", "count", "size"),
    [
        (machines.machine(2), 40, 1, 1),
        (machines.machine(4), 40, 1, 2),
        (machines.machine(8, smt=2), 40, 3, 2),
        (machines.machine(16, smt=2, numa=2), 40, 3, 4),
        (machines.machine(64, smt=2, numa=2), 40, 12, 4),
        (machines.machine(64, smt=2, numa=2), 3, 3, 4),
        (machines.machine(64, numa=16), 40, 12, 4),
        (machines.machine(16, numa=16), 40, 3, 4),
        (machines.machine(64, quota=8), 40, 3, 2),
    ],
    ids=str,
)
def test_slots_are_whole_cores_used_by_nothing_else(machine, people, count, size):
    partition = lease.partition(machine, people)
    assert (len(partition.slots), partition.cores) == (count, size)
    for cpus in (*partition.slots, partition.editing):
        whole = [core for core in machine.cores if set(core) & set(cpus)]
        assert sorted(cpu for core in whole for cpu in core) == sorted(cpus)
        assert len(whole) >= size
        assert cpus == partition.editing or len(whole) == size
    assert sorted([*partition.editing, *(cpu for slot in partition.slots for cpu in slot)]) == sorted(machine.cpus)


def test_a_slots_cores_are_in_one_numa_node():
    machine = machines.machine(24, smt=2, numa=2)
    for slot in lease.partition(machine, 40).slots:
        assert any(set(slot) <= set(node) for node in machine.numa)


def test_too_few_cores_are_a_one_line_error():
    with pytest.raises(LabError, match="2 are needed"):
        lease.partition(machines.machine(1), 40)


def test_only_the_owner_can_change_the_slots_but_everyone_can_lock_them(tmp_path, monkeypatch):
    partition = lease.partition(machines.machine(8, smt=2), 40)
    assert str(partition) == "3 measuring slots of 2 cores each, and 4 CPUs for editing"
    lease.create(partition, tmp_path / "slots")
    monkeypatch.setenv(lease.FOLDER_VARIABLE, str(tmp_path / "slots"))
    assert sorted(lease.slots().values(), key=min) == [set(slot) for slot in partition.slots]
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "slots").iterdir()} == {0o444}
    assert stat.S_IMODE((tmp_path / "slots").stat().st_mode) == 0o755


def test_a_kernel_creates_one_thread_per_core_of_a_slot_and_reports_no_cleared_variable(folder):
    specs = KernelSpecManager(kernel_dirs=[str(kernels.SPECS)], ensure_native_kernel=False)
    manager = KernelManager(kernel_name=kernels.KERNEL["name"], kernel_spec_manager=specs)
    code = """
        import json, os, numpy, threadpoolctl
        names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "LAB_CLEARED")
        pools = [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]
        print(json.dumps([pools, *map(os.environ.get, names)]))
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
    assert json.loads("".join(printed)) == [[1], "1", "1", "1", ""]
