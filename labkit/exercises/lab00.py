"""Checks of lab 00: threads per rank, a hello from each rank, a sum over all ranks."""

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.exercises.answers import call, for_all, reports, run_answer
from labkit.exercises.core import Lab
from labkit.exercises.outcomes import NotYet, expect, hinting
from labkit.exercises.values import same, whole

lab = Lab("00")

PROBE = Path(__file__).with_name("lab00_ranks.py")
# What rank 1 adds to each number that it sends. It is even: by an odd one, n (n + 1) / 2 of a larger n can grow by a
# multiple of it too, as a sum does.
LOUDER = 100
RUN_LIMIT_S = 90.0  # for a run; a hang is reported before, by its line
MORE_RANKS_HINT = "The text says what to return when there are more ranks than cores."
FORMULA_HINT = "A formula based on the number of ranks, or on the largest number, is not the sum of what they send."


@lab.exercise(
    1,
    hints=(
        "Share 8 cores among 2 ranks: how many does each get? And 8 among 3, when a core can't be cut in two?",
        "`//` divides and rounds down. What should it return when there are more ranks than cores?",
        "max(1, cores // ranks)",
    ),
)
def threads(answer: Callable[..., Any]) -> None:
    """An even share, an integer, at least one."""
    from hypothesis import strategies as st

    def decide(cores: int, ranks: int) -> None:
        called = f"threads_per_rank(cores={cores}, ranks={ranks})"
        with hinting(MORE_RANKS_HINT if ranks > cores else ""):
            got = whole(call(answer, cores, ranks), called)
            same(got, max(1, cores // ranks), called, rel=0, abs=0)

    for cores, ranks in [(8, 2), (8, 3), (2, 1), (2, 4), (64, 16)]:
        decide(cores, ranks)
    for_all(decide, examples=60, cores=st.integers(1, 300), ranks=st.integers(1, 300))


@lab.exercise(
    2,
    hints=(
        "The script knows `everybody`. Its rank is everybody.rank.",
        'print(f"hello from rank {everybody.rank} of {everybody.size}")',
    ),
)
def hello(answer: str) -> None:
    """One line per rank, with its own rank and the size, on 2 and on 3 ranks."""
    for size in (2, 3):
        run = run_answer(size, PROBE, answer, timeout=RUN_LIMIT_S)
        for rank, lines in enumerate(run.lines):
            _says(lines, f"hello from rank {rank} of {size}", rank)


@lab.exercise(
    3,
    hints=(
        "Pass this rank's own number to everybody.allreduce. What does it return?",
        "total = everybody.allreduce(number)",
    ),
)
def total(answer: str) -> None:
    """Every rank prints the sum of 1 to size, on 1, 3 and 4 ranks, and computes it from what the ranks send."""
    for size in (3, 1):
        _adds_up(answer, size)
    if _follows_the_number(answer):
        return
    _adds_up(answer, 4)
    # It sends something else than `number`: what rank 1 sends is made larger, whatever that is.
    try:
        run = run_answer(4, PROBE, answer, LOUDER, timeout=RUN_LIMIT_S)
        rank_1 = reports(run)[1]
    except NotYet:  # it sends more than numbers to be added, such as a rank, and larger ones are wrong
        return
    expect(
        rank_1["sent"],
        "each rank to send its number to the others; rank 1 of 4 sends nothing, so no other rank knows it",
        hint=FORMULA_HINT,
    )
    if rank_1["unwatched"] or not rank_1["louder"]:
        return
    for rank in (0, 2, 3):
        printed, more = _total(run.lines[rank])
        expect(
            more != 0 and more % LOUDER == 0,
            f"every rank to add up what the ranks send; when the numbers that rank 1 of 4 sends are {LOUDER} larger, "
            f"rank {rank} prints {printed}: not 'total {10 + LOUDER}', nor 10 plus another multiple of {LOUDER}",
            hint=FORMULA_HINT,
        )


def _follows_the_number(answer: str) -> bool:
    """Whether all of four ranks print the right sum when rank 1's number is another one.

    A product, a formula or a number written in the script would fail, however the ranks exchange their numbers.
    """
    text = Path(answer).read_text(encoding="utf-8")
    line = re.compile(r"^(number *= *)(.*)$", re.MULTILINE)
    on_rank_1 = "__import__('mpi4py.MPI').MPI.COMM_WORLD.rank == 1"
    changed = Path(answer).with_name(f"louder_{Path(answer).name}")
    changed.write_text(line.sub(rf"\g<1>{LOUDER} * ({on_rank_1}) + \g<2>", text), encoding="utf-8")
    try:
        _adds_up(str(changed), 4, right=10 + LOUDER)
    except NotYet:
        return False
    finally:
        changed.unlink()
    return True


def _adds_up(answer: str, size: int, right: int = 0) -> None:
    right = right or size * (size + 1) // 2
    run = run_answer(size, PROBE, answer, timeout=RUN_LIMIT_S)
    for rank, lines in enumerate(run.lines):  # of floats it is `total 6.0`
        _says([re.sub(r"^(total \d+)\.0+$", r"\1", line.rstrip()) for line in lines], f"total {right}", rank)


def _total(lines: tuple[str, ...]) -> tuple[str, float]:
    """Return a rank's total as it printed it, and by how much it is more than 10; rounding doesn't count."""
    for line in lines:
        if line.startswith("total"):
            with contextlib.suppress(ValueError, IndexError):
                return f"'{line.rstrip()}'", round(float(line.split()[1]) - 10, 6)
    return "no total", math.nan


def _says(lines: Sequence[str], right: str, rank: int) -> None:
    """Decide on what a rank printed; MPI may have printed something too."""
    found = [line.rstrip() for line in lines if re.match(right.split()[0], line.strip(), re.IGNORECASE)]
    expect(
        found == [right],
        f"rank {rank} to print the line '{right}', once; it printed: {' / '.join(filter(None, lines)) or 'nothing'}",
    )
