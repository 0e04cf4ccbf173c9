"""Checks for lab 10: attention, a KV cache, the cost of a pass, quantisation in groups, and speculative decoding."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import NotYet, expect, hinting
from labkit.exercises.engine.values import (
    as_number,
    describe,
    expect_equal,
    has_format,
    integer,
    is_tensor,
    number,
    numeric_array,
    parts,
    short,
)
from labkit.system.words import plural

lab = Lab("10")


TOKENS_HINT, MASK_HINT, LATER_HINT = (
    "Number the tokens from 0 to m - 1. Key j belongs to token j. Query i belongs to one of the last n tokens: which?",
    "Query i belongs to token m - n + i, and sees the keys 0 to m - n + i. np.arange(m) holds the tokens of the keys, "
    "and np.arange(m - n, m)[:, None] those of the queries, one per row.",
    "later = np.arange(m) > np.arange(m - n, m)[:, None]",
)
LARGE_HINT = (
    "Softmax stays the same if you subtract one number from all scores of a query. Subtract the largest that it sees: "
    "np.exp then gives 1 for that one, and at most 1 for the others."
)
# Scores of 4 queries with 4 keys. Masked scores, and those of other queries, are sometimes far larger.
LARGE_SCORES = ((-1000, 900, 0, 1000), (-999, -1000, 1000, 1000), (1000, 1001, 999, -1000), (800, 801, 800, 799))


@lab.exercise(1, hints=(TOKENS_HINT, MASK_HINT, LATER_HINT))
def attention(answer: Callable[..., Any]) -> None:
    """Compare with the definition: for as many queries as keys or fewer, in each head, for scores of any size."""

    def decide(q: np.ndarray, k: np.ndarray, v: np.ndarray, which: str = "", because: str = "") -> None:
        (heads, n, d), m = q.shape, k.shape[1]
        case = f"attention with {plural(heads, 'head')}, n = {n}, m = {m} and d = {d}{which}"
        result = _array(call(answer, q, k, v), f"{case} to be an array of shape {q.shape}")
        expect(result.shape == q.shape, f"{case} to have the shape {q.shape}; it has {result.shape}")
        seen = np.arange(m) <= np.arange(m - n, m)[:, None]
        scores = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / d**0.5
        masks, sums = _wrong_masks(scores, v, seen), _wrong_sums(scores, v, seen, d)
        with hinting(LARGE_HINT if np.abs(scores).max() > 80 and not np.isfinite(result).all() else ""):
            _same(
                result,
                _gather(scores, v, seen),
                case,
                masks | sums,
                dict.fromkeys(masks, MASK_HINT),
                rel=1e-4,
                abs=3e-5 * float(np.abs(v).max()),  # rounding to float32 in sums that nearly cancel
                because=because,
            )

    values = np.array([[[6, 0], [0, 6], [3, 9], [7, 1]]], np.float32)
    for n, m in ((3, 3), (2, 4), (1, 3)):
        q, k = np.ones((1, n, 2), np.float32), np.ones((1, m, 2), np.float32)
        decide(q, k, values[:, :m], ", all scores equal,", "a mean of the values that the query sees")

    def decide_on_normal(heads: int, n: int, m: int, d: int) -> None:
        rng = np.random.default_rng(10 * m + n)
        q, k, v = (rng.normal(0, 1.5, (heads, count, d)).astype("float32") for count in (n, m, m))
        decide(q, k, v)

    for heads, n, m, d in ((1, 3, 3, 5), (2, 3, 3, 5), (3, 2, 5, 4), (2, 1, 4, 3), (1, 1, 1, 2), (2, 4, 6, 2)):
        decide_on_normal(heads, n, m, d)
    keys, chosen = np.eye(4, dtype="float32"), np.array(LARGE_SCORES, "float32")
    v = np.arange(16, dtype="float32").reshape(1, 4, 4)
    decide(2 * chosen[None], keys[None], v, ", scores from -1000 to 1001,")
    decide(2 * chosen[None, 1:], keys[None], v, ", scores from -1000 to 1001,")

    def decide_on_whole(heads: int, n: int, more: int, root: int, size: int, seed: int) -> None:
        # Integers and a root that is a power of two: such scores are exact in float32. They reach 1024: the larger they
        # are, the less accurate a softmax via its logarithm is in float32.
        rng = np.random.default_rng(seed)
        q, k, v = (
            rng.integers(-size, size + 1, (heads, count, root**2)).astype("float32")
            for count in (n, n + more, n + more)
        )
        decide(q, k, v)

    for_all(
        decide_on_whole,
        heads=st.integers(1, 3),
        n=st.integers(1, 4),
        more=st.integers(0, 3),
        root=st.sampled_from((1, 2, 4)),
        size=st.sampled_from((1, 2, 16)),
        seed=st.integers(0, 99),
    )


def _gather(scores: np.ndarray, v: np.ndarray, seen: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the values weighted by the softmax of the visible scores; nan where a query sees none."""
    scores = np.where(seen, scores, -np.inf)
    with np.errstate(all="ignore"):
        shares = np.exp(scores - scores.max(axis=axis, keepdims=True))
        gathered: np.ndarray = shares / shares.sum(axis=axis, keepdims=True) @ v.astype(float)
    return gathered


