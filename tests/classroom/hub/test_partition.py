"""A server's cores are partitioned into whole cores for editing and measuring slots."""

import machines
import pytest

from labkit.system import cores
from labkit.system.errors import LabError
from labkit_classroom.hub.partition import partition


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
    parts = partition(machine, people)
    assert (len(parts.slots), parts.cores) == (count, size)
    for cpus in (*parts.slots, parts.editing):
        whole = [core for core in machine.cores if set(core) & set(cpus)]
        assert sorted(cpu for core in whole for cpu in core) == sorted(cpus)
        assert len(whole) >= size
        assert cpus == parts.editing or len(whole) == size
    assert sorted([*parts.editing, *(cpu for slot in parts.slots for cpu in slot)]) == sorted(machine.cpus)


def test_a_slots_cores_are_in_one_numa_node():
    machine = machines.machine(24, smt=2, numa=2)
    for slot in partition(machine, 40).slots:
        assert any(set(slot) <= set(node) for node in machine.numa)


def test_too_few_cores_are_a_one_line_error():
    with pytest.raises(LabError, match="at least 2 cores"):
        partition(machines.machine(1), 40)


def test_students_servers_know_the_slots(monkeypatch):
    parts = partition(machines.machine(8, smt=2), 40)
    assert str(parts) == "3 measuring slots of 2 cores each, and 4 CPUs for editing"
    monkeypatch.setenv(cores.SLOTS_VARIABLE, parts.variables[cores.SLOTS_VARIABLE])
    assert cores.slots() == [set(slot) for slot in parts.slots]
