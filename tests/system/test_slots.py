"""A server's cores are divided into whole cores that nobody has twice, and what is written is read again or refused."""

import stat

import machines
import pytest

from labkit.system import slots, turns
from labkit.system.errors import LabError
from labkit.system.machine import Machine, this_machine
from labkit.system.slots import Division


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Have a folder for the division that nothing else on this machine uses."""
    monkeypatch.setenv(slots.FOLDER_VARIABLE, str(tmp_path / "slots"))
    return tmp_path / "slots"


def cores_of(machine: Machine, cpus: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the whole cores that some CPUs are."""
    found = [core for core in machine.cores if set(core) & set(cpus)]
    assert sorted(cpu for core in found for cpu in core) == list(cpus)
    return found


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
        (machines.machine(64, quota=8), 40, 3, 2),
    ],
    ids=str,
)
def test_slots_are_whole_cores_that_nothing_else_has(machine, people, count, size):
    division = slots.divide(machine, people)
    assert (len(division.slots), division.cores) == (count, size)
    assert all(len(cores_of(machine, slot)) == size for slot in division.slots)
    assert len(cores_of(machine, division.editing)) >= size
    every = [*division.editing, *(cpu for slot in division.slots for cpu in slot)]
    assert sorted(every) == sorted(machine.cpus)


def test_a_slot_has_the_cores_of_one_numa_node():
    machine = machines.machine(24, smt=2, numa=2)
    for slot in slots.divide(machine, 40).slots:
        assert any(set(slot) <= set(node) for node in machine.numa)


def test_where_a_node_is_smaller_than_a_slot_it_has_cores_of_several():
    division = slots.divide(machines.machine(16, numa=16), 40)
    assert [len(slot) for slot in division.slots] == [4, 4, 4]


@pytest.mark.parametrize(
    ("cores", "people", "size"), [(1, 40, None), (4, 40, 3), (8, 0, None), (8, 40, 0)], ids=["one", "3", "0", "0 cores"]
)
def test_what_cannot_be_divided_is_one_line(cores, people, size):
    with pytest.raises(LabError) as refused:
        slots.divide(machines.machine(cores), people, size)
    assert "\n" not in str(refused.value)


def test_what_is_written_is_read_again(place):
    division = slots.divide(machines.machine(8, smt=2), 40)
    slots.write(division, place)
    assert slots.read() == division
    assert str(division) == "3 measuring slots of 2 cores each for 40 people, and 4 CPUs to edit on"
    slots.write(slots.divide(machines.machine(4), 40), place)
    assert slots.read() == slots.divide(machines.machine(4), 40)
    slots.remove(place)
    assert slots.read() is None
    assert not place.exists()
    slots.remove(place)


def test_who_is_not_its_owner_can_queue_up_and_change_nothing(place):
    slots.write(slots.divide(machines.machine(4), 40), place)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (place, *place.iterdir())}
    assert modes == {
        "slots": 0o755,
        slots.FILE: 0o644,
        slots.QUEUE: 0o1777,
        slots.DURATIONS: 0o666,
        slots.slot_file(0): 0o444,
    }


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '"slots"',
        "{}",
        '{"editing": [0], "slots": [], "cores": 1, "people": 4, "limit_s": 600}',
        '{"editing": [], "slots": [[1]], "cores": 1, "people": 4, "limit_s": 600}',
        '{"editing": [0], "slots": [[1], [1]], "cores": 1, "people": 4, "limit_s": 600}',
        '{"editing": [0], "slots": [["1"]], "cores": 1, "people": 4, "limit_s": 600}',
        '{"editing": [0], "slots": [1], "cores": 1, "people": 4, "limit_s": 600}',
        '{"editing": [0], "slots": [[1]], "cores": 0, "people": 4, "limit_s": 600}',
        '{"editing": [0], "slots": [[1]], "cores": 1, "people": 4, "limit_s": -1}',
        '{"editing": [0], "slots": [[1]], "cores": 1, "people": 4, "limit_s": "long"}',
        '{"editing": [0], "slots": [[-1]], "cores": 1, "people": 4, "limit_s": 600}',
        '{"editing": [0], "slots": [[1]], "cores": 1, "people": 4, "limit_s": NaN}',
        "\udcff",
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(place, content):
    slots.write(slots.divide(machines.machine(4), 40), place)
    (place / slots.FILE).write_text(content, errors="surrogateescape")
    with pytest.raises(LabError) as refused:
        slots.read()
    assert str(place / slots.FILE) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_machine_outside_of_a_slot_is_as_large_as_one(place):
    alone = this_machine()
    slots.write(Division(alone.cpus, (alone.cpus[:1],), 1, 40), place)
    shared = turns.this_share()
    assert (shared.usable_cores, shared.quota) == (1, 1.0)
    assert shared.cpus == alone.cpus
    assert this_machine().quota == alone.quota
    slots.remove(place)
    assert turns.this_share().quota == alone.quota


def test_a_kernel_makes_as_many_threads_as_a_slot_has_cores(place):
    variables = slots.variables(slots.divide(machines.machine(64), 40), place)
    assert variables[slots.FOLDER_VARIABLE] == str(place)
    assert variables["OMP_NUM_THREADS"] == variables["TF_NUM_INTRAOP_THREADS"] == "4"