def _wrong_masks(scores: np.ndarray, v: np.ndarray, seen: np.ndarray) -> dict[str, np.ndarray]:
    """Return the results of common masking mistakes, by description."""
    n, m = seen.shape
    everything = np.ones_like(seen)
    return {
        "each query saw all keys, including later ones": _gather(scores, v, everything),
        "query i were token i, not token m - n + i": _gather(scores, v, np.tri(n, m, dtype=bool)),
        "a token did not see its own key": _gather(scores, v, np.tri(n, m, m - n - 1, dtype=bool)),
        "each query saw only its own key and later ones": _gather(scores, v, ~seen | np.eye(n, m, m - n, bool)),
        "each query saw only later keys": _gather(scores, v, ~seen),
    }


def _wrong_sums(scores: np.ndarray, v: np.ndarray, seen: np.ndarray, d: int) -> dict[str, np.ndarray]:
    """Return the results of common mistakes in scores and softmax, by description."""
    everything = np.ones_like(seen)
    too_late = _gather(scores, np.eye(seen.shape[1]), everything) * seen @ v
    return {
        "later keys had a finite score, such as 0, which counts in the softmax": _gather(scores * seen, v, everything),
        "shares were set to 0 after the softmax, so that the others no longer add up to 1": too_late,
        "the scores were divided by d": _gather(scores / d**0.5, v, seen),
        "the scores were not divided by the root of d": _gather(scores * d**0.5, v, seen),
        "the softmax ran over the queries, not the keys": _gather(scores, v, seen, axis=-2),
    }


AXIS_HINT, PAST_HINT, CACHE_HINT = (
    "Which axis of (heads, n, d) counts the tokens? Append the new ones along this axis.",
    "np.concatenate([first, second], axis=1) joins two arrays along axis 1, and returns a new array. Which is the "
    "first? And what is there to do if `past` is None?",
    "if past is None: return k, v; then keys, values = past, and return np.concatenate([keys, k], axis=1), "
    "np.concatenate([values, v], axis=1)",
)


