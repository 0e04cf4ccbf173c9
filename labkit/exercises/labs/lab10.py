"""Exercises of lab 10: attention, a KV cache, the cost of a pass."""

import itertools
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
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
LARGE_HINT = (
    "Softmax stays the same if you subtract one number from all scores of a query. Subtract the largest that it sees: "
    "np.exp then gives 1 for that one, and at most 1 for the others."
)
OVERFLOW = "np.exp got the scores as they are, and overflowed"
# Scores of 4 queries with 4 keys. Masked scores, and those of other queries, are sometimes far larger.
LARGE_SCORES = ((-1000, 900, 0, 1000), (-999, -1000, 1000, 1000), (1000, 1001, 999, -1000), (800, 801, 800, 799))


def _seen(n: int, m: int, later: int = 0) -> np.ndarray:
    return np.tri(n, m, m - n + later, dtype=bool)


def _attention(
    seen: Callable[[int, int], np.ndarray] = _seen,
    root: float = 0.5,
    axis: int = -1,
    hidden: float = -np.inf,
    late: bool = False,
    shift: bool = True,
    dtype: str = "float64",
) -> Callable[..., np.ndarray]:
    """Return attention with another mask, divisor, softmax or type of the result."""

    def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        mask = seen(q.shape[1], k.shape[1])
        scores = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / q.shape[2] ** root
        scores = np.where(mask | late, scores, hidden)
        shares = np.exp(scores - scores.max(axis=axis, keepdims=True) if shift else scores)
        shares = shares / shares.sum(axis=axis, keepdims=True) * (mask if late else 1)
        result: np.ndarray = (shares @ v.astype(float)).astype(dtype)
        return result

    return attention


MASKS = {
    "each query saw all keys, including later ones": _attention(seen=lambda n, m: _seen(n, m, m)),
    "query i were token i, not token m - n + i": _attention(seen=lambda n, m: _seen(n, m, n - m)),
    "a token did not see its own key": _attention(seen=lambda n, m: _seen(n, m, -1)),
    "each query saw only its own key and later ones": _attention(seen=lambda n, m: ~_seen(n, m, -1)),
    "each query saw only later keys": _attention(seen=lambda n, m: ~_seen(n, m)),
}


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> str:
    (heads, n, d), m = q.shape, k.shape[1]
    return f"attention with {plural(heads, 'head')}, n = {n}, m = {m} and d = {d}"


def _equal_scores(n: int, m: int) -> Case:
    values = np.array([[[6, 0], [0, 6], [3, 9], [7, 1]]], np.float32)[:, :m]
    args = np.ones((1, n, 2), np.float32), np.ones((1, m, 2), np.float32), values
    return Case(args, f"{_attended(*args)}, all scores equal,", "a mean of the values that the query sees")


def _large(n: int) -> Case:
    keys, values = 2 * np.eye(4, dtype="float32")[None], np.arange(16, dtype="float32").reshape(1, 4, 4)
    args = np.array([LARGE_SCORES[-n:]], "float32"), keys, values
    return Case(args, f"{_attended(*args)}, scores from -1000 to 1001,")


