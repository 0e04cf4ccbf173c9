"""Exercises of lab 06: a parameter server, a ring, recursive halving, and a layer divided over ranks."""

from collections.abc import Callable, Sequence
from typing import Any

from labkit.exercises.engine.on_ranks import OnRanks
from labkit.exercises.engine.outcomes import refuse
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import describe, integer, number, parts
from labkit.exercises.labs import lab06_ranks

EXERCISES: dict[int, Reference | OnRanks] = {}
EXERCISES[1] = lab06_ranks.EXERCISES[1]
EXERCISES[2] = lab06_ranks.EXERCISES[2]


def _rounds(halving: Callable[..., Any], n: int, n_bytes: float) -> tuple[int, Any, Any]:
    """Return the number of rounds, and each rank's partner and bytes in each of them."""
    rounds, label = halving(n, n_bytes), f"halving({n}, {n_bytes})"
    if not isinstance(rounds, Sequence) or isinstance(rounds, str):
        refuse(f"{label} to return a list of rounds; it returned {describe(rounds)}")
    partners, sizes = [], []
    for place, messages in enumerate(rounds):
        what = f"round {place} of {label}"
        if not isinstance(messages, Sequence) or isinstance(messages, str):
            refuse(f"{what} to be a list of messages; it is {describe(messages)}")
        found = {}
        for message in messages:
            source, dest, size = parts(message, 3, f"each message in {what} to be (source, dest, bytes)")
            ends = integer(source, f"a source in {what}"), integer(dest, f"a destination in {what}")
            if not all(0 <= end < n for end in ends):
                refuse(f"ranks from 0 to {n - 1} in {what}; a message goes from {ends[0]} to {ends[1]}")
            if ends[0] in found:
                refuse(f"each rank to send one message in {what}; rank {ends[0]} sends several")
            found[ends[0]] = ends[1], number(size, f"bytes in {what}")
        if missing := set(range(n)) - set(found):
            refuse(f"each rank to send a message in {what}; rank {min(missing)} sends none")
        partners.append([found[rank][0] for rank in range(n)])
        sizes.append([found[rank][1] for rank in range(n)])
    return len(rounds), partners, sizes


EXERCISES[3] = Reference(
    cases=[(2, 8.0), (4, 1_000), (8, 4_000_000), (1, 100), Case((64, 256.0), "halving(64, 256.0)"), (16, 4_000)],
    use=_rounds,
    returns=(
        Result("number of rounds", hint="The distance is 1, 2, 4 and so on. At which one is there no partner left?"),
        Result(
            "partners of ranks 0, 1, … in each round", rel=0, abs=0, hint="Near first: rank ^ 1, rank ^ 2, rank ^ 4."
        ),
        Result(
            "bytes that ranks 0, 1, … send in each round", hint="S/2, then half of that. Do you halve before round 0?"
        ),
    ),
    wrong={
        "each round sent the whole gradient": {"n_bytes = n_bytes / 2": "pass"},
        "the first round sent the whole gradient": {
            "        n_bytes = n_bytes / 2\n": "",
            "distance *= 2": "distance *= 2\n        n_bytes = n_bytes / 2",
        },
        "each round sent a chunk, an n-th of the gradient": {
            "n_bytes = n_bytes / 2": "pass",
            "distance, n_bytes)": "distance, n_bytes / n)",
        },
        "the farthest partner came first": {"rank ^ distance": "rank ^ (n // 2 // distance)"},
        "all rounds had the nearest partner": {"rank ^ distance": "rank ^ 1"},
        "each rank sent to the one `distance` to the right": {"rank ^ distance": "(rank + distance) % n"},
        "there were one round too many": {"distance < n": "distance <= n", "rank ^ distance": "rank ^ distance % n"},
        "the last round were missing": {"distance < n": "2 * distance < n"},
        "the distance grew by 1 in each round": {
            "distance *= 2": "distance += 1",
            "rank ^ distance": "(rank ^ distance) % n",
        },
        "the all-gather were there too": {"return rounds": "return rounds + rounds[::-1]"},
    },
    also=[
        {"n_bytes = n_bytes / 2": "n_bytes /= 2", "for rank in range(n)": "for rank in reversed(range(n))"},
        lambda n, n_bytes: [
            [(a, a ^ 2**k, n_bytes / 2 ** (k + 1)) for a in range(n)] for k in range(n.bit_length() - 1)
        ],
    ],
    hints=(
        "Write down the rounds for four ranks: who exchanges how many bytes with whom in round 0? And in round 1?",
        "A loop over the distances 1, 2, 4, … below n. In each round, halve the bytes first. Then every rank sends "
        "them to rank ^ distance.",
        "rounds, distance = [], 1; while distance < n: n_bytes = n_bytes / 2; rounds.append([(rank, rank ^ distance, "
        "n_bytes) for rank in range(n)]); distance *= 2; return rounds.",
    ),
)
EXERCISES[4] = lab06_ranks.EXERCISES[4]
