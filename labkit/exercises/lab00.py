"""Are the answers to lab 00 right: threads of a rank, a hello from each, a sum over all?"""

from labkit.exercises.answers import call, run_answer
from labkit.exercises.core import Lab
from labkit.exercises.verdicts import expect

lab = Lab("00")


@lab.exercise(
    1,
    hints=(
        "Share 8 cores among 2 ranks: how many has each? And 8 cores among 3, when a core can't be cut in two?",
        "`//` divides and rounds down. What must come out when there are more ranks than cores?",
        "max(1, cores // ranks)",
    ),
)
def threads(answer) -> None:
    """An even share, whole, at least one."""
    for cores, ranks, right in [(8, 2, 4), (8, 3, 2), (2, 1, 2), (2, 4, 1), (64, 16, 4)]:
        got = call(answer, cores, ranks)
        asked = f"threads_per_rank(cores={cores}, ranks={ranks})"
        expect(isinstance(got, int), f"{asked} to be a whole number; it is {got!r}")
        expect(got == right, f"{asked} to be {right}; it is {got}")


@lab.exercise(
    2,
    hints=(
        "The script knows `everybody`. Its rank is everybody.rank.",
        'print(f"hello from rank {everybody.rank} of {everybody.size}")',
    ),
)
def hello(answer) -> None:
    """One line a rank, with its own rank and the size, on 2 and on 3 ranks."""
    for size in (2, 3):
        run = run_answer(size, answer, timeout=60)
        for rank, lines in enumerate(run.lines):
            _says(lines, f"hello from rank {rank} of {size}", rank)


@lab.exercise(
    3,
    hints=(
        "Give everybody.allreduce this rank's own number. What does it return?",
        "total = everybody.allreduce(number)",
    ),
)
def total(answer) -> None:
    """Every rank prints the sum of 1 to size, on 2 and on 3 ranks."""
    for size in (2, 3):
        run = run_answer(size, answer, timeout=60)
        for rank, lines in enumerate(run.lines):
            _says(lines, f"total {size * (size + 1) // 2}", rank)


def _says(lines: tuple[str, ...], right: str, rank: int) -> None:
    """Decide on what a rank printed, in which MPI may have a word too."""
    said = [line.strip() for line in lines if line.split()[:1] == right.split()[:1]]
    expect(
        said == [right], f"rank {rank} to print the line '{right}', once; it printed: {' / '.join(lines) or 'nothing'}"
    )
