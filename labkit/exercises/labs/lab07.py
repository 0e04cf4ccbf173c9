"""Exercises of lab 07: a plan for several ranks, a distributed script, a test of such scripts, a network's rate."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.on_ranks import OnRanks
from labkit.exercises.engine.outcomes import expect
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import array_of_numbers, describe
from labkit.exercises.labs import lab07_ranks

EXERCISES: dict[int, Reference | OnRanks] = {}


def _shares(shard: Callable[..., Any], n: int, size: int) -> tuple[Any, ...]:
    """Return the lengths of all shares and how often each index is in them, which all right answers have in common."""
    shares = []
    for rank in range(size):
        share, what = shard(n, rank, size), f"rank {rank}'s share of {n} to be a list or an array of ints"
        array = array_of_numbers(share, what)
        is_list = array.ndim == 1 and (not len(array) or np.issubdtype(array.dtype, np.integer))
        expect(is_list and not isinstance(share, tuple), f"{what} that selects rows; it is {describe(share)}")
        shares.append(array.astype(int))
    indices = np.concatenate(shares)
    inside = indices[(indices >= 0) & (indices < n)]
    return [len(share) for share in shares], len(inside) - len(np.unique(inside)), len(indices) - len(inside)


EXERCISES[1] = Reference(
    cases=[(12, 1), (12, 4), (10, 4), (1_797, 7), (5, 5)],
    more=st.tuples(st.integers(1, 300), st.integers(1, 12)),
    use=_shares,
    case=lambda n, size: f"n = {n} and size = {size}",
    returns=(
        Result("lengths of the ranks' shares"),
        Result("number of indices that are repeated, on one rank or on two,"),
        Result("number of indices outside range(n)"),
    ),
    wrong={
        "every rank had all of them": {"np.arange(rank * share, (rank + 1) * share)": "np.arange(n)"},
        "every rank had the first share": {"rank * share, (rank + 1) * share": "share"},
        "the last rank had those left over": {
            "(rank + 1) * share)": "(rank + 1) * share + (rank == size - 1) * (n % size))"
        },
        "the first ranks had those left over": {
            "np.arange(rank * share, (rank + 1) * share)": "np.array_split(np.arange(n), size)[rank]"
        },
        "ranks were counted from 1": {"rank * share, (rank + 1) * share": "(rank - 1) * share, rank * share"},
        "n were divisible by size": {"share = n // size": "share = -(-n // size)"},
        "neighbours shared an index": {"(rank + 1) * share)": "(rank + 1) * share + 1)"},
    },
    also=[
        {"np.arange(rank * share, (rank + 1) * share)": "np.arange(rank, share * size, size)"},
        {"np.arange(rank * share, (rank + 1) * share)": "list(range(rank, share * size, size))"},
        {"np.arange(rank * share, (rank + 1) * share)": "np.random.default_rng(0).permutation(n)[rank::size][:share]"},
    ],
    hints=(
        "How many indices does each rank get, if all must get the same number? Use integer division.",
        "Rank r takes the r-th block of that length: from r * length to (r + 1) * length.",
        "share = n // size; return np.arange(rank * share, (rank + 1) * share)",
    ),
)

EXERCISES[2] = Reference(
    cases=[
        (0, 0.1, 4, 10), (10, 0.1, 4, 10), (5, 0.1, 4, 10), (500, 0.1, 4, 10), (3, 0.1, 1, 10), (0, 0.1, 4, 0),
        Case((25, 0.01, 8, 100), because="a quarter of the warm-up"), (3, 0.1, 4, 0),
    ],
    more=st.tuples(st.integers(0, 2_000), st.sampled_from((0.01, 0.1, 0.5)), st.integers(1, 64), st.integers(0, 1_000)),
    returns=(Result(format=".3f"),),
    wrong={
        "there were no warm-up": lambda step, base, size, warmup: base * size,
        "the rate didn't follow the size": lambda step, base, size, warmup: base,
        "the warm-up began at 0": {"base * (1 + (size - 1) * step / warmup)": "base * size * step / warmup"},
        "the warm-up ended at base * (size + 1)": {"size - 1": "size"},
        "the rate kept growing after the warm-up": lambda step, base, size, warmup: (
            base * (1 + (size - 1) * step / warmup) if warmup else base * size
        ),
        "the rate jumped at the end of the warm-up": {"base * (1 + (size - 1) * step / warmup)": "base"},
        "the rate were divided by the size": lambda step, base, size, warmup: base / size,
    },
    also=[lambda step, base, size, warmup: base + base * (size - 1) * (min(step / warmup, 1) if warmup else 1)],
    hints=(
        "Two cases: before `warmup`, and from then on.",
        "The line goes from base to base * size. After `step` steps it has covered step / warmup of that distance.",
        "base * (1 + (size - 1) * step / warmup), and base * size once step >= warmup, which also avoids 0 / 0.",
    ),
)  # fmt: skip

EXERCISES[3] = Reference(
    cases=[(8000, 64, 1), (8000, 64, 2), (8000, 64, 4), (100, 64, 2), (1000, 10, 3), (127, 64, 2)],
    more=st.tuples(st.integers(1, 5_000), st.integers(1, 200), st.integers(1, 16)),
    returns=(Result(format="d"),),
    wrong={
        "there were one rank": {"n // size // batch": "n // batch"},
        "the batch were a single digit": {"n // size // batch": "n // size"},
        "part of a batch counted": {"n // size // batch": "-(-(n // size) // batch)"},
        "the batch were divided among the ranks": {"n // size // batch": "n // size // (batch // size or 1)"},
        "all ranks' steps were counted": {"n // size // batch": "n // size // batch * size"},
    },
    also=[{"n // size // batch": "n // (size * batch)"}],
    hints=(
        "How many digits does one rank have? You worked it out in exercise 1.",
        "How many full batches fit into that share?",
        "return n // size // batch",
    ),
)

EXERCISES[4] = lab07_ranks.EXERCISES[4]
EXERCISES[5] = lab07_ranks.EXERCISES[5]

EXERCISES[6] = Reference(
    cases=[(1_000_000, 2, 0.1), (1_686_568, 2, 0.02), (1_686_568, 4, 0.02), (8, 3, 1.0)],
    more=st.tuples(st.integers(1, 10**9), st.integers(2, 512), st.floats(1e-3, 10)),
    returns=(Result(format=".1f"),),
    wrong={
        "a byte had one bit": {"8 * ": ""},
        "bits were divided by 8": {"8 * sent": "sent / 8"},
        "a rank sent all gradients once": {"2 * (ranks - 1) / ranks * n_bytes": "n_bytes"},
        "the ring had only its first half": {"2 * (ranks": "(ranks"},
        "a rank sent its share `ranks` times in each half": {"(ranks - 1) / ranks": "1"},
        "a rank sent whole gradients in each step": {" / ranks": ""},
        "sending and receiving shared the rate": {"8 * sent": "16 * sent"},
    },
    also=[lambda n_bytes, ranks, seconds: 16 * (n_bytes - n_bytes / ranks) / seconds],
    hints=(
        "How many bytes does a rank send? Its share is n_bytes / ranks, and it sends a share 2 * (ranks - 1) times.",
        "Half of a step is communication when sending these bytes takes `seconds`, as long as computing. A byte has 8 "
        "bits.",
        "return 8 * 2 * (ranks - 1) / ranks * n_bytes / seconds",
    ),
)
