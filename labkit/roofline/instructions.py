"""Measure the peak speed of instructions: `python -m labkit.roofline.instructions ISA...`.

A core's peak is operations per instruction, times instructions per cycle, times the clock. The clock is documented
nowhere: it drops under wide instructions, and when all cores are busy. So the instructions are run, on values in
registers. The fastest for each dtype is printed as a line of JSON.
`labkit.roofline.peaks` runs this in a separate process, which dies if the CPU lacks an instruction.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from labkit.roofline import together
from labkit.system import compiler, lacks
from labkit.system.cores import usable_machine
from labkit.system.machine import Machine

SOURCE = Path(__file__).with_suffix(".c")
ROUND_S = 0.02  # the minimum: starting and stopping threads takes a hundredth of that


class Instruction(NamedTuple):
    """A function of `SOURCE`.

    Attributes
    ----------
    dtype : str
        The type of its operands.
    name : str
        Its name in the CPU's manual.
    operations : int
        Operations per repetition: a multiplication and an addition are two.
    needs, without : tuple of str
        The names that `Machine.isa` must contain, and must not contain.
    """

    dtype: str
    name: str
    operations: int
    needs: tuple[str, ...]
    without: tuple[str, ...] = ()


# Twelve or 16 per repetition, each on 8 or 16 sums of 1, 2 or 4 products; with tiles, four on 16×16 sums.
INSTRUCTIONS = {
    "float32_avx2": Instruction("float32", "AVX2 VFMADD", 12 * 2 * 8, ("AVX2",), ("AVX-512",)),
    "float32_avx512": Instruction("float32", "AVX-512 VFMADD", 16 * 2 * 16, ("AVX-512",)),
    "bfloat16_avx512": Instruction("bfloat16", "AVX-512 VDPBF16PS", 16 * 2 * 16 * 2, ("AVX-512", "BF16")),
    "bfloat16_amx": Instruction("bfloat16", "AMX TDPBF16PS", 4 * 2 * 16 * 16 * 32, ("AMX",)),
    "int8_avx": Instruction("int8", "AVX VPDPBUSD", 12 * 2 * 8 * 4, ("VNNI",), ("AVX-512",)),
    "int8_avx512": Instruction("int8", "AVX-512 VPDPBUSD", 16 * 2 * 16 * 4, ("AVX-512", "VNNI")),
    "int8_amx": Instruction("int8", "AMX TDPBSSD", 4 * 2 * 16 * 16 * 64, ("AMX",)),
}


def main(isa: Iterable[str]) -> None:
    """Measure, and print for each dtype the fastest instruction's name and speed, in 1e9 operations/s."""
    available, machine = {*isa}, usable_machine()
    fastest: dict[str, tuple[float, str]] = {}
    path = None if lacks.reason("compiler") else compiler.library(SOURCE)
    functions = ctypes.CDLL(str(path)) if path else None
    for symbol, instruction in INSTRUCTIONS.items() if functions else ():
        if available.issuperset(instruction.needs) and available.isdisjoint(instruction.without):
            function = getattr(functions, symbol)
            function.argtypes = [ctypes.c_int64]
            if giga_ops := speed(function, instruction.operations, machine):
                best = fastest.get(instruction.dtype, (0.0, ""))
                fastest[instruction.dtype] = max(best, (giga_ops, instruction.name))
    print(json.dumps({dtype: {"instruction": name, "speed": giga_ops} for dtype, (giga_ops, name) in fastest.items()}))


def speed(function: Callable[[int], int], operations: int, machine: Machine) -> float:
    """Return 1e9 operations/s on all usable cores together, the best of several rounds; 0 if it can't run.

    Parameters
    ----------
    function : callable
        Runs n repetitions without holding the GIL, and returns whether it could.
    operations : int
        Operations per repetition.
    machine : Machine
        The machine; a thread runs on each usable core.
    """
    repetitions, took = 1_000, 0.0
    while took < ROUND_S:
        repetitions, start = 2 * repetitions, time.perf_counter()
        if not function(repetitions):
            return 0.0
        took = time.perf_counter() - start
    team = together.Team(machine, lambda place: {"": lambda: function(repetitions)})
    seconds = min(team.seconds("") for _ in range(together.ROUNDS))
    return machine.usable_cores * repetitions * operations / seconds / 1e9


if __name__ == "__main__":
    main(sys.argv[1:])
