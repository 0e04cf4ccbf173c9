"""The partition of a shared server's cores: some for editing, the rest in measuring slots (`labkit.system.cores`)."""

from typing import NamedTuple

from labkit.system.cores import SLOTS_VARIABLE, Core
from labkit.system.errors import LabError
from labkit.system.machine import Machine
from labkit.system.words import plural


class Partition(NamedTuple):
    """CPUs for notebooks and all else that isn't measured; the CPUs of each measuring slot; its number of cores."""

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


def partition(machine: Machine, people: int) -> Partition:
    """Partition a machine's cores: a quarter for editing, but at least a slot's, and at most one slot per person.

    A slot has whole cores, of one NUMA node if possible: 4 if the machine has at least 16, as the labs start at most
    4 ranks for speed; 2 if it has at least 4; otherwise 1. Raise LabError if there are too few cores.
    """
    total = machine.usable_cores
    size = 4 if total >= 16 else 2 if total >= 4 else 1
    usable = machine.cores[:total]
    by_node = [core for node in machine.numa for core in usable if core[0] in node]
    rest = by_node[max(size, total // 4) :]
    nodes = [[core for core in rest if core[0] in node] for node in machine.numa]
    slots = [slot for node in nodes for slot in _chunks(node, size)] or _chunks(rest, size)
    if not slots:
        raise LabError(f"slots of {plural(size, 'core')} need at least {2 * size} cores, but only {total} can be used.")
    chosen = tuple(tuple(sorted(cpu for core in slot for cpu in core)) for slot in slots[:people])
    measuring = {cpu for slot in chosen for cpu in slot}
    return Partition(tuple(cpu for cpu in machine.cpus if cpu not in measuring), chosen, size)


def _chunks(cores: list[Core], size: int) -> list[list[Core]]:
    return [cores[start : start + size] for start in range(0, len(cores) - size + 1, size)]
