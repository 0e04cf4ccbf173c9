"""The partition of a shared server's cores: some for editing, the rest in measuring slots (`labkit.system.cores`)."""

from typing import NamedTuple

from labkit.system.cores import SLOTS_VARIABLE
from labkit.system.errors import LabError
from labkit.system.machine import Machine
from labkit.system.words import plural


class Partition(NamedTuple):
    """The partition of a shared server's CPUs.

    Attributes
    ----------
    editing : tuple of int
        The CPUs for notebooks and everything else that isn't measured.
    slots : tuple of tuple of int
        The CPUs of each measuring slot: whole cores, in one NUMA node if it has enough.
    cores : int
        The number of physical cores in each slot.
    """

    editing: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]
    cores: int

    @property
    def variables(self) -> dict[str, str]:
        """The environment variable of students' servers that lists the slots."""
        return {SLOTS_VARIABLE: ":".join(",".join(map(str, slot)) for slot in self.slots)}

    def __str__(self) -> str:
        """Return it in one line."""
        slots = plural(len(self.slots), "measuring slot")
        return f"{slots} of {plural(self.cores, 'core')} each, and {plural(len(self.editing), 'CPU')} for editing"


def partition(machine: Machine, people: int, cores: int | None = None) -> Partition:
    """Partition a machine's cores: a quarter for editing, but at least as many as in a slot.

    Parameters
    ----------
    machine : Machine
        The server.
    people : int
        The number of people who share it; there are no more slots than that.
    cores : int, optional
        Cores per slot. By default 4 on 16 cores or more, the most ranks that the labs start for speed; 2 on 4 or
        more; else 1.

    Raises
    ------
    LabError
        If there are too few cores.
    """
    total = machine.usable_cores
    size = cores or (4 if total >= 16 else 2 if total >= 4 else 1)
    n_editing = max(size, total // 4)
    usable = machine.cores[:total]
    by_node = [core for node in machine.numa for core in usable if core[0] in node]
    rest = by_node[n_editing:]
    nodes = [[core for core in rest if core[0] in node] for node in machine.numa]
    slots = [slot for node in nodes for slot in _chunks(node, size)] or _chunks(rest, size)
    if not slots:
        raise LabError(f"{plural(total, 'core')} are too few for slots of {size}: at least {2 * size} are needed.")
    chosen = tuple(tuple(sorted(cpu for core in slot for cpu in core)) for slot in slots[:people])
    measuring = {cpu for slot in chosen for cpu in slot}
    return Partition(tuple(cpu for cpu in machine.cpus if cpu not in measuring), chosen, size)


def _chunks(cores: list[tuple[int, ...]], size: int) -> list[list[tuple[int, ...]]]:
    return [cores[start : start + size] for start in range(0, len(cores) - size + 1, size)]
