"""Exercises of lab 10: attention, a KV cache, the cost of a pass."""

from collections import namedtuple
from collections.abc import Callable
from itertools import accumulate, starmap
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.system.words import plural

EXERCISES: dict[int, Reference] = {}

# Exercise 1: attention

MASK_HINT = (
    "Query i belongs to token m - n + i, and sees the keys 0 to m - n + i. np.arange(m) holds the tokens of the keys, "
    "and np.arange(m - n, m)[:, None] those of the queries, one per row."
)
MASKS = {
    "each query saw all keys, including later ones": {"np.arange(m - n, m)[:, None]": "m"},
    "query i were token i, not token m - n + i": {"np.arange(m - n, m)": "np.arange(n)"},
    "a token did not see its own key": {"np.arange(m) >": "np.arange(m) >="},
    "each query saw only its own key and later ones": {"np.arange(m) >": "np.arange(m) <"},
    "each query saw only later keys": {"np.arange(m) >": "np.arange(m) <="},
}


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> str:
    (heads, n, d), m = q.shape, k.shape[1]
    return f"attention with {plural(heads, 'head')}, n = {n}, m = {m} and d = {d}"


def _equal_scores(n: int, m: int) -> Case:
    values = np.array([[[6, 0], [0, 6], [3, 9], [7, 1]]], np.float32)[:, :m]
    args = np.ones((1, n, 2), np.float32), np.ones((1, m, 2), np.float32), values
    return Case(args, f"{_attended(*args)}, all scores equal,", "a mean of the values that the query sees")


def _normal(heads: int, n: int, more: int, d: int, size: float = 1.5) -> tuple[np.ndarray, ...]:
    rng, m = np.random.default_rng(11 * n + 10 * more), n + more
    return tuple(rng.normal(0, size, (heads, count, d)).astype("float32") for count in (n, m, m))


EXERCISES[1] = Reference(
    cases=[
        *starmap(_equal_scores, ((3, 3), (2, 4), (1, 3))),
        *starmap(_normal, ((1, 3, 0, 5), (2, 3, 0, 5), (3, 2, 3, 4), (2, 1, 3, 3), (1, 1, 0, 2), (2, 4, 2, 2))),
        *starmap(_normal, ((1, 4, 0, 4, 30), (1, 3, 1, 4, 30))),  # scores that np.exp can't take
    ],
    more=st.builds(_normal, st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.integers(1, 16)),
    case=_attended,
    returns=(Result(rel=1e-4, abs=5e-4, array=True),),  # float32, in sums of numbers up to 100 that nearly cancel
    wrong=MASKS
    | {
        "later keys had a finite score, such as 0, which counts in the softmax": {"-np.inf": "0"},
        "shares were set to 0 only after the softmax": {"-np.inf": "scores", "@ v": "* ~later @ v"},
        "the scores were divided by d": {"d**0.5": "d"},
        "the scores were not divided by the root of d": {" / d**0.5": ""},
        "the softmax ran over the queries, not the keys": {"axis=-1": "axis=-2"},
        "np.exp got the scores as they are, and overflowed": {" - scores.max(axis=-1, keepdims=True)": ""},
    },
    also=[{"np.arange(m) > np.arange(m - n, m)[:, None]": "~np.tri(n, m, m - n, dtype=bool)"}],
    hints=(
        "Number the tokens from 0 to m - 1. Key j belongs to token j. Query i belongs to one of the last n tokens: "
        "which?",
        MASK_HINT,
        "later = np.arange(m) > np.arange(m - n, m)[:, None]",
    ),
    hint_for=dict.fromkeys(MASKS, MASK_HINT),
)

# Exercise 2: a KV cache

AXIS_HINT = "Which axis of (heads, n, d) counts the tokens? Append the new ones along this axis."
PAST_HINT = (
    "np.concatenate([first, second], axis=1) joins two arrays along axis 1, and returns a new array. Which is the "
    "first? And what is there to do if `past` is None?"
)
AXES = {
    "the new tokens were appended along axis 0, the heads": {"axis=1": "axis=0"},
    "the new tokens were appended along axis 2, the numbers": {"axis=1": "axis=2"},
}