@lab.exercise(2, hints=(AXIS_HINT, PAST_HINT, CACHE_HINT))
def remember(answer: Callable[..., Any]) -> None:
    """Check all tokens and their order after each pass, for one text and two alternating ones."""

    def decide(heads: int, d: int, counts: list[int], texts: int = 1) -> None:
        pasts: list[Any] = [None] * texts
        for passes in range(1, len(counts) + 1):
            m, n = sum(counts[: passes - 1]), counts[passes - 1]
            of_text = ", of two alternating texts" * (texts > 1)
            case = f"after {_listed(counts[:passes])} tokens of {plural(heads, 'head')}, d = {d}{of_text}"
            for text, past in enumerate(pasts):
                all_keys, all_values = _numbered(heads, m + n, d, text)
                k, v = all_keys[:, m:], all_values[:, m:]
                pasts[text] = call(answer, past, k, v)
                two = parts(pasts[text], 2, f"a pair, all keys and all values, {case}")
                for name, returned, right in zip(("keys", "values"), two, (all_keys, all_values), strict=True):
                    array = _array(returned, f"the {name} {case} to be an array of shape {right.shape}")
                    wrong = {
                        "the new tokens came before the past ones": np.roll(right, n, axis=1),
                        "they were the values": all_values,
                        "they were the keys": all_keys,
                        "the past tokens were forgotten": right[:, m:],
                        "the new tokens were left out": right[:, :m],
                        "the new ones were appended along axis 0, the heads": _joined(right, m, 0),
                        "the new ones were appended along axis 2, the numbers": _joined(right, m, 2),
                    }
                    with hinting(AXIS_HINT if array.shape != right.shape else PAST_HINT):
                        _same(array, right, f"the {name} {case}", wrong)

    decide(2, 4, [3])
    decide(2, 4, [3, 3])
    decide(3, 2, [2, 1, 1])
    decide(1, 3, [1, 4, 2])
    decide(2, 2, [2, 2, 1], texts=2)
    sizes = st.integers(1, 3)
    for_all(decide, heads=sizes, d=sizes, counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))

    all_keys, all_values = _numbered(2, 5, 3, 0)  # the lab truncates a cache, and so makes pairs itself
    two = parts(call(answer, (all_keys[:, :3], all_values[:, :3]), all_keys[:, 3:], all_values[:, 3:]), 2, "a pair")
    for name, returned, right in zip(("keys", "values"), two, (all_keys, all_values), strict=True):
        case = f"the {name} with 2 tokens after a past of 3, which is not what remember returned last,"
        _same(_array(returned, f"{case} to be an array of shape {right.shape}"), right, case, {})


def _numbered(heads: int, tokens: int, d: int, text: int) -> tuple[np.ndarray, np.ndarray]:
    """Return keys that are all different, and values that are 0.5 larger."""
    head, token, place = np.ogrid[:heads, :tokens, :d]
    keys = (1000 * (head + 1) + 10 * token + place + 5000 * text).astype("float32")
    return keys, keys + np.float32(0.5)


def _joined(tokens: np.ndarray, past: int, axis: int) -> np.ndarray | None:
    """Return past and new tokens joined along another axis; None if they don't fit."""
    pair = tokens[:, :past], tokens[:, past:]
    return np.concatenate(pair, axis) if past and 2 * past == tokens.shape[1] else None


PAIRS_HINT, CACHE_BYTES_HINT, COST_HINT = (
    "Count the pairs of a query and a key that it sees. The first new token sees the cached ones and itself, the next "
    "one more, and so on: how many pairs is that for all new tokens?",
    "pairs = tokens * cached + tokens * (tokens + 1) / 2, in each of layers * heads heads. A pair takes 2 · head_size "
    "operations with the key, and as many with the value. The cache has keys and values of the KV heads only.",
    "2 * model.active_weights * tokens + 4 * model.layers * model.heads * model.head_size * pairs, weight_bytes * "
    "model.active_weights, kv_bytes * 2 * model.layers * model.kv_heads * model.head_size * (cached + tokens)",
)
ORDER_HINTS = dict.fromkeys(
    ("these were the bytes of the weights", "these were the bytes of the cache", "these were the operations"),
    "Return the operations first, then the bytes of the weights, then those of the cache.",
)
BYTES_HINT = (
    "Each weight is read once per pass, whatever the number of tokens. For each token, cached or new, each layer has a "
    "key and a value of `head_size` numbers per KV head, `kv_bytes` bytes each."
)


