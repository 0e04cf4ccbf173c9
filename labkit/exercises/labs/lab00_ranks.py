"""Lab 00's exercise on ranks, in a module that ranks import quickly: a sum over all ranks."""

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from labkit.exercises.engine.on_ranks import Case, OnRanks, Saw, Script
from labkit.exercises.engine.outcomes import refuse
from labkit.exercises.engine.values import equal, number
from labkit.system.words import plural

EXERCISES: dict[int, OnRanks] = {}

N_CASES = 3
WORLD_HINT = "It was right on 4 ranks. Does it use MPI.COMM_WORLD, or a fixed number of ranks? `ranks` may have fewer."


def random_numbers(n: int) -> Iterator[Case]:
    """Return cases in which each rank has another number, a multiple of 1/2, so that sums are exact."""
    random = Random(n)
    for _ in range(N_CASES):
        numbers = [value / 2 for value in random.sample(range(-39, 40, 2), n)]
        text = f"{plural(n, 'rank')} with {', '.join(f'{value:g}' for value in numbers)}"
        yield Case(text, [(value,) for value in numbers], hint=WORLD_HINT * (n < 4))


def all_get_the_sum(case: Case, seen: Sequence[Saw]) -> None:
    """Every rank returns the sum of all numbers."""
    numbers = [value for (value,) in case.arguments]
    for saw in seen:
        what, right = f"rank {saw.rank}'s total for {case.text}", math.fsum(numbers)
        if saw.result is None:
            refuse(f"{what} to be {right:g}; it is None{_why(None, numbers, saw.rank)}")
        if not equal(number(saw.result, what), right):
            refuse(f"{what} to be {right:g}; it is {float(saw.result):g}{_why(saw.result, numbers, saw.rank)}")


def _why(result: Any, numbers: list[float], rank: int) -> str:
    """Return the likely cause of a wrong total."""
    causes = {
        "It is only this rank's own number": numbers[rank],
        "It is the average": math.fsum(numbers) / len(numbers),
        "It is the product": math.prod(numbers),
        "It is the largest number": max(numbers),
        "It is the smallest number": min(numbers),
        "It lacks this rank's own number": math.fsum(numbers) - numbers[rank],
        "It is the sum up to this rank only": math.fsum(numbers[: rank + 1]),
        "It is the sum of `ranks.rank`, not of the numbers": sum(range(len(numbers))),
        "It is 1 + 2 + … + n, not the sum of the numbers": sum(range(len(numbers) + 1)),
    }
    if result is None:
        return ". Does the function return the sum, on every rank? `reduce` gives it to one rank only"
    return next((f". {why}" for why, value in causes.items() if equal(result, value)), "")


EXERCISES[3] = OnRanks(
    "total",
    parameters=("number",),
    cases=random_numbers,
    invariants=(all_get_the_sum,),
    hints=(
        "No rank knows the numbers of the others, so they have to communicate. Which of `ranks`' methods adds up?",
        "`ranks.allreduce(number)` must be called by every rank, and it returns the sum on every rank.",
        "return ranks.allreduce(number)",
    ),
    wrong=tuple(
        (all_get_the_sum, Script(before="ranks.allreduce(number)", after=after))
        for after in (
            "number",
            "ranks.reduce(number)",
            "ranks.allreduce(number) / ranks.size",
            "__import__('math').prod(ranks.allgather(number))",
            "max(ranks.allgather(number))",
            "ranks.allreduce(ranks.rank)",
            "ranks.size * (ranks.size + 1) // 2",
            "sum(ranks.allgather(number)) - number",
            "ranks.scan(number)",
            "ranks.allgather(number)",
        )
    ),
    right=(
        Script(before="ranks.allreduce(number)", after="sum(ranks.allgather(number))"),
        Script(before="ranks.allreduce(number)", after="ranks.bcast(sum(ranks.gather(number) or []))"),
        Script(before="ranks.allreduce(number)", after="ranks.bcast(ranks.scan(number), root=ranks.size - 1)"),
        Script(before="    return ranks.allreduce(number)", after="""\
    import numpy as np

    mine, everyone = np.array([number]), np.empty(1)
    ranks.Allreduce(mine, everyone)
    return everyone[0]"""),
        Script(before="    return ranks.allreduce(number)", after="""\
    sums = given = number
    for _ in range(ranks.size - 1):
        given = ranks.sendrecv(given, (ranks.rank + 1) % ranks.size)
        sums += given
    return sums"""),
    ),
)  # fmt: skip
