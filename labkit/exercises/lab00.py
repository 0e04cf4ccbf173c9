"""Checks for lab 00: threads per rank, a hello from each rank, a sum over all ranks."""

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.exercises.engine.answers import call, for_all, reports, run_answer
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import NotYet, expect, hinting
from labkit.exercises.engine.values import expect_equal, integer

lab = Lab("00")

PROBE = Path(__file__).with_name("lab00_ranks.py")
# Added to each number that rank 1 sends. It is even: with an odd one, n (n + 1) / 2 for a larger n could grow by a
# multiple of it too, as a sum does.
RAISE_BY = 100
RUN_LIMIT_S = 90.0  # for a run; a hang is reported sooner, with its line
MORE_RANKS_HINT = "The text says what to return when there are more ranks than cores."
FORMULA_HINT = "A formula based on the number of ranks, or on the largest number, is not the sum of what they send."


@lab.exercise(
    1,
    hints=(
        "Share 8 cores among 2 ranks: how many does each get? And 8 among 3, if a core can't be split?",
        "`//` divides and rounds down. What should it return when there are more ranks than cores?",
        "max(1, cores // ranks)",
    ),
)
def threads(answer: Callable[..., Any]) -> None:
    """Check for an even share: an integer, at least 1."""
    from hypothesis import strategies as st

    def decide(cores: int, ranks: int) -> None:
        label = f"threads_per_rank(cores={cores}, ranks={ranks})"
        with hinting(MORE_RANKS_HINT if ranks > cores else ""):
            threads = integer(call(answer, cores, ranks), label)
            expect_equal(threads, max(1, cores // ranks), label, rel=0, abs=0)

    for cores, ranks in [(8, 2), (8, 3), (2, 1), (2, 4), (64, 16)]:
        decide(cores, ranks)
    for_all(decide, examples=60, cores=st.integers(1, 300), ranks=st.integers(1, 300))


@lab.exercise(
    2,
    hints=(
        "The script defines `everybody`, whose .rank is this process's rank.",
        'print(f"hello from rank {everybody.rank} of {everybody.size}")',
    ),
)
def hello(answer: str) -> None:
    """Check for one line per rank, with its rank and the size, on 2 and on 3 ranks."""
    for size in (2, 3):
        run = run_answer(size, PROBE, answer, timeout=RUN_LIMIT_S)
        for rank, lines in enumerate(run.lines):
            _expect_line(lines, f"hello from rank {rank} of {size}", rank)


@lab.exercise(
    3,
    hints=(
        "Pass this rank's own number to everybody.allreduce. What does it return?",
        "total = everybody.allreduce(number)",
    ),
)
def total(answer: str) -> None:
    """Check that every rank prints the sum of 1 to size, on 1, 3 and 4 ranks, from the numbers that the ranks send."""
    for size in (3, 1):
        _check_total(answer, size)
    if _depends_on_number(answer):
        return
    _check_total(answer, 4)
    # It sends something other than `number`: raise whatever rank 1 sends.
    try:
        run = run_answer(4, PROBE, answer, RAISE_BY, timeout=RUN_LIMIT_S)
        rank_1 = reports(run)[1]
    except NotYet:  # it sends more than numbers to add, such as a rank, which must not be raised
        return
    expect(
        rank_1["sent"],
        "each rank to send its number to the others; rank 1 of 4 sends nothing, so no other rank knows it",
        hint=FORMULA_HINT,
    )
    if rank_1["unwatched"] or not rank_1["raised"]:
        return
    for rank in (0, 2, 3):
        text, increase = _total(run.lines[rank])
        expect(
            increase != 0 and increase % RAISE_BY == 0,
            f"every rank to add up the numbers that the ranks send; when those of rank 1 of 4 are {RAISE_BY} larger, "
            f"rank {rank} prints {text}, not 'total {10 + RAISE_BY}' or 10 plus another multiple of {RAISE_BY}",
            hint=FORMULA_HINT,
        )


def _depends_on_number(answer: str) -> bool:
    """Whether all four ranks print the right sum when rank 1's number is changed.

    A product, a formula or a hard-coded number would fail, however the ranks exchange their numbers.
    """
    text = Path(answer).read_text(encoding="utf-8")
    line = re.compile(r"^(number *= *)(.*)$", re.MULTILINE)
    on_rank_1 = "__import__('mpi4py.MPI').MPI.COMM_WORLD.rank == 1"
    changed = Path(answer).with_name(f"raised_{Path(answer).name}")
    changed.write_text(line.sub(rf"\g<1>{RAISE_BY} * ({on_rank_1}) + \g<2>", text), encoding="utf-8")
    try:
        _check_total(str(changed), 4, expected=10 + RAISE_BY)
    except NotYet:
        return False
    finally:
        changed.unlink()
    return True


def _check_total(answer: str, size: int, expected: int = 0) -> None:
    expected = expected or size * (size + 1) // 2
    run = run_answer(size, PROBE, answer, timeout=RUN_LIMIT_S)
    for rank, lines in enumerate(run.lines):  # a float prints `total 6.0`
        _expect_line([re.sub(r"^(total \d+)\.0+$", r"\1", line.rstrip()) for line in lines], f"total {expected}", rank)


def _total(lines: tuple[str, ...]) -> tuple[str, float]:
    """Return a rank's total as printed, and how much it exceeds 10, rounding aside."""
    for line in lines:
        if line.startswith("total"):
            with contextlib.suppress(ValueError, IndexError):
                return f"'{line.rstrip()}'", round(float(line.split()[1]) - 10, 6)
    return "no total", math.nan


def _expect_line(lines: Sequence[str], expected: str, rank: int) -> None:
    """Check a rank's output, which may also contain lines from MPI."""
    matches = [line.rstrip() for line in lines if re.match(expected.split()[0], line.strip(), re.IGNORECASE)]
    expect(
        matches == [expected],
        f"rank {rank} to print the line '{expected}' once; it printed: {' / '.join(filter(None, lines)) or 'nothing'}",
    )
