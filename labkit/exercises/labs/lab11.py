"""Exercises of lab 11: buckets, backward passes that send while they compute, and a crossover."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from labkit.exercises.engine.on_ranks import OnRanks
from labkit.exercises.engine.outcomes import expect
from labkit.exercises.engine.reference import Reference, Result
from labkit.exercises.engine.values import describe, integer
from labkit.exercises.labs import lab11_ranks

EXERCISES: dict[int, Reference | OnRanks] = {}


def _lengths(buckets: Callable[..., Any], sizes: list[int], limit: int) -> tuple[list[int], list[int]]:
    """Return the layers in order, and the number of layers in each bucket."""
    found, what = buckets(list(sizes), limit), f"buckets({sizes}, {limit})"
    expect(isinstance(found, list | tuple), f"{what} to be a list of lists; it is {describe(found)}")
    for bucket in found:
        is_list = isinstance(bucket, list | tuple)
        expect(is_list, f"each bucket of {what} to be a list of layer numbers; one is {describe(bucket)}")
    order = [integer(layer, f"a layer in {what}") for bucket in found for layer in bucket]
    return order, [len(bucket) for bucket in found]


EXERCISES[1] = Reference(
    cases=[
        ([3, 3, 4, 9], 7), ([4, 4, 4, 4], 8), ([9, 1, 1], 5), ([1, 1, 9], 5), ([2, 9, 2], 5), ([5], 1), ([5, 5, 5], 0),
        ([1, 2, 3, 4, 5, 6], 1000), ([], 10), ([6, 1, 5, 2], 7),
    ],
    more=st.tuples(st.lists(st.integers(1, 20), max_size=9), st.integers(0, 60)),
    use=_lengths,
    case=lambda sizes, limit: f"buckets({sizes}, {limit})",
    returns=(
        Result("layers, in the order of the buckets,", hint="Which gradient is ready first?"),
        Result("number of layers in each bucket"),
    ),
    wrong={
        "the first layer's gradient were ready first": {"reversed(range(len(sizes)))": "range(len(sizes))"},
        "a bucket had to stay below the limit": {"<= limit": "< limit"},
        "each layer had its own bucket": {"if full and": "if False and"},
        "there were one bucket for all": {"if full and sum(sizes[other] for other in full[-1]) + sizes[layer] <= limit":
                                          "if full"},
        "a bucket were closed only when it is over the limit": {"+ sizes[layer] <= limit": "< limit"},
        "an earlier bucket with room took a later layer": lambda sizes, limit: _first_fit(sizes, limit),
        "a layer larger than the limit were left out": {"        else:": "        elif sizes[layer] <= limit:"},
        "the bucket's layers were counted, not their bytes": {
            "sum(sizes[other] for other in full[-1]) + sizes[layer] <= limit": "len(full[-1]) < limit"
        },
    },
    also=[{"full[-1].append(layer)": "full[-1] += [layer]"}],
    hints=(
        "The last layer's gradient is ready first. Which comes next, and when does it no longer fit?",
        "Go through reversed(range(len(sizes))). Append the layer to the last bucket if it fits; otherwise start "
        "a new bucket with it.",
        "full = []; for layer in reversed(range(len(sizes))): if full and sum(sizes[other] for other in full[-1]) + "
        "sizes[layer] <= limit: full[-1].append(layer); else: full.append([layer]); return full",
    ),
)  # fmt: skip


def _first_fit(sizes: list[int], limit: int) -> list[list[int]]:
    """Return buckets that are filled again later, so that they aren't in order."""
    full: list[list[int]] = []
    for layer in reversed(range(len(sizes))):
        fits = [bucket for bucket in full if sum(sizes[other] for other in bucket) + sizes[layer] <= limit]
        if fits:
            fits[0].append(layer)
        else:
            full.append([layer])
    return full


EXERCISES[2] = lab11_ranks.EXERCISES[2]
EXERCISES[3] = lab11_ranks.EXERCISES[3]
EXERCISES[4] = lab11_ranks.EXERCISES[4]

EXERCISES[5] = Reference(
    cases=[(10**6, 2, 0.5), (10**6, 3, 0.5), (10**9, 6, 10.0), (7 * 10**9, 8, 5.0), (7 * 10**9, 24, 5.0)],
    more=st.tuples(
        st.integers(1, 10**4).map(lambda millions: millions * 10**6), st.integers(2, 1024),
        st.integers(1, 400).map(lambda tenths: tenths / 10),
    ),
    returns=(Result(rel=1e-3, format=".3g"),),
    wrong={
        "FSDP's sending were just hidden there (3S = c)": {"(seconds / 2)": "(seconds / 3)"},
        "ZeRO-1 hid nothing (3S = c + 2S)": {"(seconds / 2)": "seconds"},
        "a byte had one bit": {" * 8": ""},
        "a weight had one byte": {"* 4 ": ""},
        "a rank sent all weights, not (n - 1)/n of them": {"(ranks - 1) / ranks * ": ""},
        "the factor were (n - 1), not (n - 1)/n": {" / ranks": ""},
    },
    also=[lambda parameters, ranks, seconds: 64 * parameters * (1 - 1 / ranks) / seconds],
    hints=(
        "Just above that rate, FSDP is faster; just below, ZeRO-1. If FSDP's sending were hidden there, its step would "
        "take c, and ZeRO-1's at least c + S. Could those be equal?",
        "So FSDP's step takes 3S there, and ZeRO-1's c + S, as its scatters are hidden. What is S? For the rate: how "
        "many bits does a byte have?",
        "S = c/2: (ranks - 1) / ranks * 4 * parameters * 8 / rate = seconds / 2. Solve it for rate.",
    ),
)  # fmt: skip