def _passes(remember: Callable[..., Any], heads: int, d: int, counts: list[int], texts: int = 1) -> Any:
    """Return all keys and values of the first of some texts, after passes that take turns, with these many tokens."""
    pasts: list[Any] = [None] * texts
    for past, n in zip(accumulate(counts, initial=0), counts, strict=False):
        for text in range(texts):
            head, token, place = np.ogrid[:heads, past : past + n, :d]
            keys = (1000 * (head + 1) + 10 * token + place + 5000 * text).astype("float32")  # all different
            pasts[text] = remember(pasts[text], keys, keys + np.float32(0.5))
    return pasts[0]


def _passed(heads: int, d: int, counts: list[int], texts: int = 1) -> str:
    tokens = " and ".join(filter(None, [", ".join(map(str, counts[:-1])), str(counts[-1])]))
    return f"{plural(heads, 'head')}, d = {d}, after {tokens} tokens" + ", in turn with another text" * (texts > 1)


EXERCISES[2] = Reference(
    cases=[(2, 4, [3]), (2, 4, [3, 3]), (3, 2, [2, 1, 1]), (1, 3, [1, 4, 2]), (2, 2, [2, 2], 2)],
    more=st.tuples(
        st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 2)
    ),
    use=_passes,
    case=_passed,
    returns=(Result("keys", array=True, hint=PAST_HINT), Result("values", array=True, hint=PAST_HINT)),
    wrong=AXES
    | {
        "the new tokens came before the past ones": {"[keys, k]": "[k, keys]", "[values, v]": "[v, values]"},
        "the past tokens were forgotten": {"past is None": "True"},
        "the new tokens were left out": {"keys, values = past": "return past"},
        "keys and values were exchanged": {"(past, k, v)": "(past, v, k)"},
        "keys and values were exchanged in the first pass": {"return k, v": "return v, k"},
        "the past keys and values were exchanged": {"keys, values = past": "values, keys = past"},
        "the values were the keys": {"[values, v]": "[keys, k]"},
        "the keys were the values": {"[keys, k]": "[values, v]"},
        "the new keys were appended to the values": {"[values, v]": "[values, k]"},
    },
    also=[
        {"np.concatenate([keys, k], axis=1)": "np.append(keys, k, axis=-2)"},
        {"np.concatenate([values, v], axis=1)": "np.hstack((values, v))"},
    ],
    hints=(
        AXIS_HINT,
        PAST_HINT,
        "if past is None: return k, v; then keys, values = past, and return np.concatenate([keys, k], axis=1), "
        "np.concatenate([values, v], axis=1)",
    ),
    hint_for=dict.fromkeys(AXES, AXIS_HINT),
)

# Exercise 3: the cost of a pass

PAIRS_HINT, BYTES_HINT, ORDER_HINT = (
    "Count the pairs of a query and a key that it sees. The first new token sees the cached ones and itself, the next "
    "one more, and so on: how many pairs is that for all new tokens?",
    "Each weight is read once per pass, whatever the number of tokens. For each token, cached or new, each layer has a "
    "key and a value of `head_size` numbers per KV head, `kv_bytes` bytes each.",
    "Return the operations first, then the bytes of the weights, then those of the cache.",
)
ORDERS = {
    "the bytes of the weights came before the operations": "b, a, c",
    "the bytes of the cache came before those of the weights": "a, c, b",
    "the bytes of the weights and the cache came before the operations": "b, c, a",
}
Model = namedtuple("Model", "layers heads kv_heads head_size active_weights")


def _ordered(order: str) -> dict[str, str]:
    return {"def cost(": f"def cost(*case):\n    a, b, c = right(*case)\n    return {order}\n\n\ndef right("}


