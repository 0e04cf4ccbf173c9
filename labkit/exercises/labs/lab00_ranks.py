"""Lab 00's exercise on ranks, in a module that ranks import quickly: one matmul that all ranks share."""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from labkit.exercises.engine.on_ranks import Case, OnRanks, Saw, Script
from labkit.exercises.engine.outcomes import refuse
from labkit.system.words import plural

EXERCISES: dict[int, OnRanks] = {}

M, N = 2, 3  # rows and columns of the product
WORLD_HINT = "It was right on 4 ranks. Does it use MPI.COMM_WORLD, or a fixed number of ranks? `ranks` may have fewer."


def random_parts(n: int) -> Iterator[Case]:
    """Return cases in which each rank has some columns of a, and the same rows of b; integers, so sums are exact."""
    random = Random(n)
    for _ in range(3):
        widths = [random.randint(1, 4) for _ in range(n)]
        parts = [
            tuple(np.array([[float(random.randint(1, 9)) for _ in range(k)] for _ in range(m)]) for m, k in shapes)
            for shapes in (((M, width), (width, N)) for width in widths)
        ]
        text = f"{plural(n, 'rank')} with {', '.join(map(str, widths))} column(s) of the first matrix"
        yield Case(text, parts, hint=WORLD_HINT * (n < 4))


def all_get_the_product(case: Case, seen: Sequence[Saw]) -> None:
    """Every rank returns the product of the whole matrices."""
    own = [a @ b for a, b in case.arguments]
    right = sum(own[1:], own[0])
    for saw in seen:
        what = f"rank {saw.rank}'s product for {case.text} to be {right.tolist()}"
        if saw.result is None:
            refuse(f"{what}; it is None. Does the function return it on every rank? `reduce` gives it to one rank only")
        try:
            result = np.asarray(saw.result, float)
        except (TypeError, ValueError):
            refuse(f"{what}; it is of type {type(saw.result).__name__}")
        if result.shape != right.shape:
            why = ". These are the ranks' products, still to be added up" * (result.shape == (len(own), M, N))
            why += ". Adding up lists joins them: use arrays" * (result.shape == (len(own) * M, N) != (M, N))
            refuse(f"{what}; it has the shape {result.shape}{why}")
        if not np.allclose(result, right):
            refuse(f"{what}; it is {result.tolist()}{_why(result, case, own, saw.rank)}")


def _why(result: np.ndarray, case: Case, own: list[np.ndarray], rank: int) -> str:
    """Return the likely cause of a wrong product."""
    right = sum(own[1:], own[0])
    causes = {
        "It is only this rank's part": own[rank],
        "It is the average of the parts": right / len(own),
        "It lacks this rank's part": right - own[rank],
    }
    return next((f". {why}" for why, value in causes.items() if np.allclose(result, value)), "")


EXERCISES[3] = OnRanks(
    "product",
    parameters=("a", "b"),
    cases=random_parts,
    invariants=(all_get_the_product,),
    hints=(
        "Each result of the whole product is a sum. Which of its terms can a rank compute from its own parts?",
        "`a @ b` has this rank's terms of every result. The others have the rest: add up these matrices over all "
        "ranks, with a call that every rank makes.",
        "return ranks.allreduce(a @ b)",
    ),
    wrong=tuple(
        (all_get_the_product, Script(before="ranks.allreduce(a @ b)", after=after))
        for after in (
            "a @ b", "ranks.reduce(a @ b)", "ranks.allreduce(a @ b) / ranks.size", "ranks.allgather(a @ b)",
            "np.max(ranks.allgather(a @ b), 0)", "ranks.allreduce(a @ b) - a @ b", "ranks.scan(a @ b)",
            "ranks.bcast(a @ b)", "ranks.allreduce((a @ b).tolist())", "str(ranks.allreduce(a @ b))",
        )
    ),
    right=(
        *(
            Script(before="ranks.allreduce(a @ b)", after=after)
            for after in (
                "sum(ranks.allgather(a @ b))", "ranks.allreduce(a @ b).tolist()",
                "ranks.bcast(sum(ranks.gather(a @ b) or []))",
                "np.hstack(ranks.allgather(a)) @ np.vstack(ranks.allgather(b))",
            )
        ),
        Script(before="    return ranks.allreduce(a @ b)", after="""\
    everyone = np.empty((len(a), len(b[0])))
    ranks.Allreduce(a @ b, everyone)
    return everyone"""),
    ),
)  # fmt: skip
