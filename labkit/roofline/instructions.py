"""The instructions' peak: how fast they run alone, `python -m labkit.roofline.instructions ISA...`.

A core's peak is what one instruction computes, times how many of them it begins in a cycle, times its clock. The clock
stands nowhere: it falls under wide instructions, and when all cores are busy. So the instructions run, on numbers that
stay in registers. It prints the fastest of each kind as a line of JSON.
`labkit.roofline.peaks` runs it, since a CPU that lacks an instruction ends the process that tries it.
"""

import ctypes
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from labkit.roofline import together
from labkit.system import preload
from labkit.system.lease import usable_machine
from labkit.system.machine import Machine

SOURCE = Path(__file__).with_suffix(".c")
ROUND_S = 0.02  # at least: starting and stopping threads takes a hundredth of that


class Instruction(NamedTuple):
    """A function of `SOURCE`.

    Attributes
    ----------
    kind : str
        Of its numbers.
    name : str
        What the CPU's manual calls it.
    operations : int
        In a repetition: a multiplication and an addition are two.
    needs, without : tuple of str
        Which names of `Machine.isa` must be there, and which not.
    """

    kind: str
    name: str
    operations: int
    needs: tuple[str, ...]
    without: tuple[str, ...] = ()


# Twelve of them in a repetition, on 8 or 16 sums at a time, of 1, 2 or 4 products each; of tiles, four on 16×16 sums.
INSTRUCTIONS = {
    "float32_avx2": Instruction("float32", "AVX2 VFMADD", 12 * 2 * 8, ("AVX2",), ("AVX-512",)),
    "float32_avx512": Instruction("float32", "AVX-512 VFMADD", 12 * 2 * 16, ("AVX-512",)),
    "bfloat16_avx512": Instruction("bfloat16", "AVX-512 VDPBF16PS", 12 * 2 * 16 * 2, ("AVX-512", "BF16")),
    "bfloat16_amx": Instruction("bfloat16", "AMX TDPBF16PS", 4 * 2 * 16 * 16 * 32, ("AMX",)),
    "int8_avx": Instruction("int8", "AVX VPDPBUSD", 12 * 2 * 8 * 4, ("VNNI",), ("AVX-512",)),
    "int8_avx512": Instruction("int8", "AVX-512 VPDPBUSD", 12 * 2 * 16 * 4, ("AVX-512", "VNNI")),
    "int8_amx": Instruction("int8", "AMX TDPBSSD", 4 * 2 * 16 * 16 * 64, ("AMX",)),
}


def main(isa: Iterable[str]) -> None:
    """Measure, and print: by kind, the name of the fastest instruction and its 1e9 operations a second."""
    own, machine = {*isa}, usable_machine()
    fastest: dict[str, tuple[float, str]] = {}
    with tempfile.TemporaryDirectory() as spare:
        path = preload.library(SOURCE, Path(spare))
        functions = ctypes.CDLL(str(path)) if path else None
    for name, one in INSTRUCTIONS.items() if functions else ():
        if own.issuperset(one.needs) and own.isdisjoint(one.without):
            function = getattr(functions, name)
            function.argtypes = [ctypes.c_int64]
            if found := speed(function, one.operations, machine):
                fastest[one.kind] = max(fastest.get(one.kind, (0.0, "")), (found, one.name))
    print(json.dumps({kind: {"instruction": name, "speed": found} for kind, (found, name) in fastest.items()}))


def speed(function: Callable[[int], int], operations: int, machine: Machine) -> float:
    """Return 1e9 operations a second on all usable cores together, the best of several rounds; 0 if it can't run.

    Parameters
    ----------
    function : callable
        Runs so many repetitions, without Python's lock, and returns whether it could.
    operations : int
        In one repetition.
    machine : Machine
        A thread runs on each of its usable cores.
    """
    repetitions, took = 1_000, 0.0
    while took < ROUND_S:
        repetitions, start = 2 * repetitions, time.perf_counter()
        if not function(repetitions):
            return 0.0
        took = time.perf_counter() - start
    seconds = min(together.Team(machine, lambda place: {"": lambda: function(repetitions)}).seconds()[""])
    return machine.usable_cores * repetitions * operations / seconds / 1e9


if __name__ == "__main__":
    main(sys.argv[1:])
