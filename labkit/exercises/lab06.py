"""Checks for lab 06's functions: costs of an all-reduce, send order, top-k."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.exercises.engine.answers import call, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import expect, hinting
from labkit.exercises.engine.values import array_of_numbers, describe, expect_equal, integer, number, parts, short
from labkit.system.words import plural

lab = Lab("06")

HALVES_HINT = (
    "The ring adds only in the n - 1 steps of the reduce-scatter. Doubling sends, receives and adds the whole "
    "gradient in each of its steps: one step for 2 ranks, two for 4, three for 8. Halving takes the same number of "
    "steps until each rank has its chunk: draw what one of 8 ranks sends in each. Then all of them again, without "
    "adding."
)


@lab.exercise(
    3,
    hints=(
        "Start with the ring: 2(n - 1) steps, each sending one of the gradient's n chunks. In how many of them does it "
        "add?",
        HALVES_HINT,
        "ring: 2 * (n - 1), 2 * (n - 1) / n, (n - 1) / n. doubling: math.log2(n), three times. halving sends 1/2 + 1/4 "
        "+ … + 1/n = 1 - 1/n of the gradient, twice: 2 * math.log2(n) steps, with the ring's traffic and sums.",
    ),
)
def costs(answer: Callable[..., Any]) -> None:
    """Check the closed forms for the steps, traffic and sums of the busiest rank."""
    from hypothesis import strategies as st

    def decide(algorithm: str, n: int, servers: int = 1) -> None:
        more = [servers] if servers > 1 else []
        called = f'cost("{algorithm}", {", ".join(map(str, (n, *more)))})'
        result = parts(call(answer, algorithm, n, *more), 3, f"{called} to return three numbers (steps, traffic, sums)")
        lower = 2 ** (n.bit_length() - 1)
        for name, value, expected, least, most in zip(
            ("steps", "traffic", "sums"),
            result,
            _cost(algorithm, n, servers),
            _cost(algorithm, lower),
            _cost(algorithm, 2 * lower),
            strict=True,
        ):
            # The lab also calls these between powers of two, where any number between the two costs passes.
            if algorithm in ("doubling", "halving") and n != lower:
                result_value = number(value, f"{name} of {called}")
                between = least - 1e-9 <= result_value <= most + 1e-9
                expect(between, f"{name} of {called} to be from {least:.4g} to {most:.4g}; it is {result_value:.4g}")
            else:
                expect_equal(value, expected, f"{name} of {called}")

    for n, servers in ((2, 1), (4, 1), (64, 1), (8, 4), (100, 100), (1, 1)):
        decide("server", n, servers)
    for n in (2, 3, 4, 64, 1024, 1):
        decide("ring", n)
    with hinting(HALVES_HINT):
        for algorithm in ("doubling", "halving"):
            for n in (2, 4, 64, 1024, 1, 8, 16, 32, 128, 256, 512, 3, 5, 100):
                decide(algorithm, n)

    def decide_both(n: int, servers: int) -> None:
        decide("ring", n)
        decide("server", n, min(servers, n))

    for_all(decide_both, n=st.integers(1, 2_000), servers=st.integers(1, 2_000), examples=50)


def _cost(algorithm: str, n: int, servers: int = 1) -> tuple[float, float, float]:
    """Return the steps, traffic and sums of an all-reduce on n ranks."""
    if algorithm == "doubling":
        return (math.log2(n),) * 3
    steps, pieces = (
        (2 * math.log2(n), n) if algorithm == "halving" else (2 * (n - 1), n if algorithm == "ring" else servers)
    )
    return steps, 2 * (n - 1) / pieces, (n - 1) / pieces


@lab.exercise(
    5,
    hints=(
        "First list the waiting layers: ready by `now`, and not yet sent. Which of these goes first?",
        "If the list is empty, return None. With urgent_first, the layer is min(waiting). Otherwise, it is the one "
        "with the smallest `ready`: min has a parameter key=. And how long does the card send if less than a chunk is "
        "left?",
        "waiting = [layer for layer in range(len(left)) if left[layer] and ready[layer] <= now]; if not waiting: "
        "return None; layer = min(waiting) if urgent_first else min(waiting, key=lambda layer: ready[layer]); "
        "return layer, min(chunk, left[layer])",
    ),
)
def next_chunk(answer: Callable[..., Any]) -> None:
    """Check each choice of a simulated network card, with gradients that become ready in any order."""
    from hypothesis import strategies as st

    def decide(ready: list[int], needs: list[int], urgent_first: bool, chunk: int) -> None:
        now, left = 0, list(needs)
        while any(left):
            if right := _decide_chunk(answer, now, ready, left, urgent_first, chunk):
                layer, spent = right
                left[layer] -= spent
                now += spent
            else:
                now = min(when for when in ready if when > now)
        _decide_chunk(answer, now, ready, left, urgent_first, chunk)

    for urgent_first in (False, True):
        decide([9, 5, 2], [2, 3, 6], urgent_first, 4)
        decide([20, 3], [1, 2], urgent_first, 100)
        decide([4], [3], urgent_first, 1)
        decide([3, 1, 2], [2, 4, 1], urgent_first, 3)
        decide([870_000, 20_000, 0], [40_000, 30_500, 0], urgent_first, 1_000_000_000)
    layers = st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=8, unique_by=lambda layer: layer[0]
    )

    def decide_any(layers: list[tuple[int, int]], urgent_first: bool, chunk: int, unit: int) -> None:
        ready, needs = ([unit * spent for spent in times] for times in zip(*layers, strict=True))
        decide(ready, needs, urgent_first, unit * chunk)

    units = st.sampled_from((1, 1_000_000))
    for_all(decide_any, layers=layers, urgent_first=st.booleans(), chunk=st.integers(1, 9), unit=units)


def _decide_chunk(
    answer: Callable[..., Any], now: int, ready: list[int], left: list[int], urgent_first: bool, chunk: int
) -> tuple[int, int] | None:
    """Check what the card sends at one moment, and return it: the layer and the time it takes."""
    result = call(answer, now, ready, left, urgent_first, chunk)
    called = f"next_chunk({now}, {ready}, {left}, {urgent_first}, {chunk})"
    waiting = [layer for layer, rest in enumerate(left) if rest and ready[layer] <= now]
    if not waiting:
        why = "nothing is waiting" if any(left) else "everything is sent"
        expect(result is None, f"{called} to be None, as {why}; it is {describe(result)}")
        return None
    layers = f"layer {waiting[0]} is" if len(waiting) == 1 else f"layers {', '.join(map(str, waiting))} are"
    expect(
        result is not None,
        f"{called} to be (layer, spent), as {layers} ready and not yet sent; it is None",
        hint="Does the function reach a `return` here? A layer waits from the time in `ready`, inclusive, until all "
        "of it is sent.",
    )
    results = parts(result, 2, f"{called} to be (layer, spent)")
    layer = integer(results[0], f"the layer of {called}", int_only=True)
    expect(hasattr(results[0], "__index__"), f"the layer of {called} to be an int; it is {describe(results[0])}")
    spent = integer(results[1], f"the time spent of {called}")
    called += f", which is ({layer}, {spent}),"
    expect(layer in range(len(left)), f"{called} to name a layer from 0 to {len(left) - 1}")
    expect(ready[layer] <= now, f"{called} to name a layer that is ready")
    expect(left[layer] > 0, f"{called} to name a layer that is not yet sent")
    right = min(waiting) if urgent_first else min(waiting, key=lambda layer: ready[layer])
    why = "the forward pass needs it first" if urgent_first else "it was ready first"
    expect(layer == right, f"{called} to name layer {right}: of those waiting, {why}")
    most = min(chunk, left[layer])
    expect(spent > 0, f"{called} to send something")
    expect(spent <= chunk, f"{called} to send at most a chunk, which takes {chunk}")
    expect(spent <= left[layer], f"{called} to send at most what is left of layer {layer}")
    amount = "a whole chunk" if most == chunk else f"all that is left of layer {layer}"
    expect(spent == most, f"{called} to send {amount}, which takes {most}")
    return layer, most


@lab.exercise(
    6,
    hints=(
        "`residual` holds what earlier steps did not send. It has to be sent too: which numbers do you choose from? "
        "And how many bytes does it take to send one of them, with its index, to all other ranks?",
        "Choose k numbers of gradient + residual; each takes 8 bytes with its index, for each of the n - 1 others. The "
        "new residual is gradient + residual, with zeros where something was sent. What does your choice return for "
        "k = 0?",
        "owed = gradient + residual; k = len(owed) if n == 1 else min(len(owed), budget // (8 * (n - 1))); indices = "
        "np.argpartition(-np.abs(owed), min(k, len(owed) - 1))[:k]; values = owed[indices]; owed[indices] = 0; return "
        "indices, values, owed",
    ),
    moves=True,
)
def top_k(answer: Callable[..., Any]) -> None:
    """Check that the largest numbers within the budget are sent, and the rest is kept, with nothing lost or changed."""
    from hypothesis import strategies as st

    rng = np.random.default_rng(6)
    for length, n, budget in ((5, 2, 16), (5, 3, 50), (100, 2, 8), (1_000, 4, 240), (7, 2, 56), (6, 2, 7), (4, 3, 999)):
        # Integers, which are short in messages.
        signs = rng.choice((-1, 1), (2, length)).astype(np.float32)
        gradient = rng.permutation(np.arange(1, length + 1)).astype(np.float32) * signs[0]
        residual = 2 * rng.permutation(np.arange(length)).astype(np.float32) * signs[1]
        _decide_top_k(answer, gradient, residual, n, budget)
    for length, n, budget, size in ((50, 2, 40, 1e-4), (50, 2, 40, 1.0), (50, 4, 120, 1e4), (50_890, 2, 4_071, 1e-3)):
        gradient, residual = rng.normal(0, size, (2, length)).astype(np.float32)
        _decide_top_k(answer, gradient, residual, n, budget)
    _decide_top_k(answer, np.zeros(6, np.float32), np.zeros(6, np.float32), 2, 16)
    _decide_top_k(answer, np.arange(3, dtype=np.float32), np.ones(3, np.float32), 1, 0)
    few = st.sampled_from((-2.0, -1.0, 0.0, 1.0, 2.0))  # with ties, and with sums of 0
    pairs = st.lists(st.tuples(few, few), min_size=1, max_size=8)

    def decide(pairs: list[tuple[float, float]], n: int, budget: int) -> None:
        gradient, residual = np.array(pairs, np.float32).T.copy()
        _decide_top_k(answer, gradient, residual, n, budget)

    for_all(decide, pairs=pairs, n=st.integers(1, 5), budget=st.integers(0, 99), examples=50)


def _decide_top_k(answer: Callable[..., Any], gradient: np.ndarray, residual: np.ndarray, n: int, budget: int) -> None:
    """Check the result of top_k for one gradient and residual."""
    length, others = len(gradient), n - 1
    k = min(length, budget // (8 * others)) if others else length
    case = f"for {plural(length, 'number')} on {plural(n, 'rank')} with {plural(budget, 'byte')}"
    if length <= 8:
        case += f" (gradient {short(gradient)}, residual {short(residual)})"
    result = call(answer, gradient, residual, n, budget)
    expect(
        isinstance(result, tuple | list) and len(result) == 3,
        f"three arrays (indices, values, new residual) {case}; it is {describe(result)}",
    )
    indices, values, left = (
        array_of_numbers(part, f"an array of numbers as {name} {case}")
        for name, part in zip(("indices", "values", "residual"), result, strict=True)
    )
    expect(indices.ndim == 1, f"indices of one dimension {case}; the shape is {indices.shape}")
    count = len(indices)
    cost = f"; you send {count}" + f", which takes {8 * others * count:,} bytes to {plural(others, 'other')}" * bool(
        others
    )
    expect(count == k, f"{plural(k, 'number')} to be sent {case}{cost}")
    for name, part, array, shape in (("values", result[1], values, (k,)), ("residual", result[2], left, (length,))):
        expect(array.shape == shape, f"{name} of shape {shape} {case}; the shape is {array.shape}")
        dtype = getattr(part, "dtype", np.dtype("float32"))  # later cells convert lists to float32
        expect(
            dtype == np.float32,
            f"{name} of type float32, like the gradient, {case}; the type is {dtype}. Other types have other "
            "sizes, and what rounding removes is lost",
        )
    if k:
        expect(
            np.issubdtype(indices.dtype, np.integer) and len(set(indices.tolist())) == k,
            f"{k} different integers as indices {case}; they are {short(result[0])}",
        )
        expect(
            indices.min() >= 0 and indices.max() < length,
            f"indices from 0 to {length - 1} {case}; they go from {indices.min()} to {indices.max()}",
        )
    indices = indices.astype(int)
    owed = gradient + residual
    # An answer may add in another order, so that rounding differs.
    rounding = 4 * float(np.finfo(np.float32).eps) * float(np.abs(gradient).max() + np.abs(residual).max())
    if not np.allclose(values, owed[indices], 1e-6, rounding):
        expect(
            not np.allclose(values, gradient[indices], 1e-6, rounding),
            f"values of gradient + residual {case}; yours are only the gradient's, so what earlier steps left is "
            "never sent",
        )
    expect_equal(
        values,
        owed[indices],
        f"values {case}",
        rel=1e-6,
        abs=rounding,
        because="those of gradient + residual at the indices, with their signs",
    )
    rest = np.delete(np.abs(owed), indices)
    expect(
        not k or rest.max(initial=0) <= np.abs(values).min() + rounding,
        f"the {k} largest in magnitude {case}; you send one of {np.abs(values).min(initial=np.inf):g} and keep one of "
        f"{rest.max(initial=0):g}",
    )
    sent = np.zeros(length, np.float32)
    sent[indices] = values
    expect_equal(
        left,
        owed - sent,
        f"the new residual {case}",
        rel=1e-6,
        abs=rounding,
        because="gradient + residual without what is sent: nothing may be lost or sent twice",
    )