def _normal(heads: int, n: int, m: int, d: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(10 * m + n)
    return tuple(rng.normal(0, 1.5, (heads, count, d)).astype("float32") for count in (n, m, m))


def _exact(heads: int, n: int, more: int, root: int, size: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return integers, and a root that is a power of two, whose scores are exact in float32, up to 1024."""
    rng, m = np.random.default_rng(seed), n + more
    return tuple(rng.integers(-size, size + 1, (heads, count, root**2)).astype("float32") for count in (n, m, m))


EXERCISES[1] = Reference(
    cases=[
        *itertools.starmap(_equal_scores, ((3, 3), (2, 4), (1, 3))),
        *itertools.starmap(
            _normal, ((1, 3, 3, 5), (2, 3, 3, 5), (3, 2, 5, 4), (2, 1, 4, 3), (1, 1, 1, 2), (2, 4, 6, 2))
        ),
        *map(_large, (4, 3)),
    ],
    more=st.builds(
        _exact,
        *(st.integers(1, 3), st.integers(1, 4), st.integers(0, 3)),
        *(st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 16)), st.integers(0, 99)),
    ),
    case=_attended,
    returns=(Result(rel=1e-4, abs=5e-4, array=True),),  # float32, in sums of numbers up to 16 that nearly cancel
    wrong=MASKS
    | {
        "later keys had a finite score, such as 0, which counts in the softmax": _attention(hidden=0),
        "shares were set to 0 after the softmax, so that the others no longer add up to 1": _attention(late=True),
        "the scores were divided by d": _attention(root=1),
        "the scores were not divided by the root of d": _attention(root=0),
        "the softmax ran over the queries, not the keys": _attention(axis=-2),
        OVERFLOW: _attention(shift=False),
        "numbers were rounded to float16, and not float32": _attention(dtype="float16"),
    },
    also=[_attention()],
    hints=(
        "Number the tokens from 0 to m - 1. Key j belongs to token j. Query i belongs to one of the last n tokens: "
        "which?",
        MASK_HINT,
        "later = np.arange(m) > np.arange(m - n, m)[:, None]",
    ),
    hint_for=dict.fromkeys(MASKS, MASK_HINT) | {OVERFLOW: LARGE_HINT},
)

# Exercise 2: a KV cache

AXIS_HINT, PAST_HINT = (
    "Which axis of (heads, n, d) counts the tokens? Append the new ones along this axis.",
    "np.concatenate([first, second], axis=1) joins two arrays along axis 1, and returns a new array. Which is the "
    "first? And what is there to do if `past` is None?",
)
HEADS = "the new tokens were appended along axis 0, the heads"
NUMBERS = "the new tokens were appended along axis 2, the numbers"


def _passes(remember: Callable[..., Any], heads: int, d: int, counts: list[int], texts: int = 1) -> Any:
    """Return all keys and values of the first of some texts, after passes that take turns, with these many tokens."""
    pasts: list[Any] = [None] * texts
    for past, n in zip(itertools.accumulate(counts, initial=0), counts, strict=False):
        for text in range(texts):
            head, token, place = np.ogrid[:heads, past : past + n, :d]
            keys = (1000 * (head + 1) + 10 * token + place + 5000 * text).astype("float32")  # all different
            pasts[text] = remember(pasts[text], keys, keys + np.float32(0.5))
    return pasts[0]


def _passed(heads: int, d: int, counts: list[int], texts: int = 1) -> str:
    tokens = " and ".join(filter(None, [", ".join(map(str, counts[:-1])), str(counts[-1])]))
    return f"{plural(heads, 'head')}, d = {d}, after {tokens} tokens" + ", in turn with another text" * (texts > 1)


def _append(old: np.ndarray, new: np.ndarray, axis: int = 1) -> np.ndarray:
    return np.concatenate([old, new], axis)


def _later(join: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `remember` that is right in the first pass, and then returns `join(keys, values, k, v)`."""
    return lambda past, k, v: (k, v) if past is None else join(*past, k, v)


def _each(join: Callable[..., np.ndarray] = _append) -> Callable[..., Any]:
    """Return a `remember` that joins past and new tokens in this way."""
    return _later(lambda keys, values, k, v: (join(keys, k), join(values, v)))


EXERCISES[2] = Reference(
    cases=[(2, 4, [3]), (2, 4, [3, 3]), (3, 2, [2, 1, 1]), (1, 3, [1, 4, 2]), (2, 2, [2, 2], 2)],
    more=st.tuples(
        st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 2)
    ),
    use=_passes,
    case=_passed,
    returns=(Result("keys", array=True, hint=PAST_HINT), Result("values", array=True, hint=PAST_HINT)),
    wrong={
        "the new tokens came before the past ones": _each(lambda old, new: _append(new, old)),
        "the past tokens were forgotten": _each(lambda old, new: new),
        "the new tokens were left out": _each(lambda old, new: old),
        HEADS: _each(lambda old, new: _append(old, new, 0)),
        NUMBERS: _each(lambda old, new: _append(old, new, 2)),
        "keys and values were exchanged": lambda past, k, v: _each()(past, v, k),
        "keys and values were exchanged in the first pass": lambda past, k, v: _each()(past, k, v) if past else (v, k),
        "the past keys and values were exchanged": _later(lambda keys, values, k, v: _each()((values, keys), k, v)),
        "the values were the keys": _later(lambda keys, values, k, v: _each()((keys, keys), k, k)),
        "the keys were the values": _later(lambda keys, values, k, v: _each()((values, values), v, v)),
        "the new keys were appended to the values": _later(lambda keys, values, k, v: _each()((keys, values), k, k)),
        "numbers were rounded to float16, and not float32": _each(lambda old, new: _append(old, new).astype("float16")),
    },
    also=[_each(), _each(lambda old, new: np.append(old, new, axis=-2)), _each(lambda old, new: np.hstack((old, new)))],
    hints=(
        AXIS_HINT,
        PAST_HINT,
        "if past is None: return k, v; then keys, values = past, and return np.concatenate([keys, k], axis=1), "
        "np.concatenate([values, v], axis=1)",
    ),
    hint_for={HEADS: AXIS_HINT, NUMBERS: AXIS_HINT},
)

# Exercise 3: the cost of a pass

PAIRS_HINT, BYTES_HINT, ORDER_HINT = (
    "Count the pairs of a query and a key that it sees. The first new token sees the cached ones and itself, the next "
    "one more, and so on: how many pairs is that for all new tokens?",
    "Each weight is read once per pass, whatever the number of tokens. For each token, cached or new, each layer has a "
    "key and a value of `head_size` numbers per KV head, `kv_bytes` bytes each.",
    "Return the operations first, then the bytes of the weights, then those of the cache.",
)


Model = namedtuple("Model", "layers heads kv_heads head_size active_weights")


def _counts(t: int, c: int, m: Any, w: float, k: int) -> SimpleNamespace:
    """Return the case with the counts from which costs are made."""
    matmuls, pair, pairs = 2 * m.active_weights * t, 4 * m.layers * m.heads * m.head_size, t * c + t * (t + 1) / 2
    cache = 2 * m.layers * m.kv_heads * m.head_size * k * (c + t)
    return SimpleNamespace(t=t, c=c, m=m, w=w, k=k, matmuls=matmuls, pair=pair, pairs=pairs, cache=cache)


def _cost(
    operations: Callable[..., float] = lambda p: p.matmuls + p.pair * p.pairs,
    weights: Callable[..., float] = lambda p: p.w * p.m.active_weights,
    cache: Callable[..., float] = lambda p: p.cache,
    order: tuple[int, int, int] = (0, 1, 2),
) -> Callable[..., Any]:
    """Return a `cost` in which one of these differs from the right one."""
    formulas = operations, weights, cache
    return lambda *case: [formulas[index](_counts(*case)) for index in order]


ORDERS = {
    "the bytes of the weights came before the operations": _cost(order=(1, 0, 2)),
    "the bytes of the cache came before those of the weights": _cost(order=(0, 2, 1)),
    "the bytes of the weights and the cache came before the operations": _cost(order=(1, 2, 0)),
}

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
    wrong=ORDERS
    | {
        "each new token saw all keys, even later ones": _cost(lambda p: p.matmuls + p.pair * p.t * (p.c + p.t)),
        "no token saw its own key": _cost(lambda p: p.matmuls + p.pair * (p.pairs - p.t)),
        "the keys of the cached tokens were left out": _cost(lambda p: p.matmuls + p.pair * p.t * (p.t + 1) / 2),
        "the new tokens saw only the cached ones": _cost(lambda p: p.matmuls + p.pair * p.t * p.c),
        "attention had half of its operations": _cost(lambda p: p.matmuls + p.pair * p.pairs / 2),
        "a multiply-add were one operation": _cost(lambda p: (p.matmuls + p.pair * p.pairs) / 2),
        "each weight took one operation per token": _cost(lambda p: p.matmuls / 2 + p.pair * p.pairs),
        "each weight took two operations per pass": _cost(lambda p: p.matmuls / p.t + p.pair * p.pairs),
        "the cached tokens were multiplied by the weights again": _cost(
            lambda p: p.matmuls * (1 + p.c / p.t) + p.pair * p.pairs
        ),
        "attention were in one block": _cost(lambda p: p.matmuls + p.pair * p.pairs / p.m.layers),
        "attention had one head": _cost(lambda p: p.matmuls + p.pair * p.pairs / p.m.heads),
        "only the KV heads had queries": _cost(lambda p: p.matmuls + p.pair * p.pairs * p.m.kv_heads / p.m.heads),
        "active_weights were those of one block": _cost(
            lambda p: p.m.layers * p.matmuls + p.pair * p.pairs, lambda p: p.m.layers * p.w * p.m.active_weights
        ),
        "the weights were read once per token": _cost(weights=lambda p: p.t * p.w * p.m.active_weights),
        "a weight took 4 bytes": _cost(weights=lambda p: 4 * p.m.active_weights),
        "every head had its own keys and values": _cost(cache=lambda p: p.cache * p.m.heads / p.m.kv_heads),
        "only keys or only values were cached": _cost(cache=lambda p: p.cache / 2),
        "the cache were not read": _cost(cache=lambda p: p.cache * p.t / (p.c + p.t)),
        "the keys and values of the new tokens were not written": _cost(cache=lambda p: p.cache * p.c / (p.c + p.t)),
        "each number of a key or a value took one byte": _cost(cache=lambda p: p.cache / p.k),
        "a number of a key or a value took as many bytes as a weight": _cost(cache=lambda p: p.cache / p.k * p.w),
        "there were one block": _cost(cache=lambda p: p.cache / p.m.layers),
        "there were one KV head": _cost(cache=lambda p: p.cache / p.m.kv_heads),
    },
    also=[_cost()],
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