EXERCISES[3] = Reference(
    cases=[
        (4, 7, Model(5, 21, 7, 5, 1000), 0.5, 8),  # sizes for which no two mistakes give the same number
        (1, 0, Model(1, 1, 1, 1, 12), 4, 4),
        (1, 7, Model(2, 4, 1, 5, 600), 4, 2),
        (4, 0, Model(2, 3, 3, 5, 600), 4, 4),
        (5, 7, Model(2, 4, 2, 5, 600), 1, 1),
        (1, 512, Model(32, 32, 8, 128, 7_504_658_432), 0.53125, 2),
    ],
    more=st.tuples(
        st.integers(1, 600),
        st.integers(0, 600),
        st.builds(
            lambda layers, shared, kv_heads, size, weights: Model(layers, shared * kv_heads, kv_heads, size, weights),
            *(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 10**6)),
        ),
        st.sampled_from((4, 2, 1, 0.53125)),
        st.sampled_from((4, 2, 1)),
    ),
    returns=(
        Result("operations", rel=1e-9, format=".1f", hint=PAIRS_HINT),
        Result("bytes of the weights", rel=1e-9, format=".1f", hint=BYTES_HINT),
        Result("bytes of the cache", rel=1e-9, format=".1f", hint=BYTES_HINT),
    ),
    wrong={why: _ordered(order) for why, order in ORDERS.items()}
    | {
        "each new token saw all keys, even later ones": {"(tokens + 1) // 2": "tokens"},
        "no token saw its own key": {"(tokens + 1)": "(tokens - 1)"},
        "the keys of the cached tokens were left out": {"tokens * cached + ": ""},
        "the new tokens saw only the cached ones": {" + tokens * (tokens + 1) // 2": ""},
        "attention had half of its operations": {"4 * model": "2 * model"},
        "a multiply-add were one operation": {"2 * model.active": "model.active", "4 * model": "2 * model"},
        "each weight took one operation per token": {"2 * model.active": "model.active"},
        "each weight took two operations per pass": {"weights * tokens": "weights"},
        "the cached tokens were multiplied by the weights again": {"weights * tokens": "weights * (cached + tokens)"},
        "attention were in one block": {"4 * model.layers": "4"},
        "attention had one head": {"model.heads * ": ""},
        "only the KV heads had queries": {"model.heads": "model.kv_heads"},
        "active_weights were those of one block": {"model.active_weights": "model.layers * model.active_weights"},
        "the weights were read once per token": {"weight_bytes * model": "tokens * weight_bytes * model"},
        "a weight took 4 bytes": {"weight_bytes * model": "4 * model"},
        "every head had its own keys and values": {"model.kv_heads": "model.heads"},
        "only keys or only values were cached": {"2 * model.layers": "model.layers"},
        "the cache were not read": {"(cached + tokens)": "tokens"},
        "the keys and values of the new tokens were not written": {"(cached + tokens)": "cached"},
        "each number of a key or a value took one byte": {"kv_bytes * ": ""},
        "a number of a key or a value took as many bytes as a weight": {"kv_bytes *": "weight_bytes *"},
        "there were one block": {"2 * model.layers": "2"},
        "there were one KV head": {"model.kv_heads * ": ""},
    },
    also=[{"tokens * (tokens + 1) // 2": "sum(range(tokens + 1))", "weight_bytes *": "1.0 * weight_bytes *"}],
    hints=(
        PAIRS_HINT,
        "pairs = tokens * cached + tokens * (tokens + 1) / 2, in each of layers * heads heads. A pair takes 2 · "
        "head_size operations with the key, and as many with the value. The cache has keys and values of the KV heads "
        "only.",
        "2 * model.active_weights * tokens + 4 * model.layers * model.heads * model.head_size * pairs, weight_bytes * "
        "model.active_weights, kv_bytes * 2 * model.layers * model.kv_heads * model.head_size * (cached + tokens)",
    ),
    hint_for=dict.fromkeys(ORDERS, ORDER_HINT),
)