class Sizes(NamedTuple):
    """A model's sizes, as passed to exercise 3."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    active_weights: int


@lab.exercise(3, hints=(PAIRS_HINT, CACHE_BYTES_HINT, COST_HINT))
def cost(answer: Callable[..., Any]) -> None:
    """Check exact costs for one token and many, with and without a cache and GQA, for any bytes per number."""

    def decide(tokens: int, cached: int, model: Sizes, weight_bytes: float, kv_bytes: int) -> None:
        sizes = ", ".join(f"{name}={value}" for name, value in model._asdict().items())
        called = f"cost({tokens}, {cached}, model, {weight_bytes:g}, {kv_bytes}) of a model with {sizes}"
        costs = parts(
            call(answer, tokens, cached, model, weight_bytes, kv_bytes),
            3,
            f"{called} to be three numbers: operations, bytes of the weights, bytes of the cache",
        )
        triangle = tokens * (tokens + 1) // 2
        matmuls, pair = 2 * model.active_weights * tokens, 4 * model.layers * model.heads * model.head_size
        pairs = tokens * cached + triangle
        operations = matmuls + pair * pairs
        weights = weight_bytes * model.active_weights
        number = 2 * model.layers * model.kv_heads * model.head_size  # in the cache, per token
        cache = kv_bytes * number * (cached + tokens)
        wrong = {
            "each new token saw all keys, including those of later ones": matmuls + pair * tokens * (cached + tokens),
            "no token saw its own key": matmuls + pair * (pairs - tokens),
            "the keys of the cached tokens were left out": matmuls + pair * triangle,
            "the new tokens saw only the cached ones": matmuls + pair * tokens * cached,
            "attention had half of its matmuls, or half of their operations": matmuls + pair * pairs / 2,
            "a multiply-add were one operation": operations / 2,
            "each weight took one operation per token": matmuls / 2 + pair * pairs,
            "the cached tokens were multiplied by the weights again": matmuls
            + 2 * model.active_weights * cached
            + pair * pairs,
            "attention were in one block": matmuls + pair * pairs / model.layers,
            "attention had one head": matmuls + pair * pairs / model.heads,
            "only the KV heads had queries": matmuls + pair * pairs * model.kv_heads / model.heads,
            "active_weights were those of one block": model.layers * matmuls + pair * pairs,
            "these were the bytes of the weights": weights,
            "these were the bytes of the cache": cache,
        }
        with hinting(PAIRS_HINT):
            _same(_plain(costs[0]), operations, f"the operations of {called}", wrong, ORDER_HINTS, rel=1e-9)
        wrong = {
            "the weights were read once per token": weights * tokens,
            "active_weights were those of one block": model.layers * weights,
            "a weight took 4 bytes": 4 * model.active_weights,
            "these were the bytes of the cache": cache,
            "these were the operations": operations,
        }
        with hinting(BYTES_HINT):
            _same(
                _plain(costs[1]),
                _plain(weights),
                f"the bytes of the weights of {called}",
                wrong,
                ORDER_HINTS,
                rel=1e-9,
            )
        wrong = {
            "every head had its own keys and values": cache * model.heads / model.kv_heads,
            "only keys or only values were cached": cache / 2,
            "the cache were not read": cache * tokens / (cached + tokens),
            "the keys and values of the new tokens were not written": cache * cached / (cached + tokens),
            "each number of a key or a value took one byte": cache / kv_bytes,
            "a number of a key or a value took as many bytes as a weight": cache / kv_bytes * weight_bytes,
            "there were one block": cache / model.layers,
            "there were one KV head": cache / model.kv_heads,
            "these were the bytes of the weights": weights,
        }
        with hinting(BYTES_HINT):
            _same(_plain(costs[2]), _plain(cache), f"the bytes of the cache of {called}", wrong, ORDER_HINTS, rel=1e-9)
        for name, value in zip(("operations", "bytes of the weights", "bytes of the cache"), costs, strict=True):
            expect(
                has_format(value, ".1f"),
                f"the {name} of {called} to be an int or a float, for the next cells to show; it is {describe(value)}",
            )

    for case in (
        (4, 7, Sizes(5, 21, 7, 5, 1000), 0.5, 8),  # sizes for which no two mistakes give the same number
        (1, 0, Sizes(1, 1, 1, 1, 12), 4, 4),
        (1, 0, Sizes(3, 2, 2, 4, 700), 4, 4),
        (1, 7, Sizes(2, 4, 1, 5, 600), 4, 2),
        (4, 0, Sizes(2, 3, 3, 5, 600), 4, 4),
        (5, 7, Sizes(2, 4, 2, 5, 600), 1, 1),
        (1, 512, Sizes(32, 32, 8, 128, 7_504_658_432), 0.53125, 2),
        (512, 0, Sizes(12, 12, 12, 64, 84_934_656), 4, 4),
    ):
        decide(*case)

    def decide_on_sizes(
        tokens: int, cached: int, layers: int, shared: int, kv_heads: int, size: int, **how: Any
    ) -> None:
        model = Sizes(layers, shared * kv_heads, kv_heads, size, 12 * layers * (shared * kv_heads * size) ** 2 + 1)
        decide(tokens, cached, model, **how)

    for_all(
        decide_on_sizes,
        tokens=st.integers(1, 600),
        cached=st.integers(0, 600),
        layers=st.integers(1, 4),
        shared=st.integers(1, 4),
        kv_heads=st.integers(1, 3),
        size=st.integers(1, 9),
        weight_bytes=st.sampled_from((4, 2, 1, 0.53125)),
        kv_bytes=st.sampled_from((4, 2, 1)),
    )


GROUPS_HINT, SCALE_HINT, CODES_HINT = (
    "First make a three-dimensional array, weights.reshape(rows, -1, group): its last axis is one group.",
    "The scale is the value of one code step: np.abs(groups).max(axis=-1) / (2 ** (bits - 1) - 1). What is it for a "
    "group of zeros, and what happens when you divide by it?",
    "scales = np.where(scales == 0, 1, scales); codes = np.round(groups / scales[..., None]).astype('int8'); return "
    "codes.reshape(weights.shape), scales",
)

FLOOR_HINT = (
    "A trained model has many groups of such small weights. Do you set a minimum scale, or add something to each? "
    "Only a group of zeros needs that; for any other it must be far below the scale, such as 1e-8."
)
ROUND_HINT = "np.round gives the nearest integer; astype alone truncates."


@lab.exercise(4, hints=(GROUPS_HINT, SCALE_HINT, CODES_HINT))
def in_groups(answer: Callable[..., Any]) -> None:
    """Check that the largest weight of a group gets the largest code, the others the nearest one, and zeros stay 0."""

    def decide(weights: np.ndarray, bits: int, group: int) -> None:
        called = f"in_groups({short(weights.tolist())}, {bits}, {group})"
        pair = parts(call(answer, weights, bits, group), 2, f"{called} to return two arrays, the codes and the scales")
        codes, scales = (
            _array(part, f"an array as the {name} of {called}")
            for name, part in zip(("codes", "scales"), pair, strict=True)
        )
        rows, columns = weights.shape
        for name, array, shape in (("codes", codes, (rows, columns)), ("scales", scales, (rows, columns // group))):
            expect(
                array.shape == shape,
                f"the {name} of {called} to have the shape {shape}; it is {array.shape}",
                GROUPS_HINT,
            )
        expect(codes.dtype == np.int8, f"the codes of {called} to be of type int8; their type is {codes.dtype}")
        split, codes = (array.reshape(rows, -1, group).astype(float) for array in (weights, codes))
        for row, place in np.ndindex(scales.shape):
            _decide_on_group(split, row, place, codes[row, place], scales[row, place], bits)

    def decide_on_list(values: list[float], bits: int, group: int) -> None:
        decide(np.array([values], "float32"), bits, group)

    decide_on_list([7, -3.25, 1.75, 0.25], 4, 4)
    decide_on_list([-14, 5, 3, 0.75], 4, 4)
    decide_on_list([3.5, -7, -14, 5, 0.5, 0.25], 4, 2)
    decide_on_list([3, -1, -7, 0.5, 2, 14], 4, 3)
    decide_on_list([0, 0, 0.5, -0.25], 4, 2)
    decide_on_list([0.5, -4, 0], 3, 1)
    decide_on_list([1, -0.75, 0.25, 0.125], 2, 4)
    decide_on_list([1, -0.75, 0.25, 0.125], 8, 4)
    decide_on_list([0.0125, -0.005, 0, 0.0025], 8, 4)  # as small as the groups of a small trained model
    decide_on_list([0.003, -0.0012, 0, 0.0006], 8, 4)
    decide(np.array([[3.5, -7, 1, 2], [0.5, -14, 3, 28]], "float32"), 4, 2)

    def decide_on_repeated(values: list[int], rows: int, groups: int, group: int, bits: int) -> None:
        # Multiples of 1/4, repeated until they fill the array.
        decide(np.resize(np.array(values, "float32") / 4, (rows, groups * group)), bits, group)

    for_all(
        decide_on_repeated,
        values=st.lists(st.integers(-40, 40), min_size=1, max_size=12),
        rows=st.integers(1, 3),
        groups=st.integers(1, 3),
        group=st.integers(1, 5),
        bits=st.integers(2, 8),
    )


def _decide_on_group(split: np.ndarray, row: int, place: int, codes: np.ndarray, scale: Any, bits: int) -> None:
    """Check the codes and the scale of one group; `split` has the weights as (rows, groups, weights)."""
    weights, largest = split[row, place], 2 ** (bits - 1) - 1
    shown = short([float(f"{weight:.6g}") for weight in weights])  # 0.0125, which float32 cannot represent exactly
    group = f"group {place} of row {row}, {shown} in {bits} bits,"
    if not weights.any():
        with hinting(SCALE_HINT):
            expect(not codes.any(), f"{group} to have codes 0; they are {_codes(codes)}")
            expect(math.isfinite(scale) and scale > 0, f"{group} to have a finite scale above 0; it is {scale}")
        return
    right = float(np.abs(weights).max()) / largest
    wrong = {
        "it were the largest code divided by the largest weight": 1 / right,
        "it were the largest weight": right * largest,
        "each row had one scale": float(np.abs(split[row]).max()) / largest,
        "all rows shared one scale per group of columns": float(np.abs(split[:, place]).max()) / largest,
        "all weights had one scale": float(np.abs(split).max()) / largest,
        f"the largest code were {largest + 1}": right * largest / (largest + 1),
        f"the codes went up to {2 * largest + 1}": right * largest / (2 * largest + 1),
        "the absolute value had not been taken": float(weights.max()) / largest,
        "the codes went from the smallest to the largest weight": float(np.ptp(weights)) / (2 * largest),
    }
    because = f"so that its largest weight is ±{largest} times the scale"
    with hinting(FLOOR_HINT if right < 1e-3 else SCALE_HINT):
        # A guard against a scale of 0, such as an added 1e-8, must not show in any scale of a trained model.
        _same(scale, right, f"the scale of {group}", wrong, rel=1e-5, abs=2e-8, because=because)
    for weight, code in zip(weights, codes, strict=True):
        expect(
            abs(code) <= largest,
            f"{group} to have codes from {-largest} to {largest}; they are {_codes(codes)}",
        )
        expect(
            abs(code - weight / right) <= 0.5 * (1 + 1e-4),
            f"{weight:g} in {group} to have the code nearest to {weight / right:.2f}; it has {code:.0f}",
            hint=ROUND_HINT if abs(code - weight / right) < 1 else "",
        )


def _codes(codes: np.ndarray) -> str:
    return short(codes.astype(int).tolist())


FIRST_HINT, OWN_HINT, VERIFY_HINT = (
    "Go through the proposed tokens in order. Which is the first that the large model would not have written?",
    "After the right tokens, the large model's own choice is known as well, choices[right]: it is right by definition. "
    "That also holds if all of the proposed tokens are right, or none.",
    "right = 0; while right < len(proposed) and proposed[right] == choices[right]: right += 1; return "
    "choices[: right + 1]",
)
EQUAL_HINT = "Are tokens compared with ==? Equal numbers need not be the same object, which is what `is` tests."


@lab.exercise(5, hints=(FIRST_HINT, OWN_HINT, VERIFY_HINT))
def accept(answer: Callable[..., Any]) -> None:
    """Check for the large model's choices up to and including the draft's first wrong token; all if none is wrong."""

    def decide(proposed: list[int], choices: list[int], hint: str = "") -> None:
        called = f"accept({proposed}, {choices})"
        returned = call(answer, proposed, choices)
        right = next((place for place, token in enumerate(proposed) if token != choices[place]), len(proposed))
        accepted = choices[: right + 1]
        is_sequence = isinstance(returned, list | tuple) or (isinstance(returned, np.ndarray) and returned.ndim == 1)
        expect(is_sequence, f"{called} to be a list of tokens; it is {describe(returned)}")
        tokens = [integer(token, f"token {place} of {called}", int_only=True) for place, token in enumerate(returned)]
        known = "all" if right == len(proposed) else f"the first {right}" if right else "none"
        why = f"{known} of the proposed tokens can be kept"
        hint = hint or (OWN_HINT if tokens == accepted[:-1] else FIRST_HINT)
        expect(tokens == accepted, f"{called} to be {accepted} ({why}); it is {tokens}", hint)

    for proposed, choices in (
        ([5, 6, 7], [5, 9, 8, 4]),
        ([5, 6, 7], [5, 6, 7, 8]),
        ([5, 6, 7], [9, 8, 4, 3]),
        ([5, 6, 7], [9, 6, 7, 8]),
        ([5, 6, 7], [6, 5, 7, 8]),
        ([5, 6, 7], [5, 6, 9, 8]),
        ([5, 6, 7, 7], [5, 9, 7, 7, 7]),
        ([], [4]),
        ([0], [0, 0]),
        ([300], [301, 302]),
    ):
        decide(proposed, choices)
    decide(list(range(50_000, 50_003)), list(range(50_000, 50_004)), EQUAL_HINT)  # equal, but different objects

    def decide_on_some(proposed: list[int], choices: list[int]) -> None:
        decide(proposed, choices[: len(proposed) + 1])

    token = st.integers(0, 2)  # few, so that many are the same
    for_all(
        decide_on_some,
        proposed=st.lists(token, max_size=6),
        choices=st.lists(token, min_size=7, max_size=7),
        examples=200,
    )


GROWN_HINT, TIME_HINT, SPEED_HINT = (
    "By how many tokens does the text grow in one pass, on average? At least one, the large model's own. A second with "
    "probability alpha. A third?",
    "Token i counts only if all before it were right: the probability is alpha**i, for i from 0 to gamma. The time of "
    "one pass is the draft's time for all of its tokens, plus the large model's.",
    "sum(alpha**i for i in range(gamma + 1)) / (gamma * draft_cost + pass_cost)",
)
CERTAIN_HINT = (
    "The sum 1 + alpha + … + alpha**gamma is (1 - alpha ** (gamma + 1)) / (1 - alpha) for all alpha except 1, where "
    "it is gamma + 1. Add up the terms, or handle alpha = 1 separately."
)


@lab.exercise(6, hints=(GROWN_HINT, TIME_HINT, SPEED_HINT))
def speed_up(answer: Callable[..., Any]) -> None:
    """Check the tokens per pass divided by its time, for a draft that is always, never or sometimes right."""

    def decide(alpha: float, gamma: int, draft_cost: float, pass_cost: float) -> None:
        called = f"speed_up({alpha:g}, {gamma}, {draft_cost:g}, {pass_cost:g})"
        with hinting(CERTAIN_HINT if alpha == 1 else ""):
            returned = call(answer, alpha, gamma, draft_cost, pass_cost)
        grown, spent = sum(alpha**right for right in range(gamma + 1)), gamma * draft_cost + pass_cost
        wrong = {
            "the large model's own token did not count": (grown - 1) / spent,
            "the large model wrote none after gamma right tokens": (grown - alpha**gamma) / spent,
            "tokens after a wrong one counted too": (1 + alpha * gamma) / spent,
            "tokens after a wrong one counted too, and the large model's own did not": alpha * gamma / spent,
            "the text grew by all tokens or by one": (1 + gamma * alpha**gamma) / spent,
            "the text grew by gamma + 1 tokens in each pass": (gamma + 1) / spent,
            "the draft took no time": grown / pass_cost,
            "the draft wrote one token per pass": grown / (draft_cost + pass_cost),
            "the draft wrote gamma + 1 tokens per pass": grown / (spent + draft_cost),
            "the large model took no time": grown / (spent - pass_cost) if draft_cost else None,
            "the large model's pass took as long as for one token": grown / (spent - pass_cost + 1),
            "pass_cost were the time for each of gamma + 1 tokens": grown / (spent + gamma * pass_cost),
            "it were the time of a token, as a share of the time without a draft": spent / grown,
            "it were the tokens of one pass, whatever its time": grown,
        }
        with hinting(CERTAIN_HINT if alpha == 1 and not math.isfinite(number(returned, called)) else ""):
            _same(returned, grown / spent, called, wrong)
        expect(
            has_format(returned, ".2f"),
            f"{called} to be an int or a float, for the next cells to show; it is {describe(returned)}",
        )

    for case in (
        (0.6, 3, 0.1, 1.7),
        (0.5, 1, 0.25, 1.5),
        (0.8, 4, 0.1, 1.2),
        (0.0, 2, 0.25, 1.5),
        (1.0, 4, 0.1, 1.6),
        (0.9, 5, 0.0, 2.0),
        (0.995, 9, 0.05, 1.5),  # nearly 1, but not 1
    ):
        decide(*case)

    def decide_on_steps(twentieths: int, gamma: int, draft: int, large: int) -> None:
        decide(twentieths / 20, gamma, draft / 20, large / 20)

    for_all(
        decide_on_steps,
        twentieths=st.integers(0, 20),
        gamma=st.integers(1, 12),
        draft=st.integers(0, 20),
        large=st.integers(20, 200),
    )


# Shared by several checks


def _array(value: Any, what: str) -> np.ndarray:
    """Return an answer that later cells use as a numpy array; a list or a tensor lacks its methods.

    Raises
    ------
    NotYet
        When it is something else; `what` completes the sentence "Expected …", such as "an array as the codes".
    """
    expect(
        isinstance(value, np.ndarray) and _numbers(value) is not None,
        f"{what}; it is {describe(value)}",
        "A tensor's .numpy() returns its array." if is_tensor(value) else "",
    )
    array: np.ndarray = value
    return array


def _same(
    returned: Any,
    right: Any,
    what: str,
    wrong: Mapping[str, Any],
    hints: Mapping[str, str] = MappingProxyType({}),
    rel: float = 1e-6,
    **how: Any,
) -> None:
    """Raise `NotYet` unless an answer is right, as `expect_equal` does; name the common mistake with this result.

    Parameters
    ----------
    returned, right, what, rel, **how
        As for `expect_equal`.
    wrong : mapping of str to number, array or None
        The results of mistakes, keyed by the end of the sentence "It is as if …".
    hints : mapping of str to str
        Hints for some of these mistakes.
    """
    try:
        expect_equal(returned, right, what, rel=rel, **how)
    except NotYet as mistake:
        numbers = _numbers(returned)
        guesses = (why for why, value in wrong.items() if _agree(numbers, value, rel) and not _agree(right, value, rel))
        rounded = np.ndim(right) and _agree(numbers, right, 2e-3)
        why = next(guesses, "numbers were rounded to float16, and not float32" if rounded else "")
        raise NotYet(f"{mistake} It is as if {why}." if why else str(mistake), hints.get(why, mistake.hint)) from None


def _plain(value: Any) -> Any:
    """Return an integral number as an int, so that messages show all alike; anything else unchanged."""
    plain = as_number(value)
    return int(plain) if isinstance(plain, float) and plain.is_integer() else value


def _numbers(value: Any) -> np.ndarray | None:
    """Return an answer as an array of floats; None if it isn't one, such as an int too large for a float."""
    try:
        array = numeric_array(value)
        return None if array is None else array.astype(float)
    except (OverflowError, TypeError, ValueError):
        return None


def _agree(first: Any, second: Any, rel: float) -> bool:
    if first is None or second is None or np.shape(first) != np.shape(second):
        return False
    first, second = np.asarray(first, float), np.asarray(second, float)
    return bool(np.allclose(first, second, rtol=rel, atol=rel / 10, equal_nan=True))


def _listed(counts: list[int]) -> str:
    """Return "3", "3 and 1", "3, 1 and 2"."""
    *first, last = map(str, counts)
    return f"{', '.join(first)} and {last}" if first else last
