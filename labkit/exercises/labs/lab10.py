"""Exercises of lab 10: attention, a KV cache, the cost of a pass, weights in groups, drafts."""

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

PAIRS_HINT, TWO_HINT, HEADS_HINT, BYTES_HINT, ORDER_HINT = (
    "Count the pairs of a query and a key that it sees. After 2 cached tokens, 3 new ones see 3, 4 and 5 keys, which "
    "is 12 pairs: 3 · 2 with cached tokens, and 1 + 2 + 3 with new ones. How many are there in general?",
    "Each new token is multiplied by all active weights, whose number already counts all layers. Each weight takes a "
    "multiplication and an addition, which is two operations. Cached tokens take none.",
    "Queries belong to `heads`, keys and values to `kv_heads`. So operations count `heads`, bytes of the cache "
    "`kv_heads`, and both count `layers`. A pair of a query and a key takes 2 · head_size operations for its score, "
    "and as many for its value.",
    "Each weight is read once per pass, whatever the number of tokens. For each token, cached or new, each layer has a "
    "key and a value of `head_size` numbers per KV head, `kv_bytes` bytes each.",
    "Return the operations first, then the bytes of the weights, then those of the cache.",
)
ORDERS = {
    "the bytes of the weights came before the operations": "b, a, c",
    "the bytes of the cache came before those of the weights": "a, c, b",
    "the bytes of the weights and the cache came before the operations": "b, c, a",
}
WEIGHTS = {
    "a multiply-add were one operation": {"2 * model.active": "model.active", "4 * model": "2 * model"},
    "each weight took one operation per token": {"2 * model.active": "model.active"},
    "each weight took two operations per pass": {"weights * tokens": "weights"},
    "the cached tokens were multiplied by the weights again": {"weights * tokens": "weights * (cached + tokens)"},
    "active_weights were those of one block": {"model.active_weights": "model.layers * model.active_weights"},
}
HEADS = {
    "attention had half of its operations": {"4 * model": "2 * model"},
    "attention were in one block": {"4 * model.layers": "4"},
    "attention had one head": {"model.heads * ": ""},
    "only the KV heads had queries": {"model.heads": "model.kv_heads"},
    "every head had its own keys and values": {"model.kv_heads": "model.heads"},
    "there were one block": {"2 * model.layers": "2"},
    "there were one KV head": {"model.kv_heads * ": ""},
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
    | WEIGHTS
    | HEADS
    | {
        "each new token saw all keys, even later ones": {"(tokens + 1) // 2": "tokens"},
        "no token saw its own key": {"(tokens + 1)": "(tokens - 1)"},
        "the keys of the cached tokens were left out": {"tokens * cached + ": ""},
        "the new tokens saw only the cached ones": {" + tokens * (tokens + 1) // 2": ""},
        "the weights were read once per token": {"weight_bytes * model": "tokens * weight_bytes * model"},
        "a weight took 4 bytes": {"weight_bytes * model": "4 * model"},
        "only keys or only values were cached": {"2 * model.layers": "model.layers"},
        "the cache were not read": {"(cached + tokens)": "tokens"},
        "the keys and values of the new tokens were not written": {"(cached + tokens)": "cached"},
        "each number of a key or a value took one byte": {"kv_bytes * ": ""},
        "a number of a key or a value took as many bytes as a weight": {"kv_bytes *": "weight_bytes *"},
    },
    also=[{"tokens * (tokens + 1) // 2": "sum(range(tokens + 1))", "weight_bytes *": "1.0 * weight_bytes *"}],
    hints=(
        PAIRS_HINT,
        HEADS_HINT,
        "pairs = tokens * cached + tokens * (tokens + 1) // 2. Attention takes 4 * head_size operations per pair, in "
        "each of layers * heads heads. Each active weight takes 2 per new token.",
        "2 * model.active_weights * tokens + 4 * model.layers * model.heads * model.head_size * pairs, weight_bytes * "
        "model.active_weights, kv_bytes * 2 * model.layers * model.kv_heads * model.head_size * (cached + tokens)",
    ),
    hint_for=dict.fromkeys(ORDERS, ORDER_HINT) | dict.fromkeys(WEIGHTS, TWO_HINT) | dict.fromkeys(HEADS, HEADS_HINT),
)

# Exercise 4: a scale for each group

GROUPS_HINT, SCALE_HINT, CODES_HINT = (
    "First make a three-dimensional array, weights.reshape(rows, -1, group): its last axis is one group.",
    "The scale is the value of one code step: np.abs(groups).max(axis=-1) / (2 ** (bits - 1) - 1). What is it for a "
    "group of zeros?",
    "scales = np.where(scales == 0, 1, scales); codes = np.round(groups / scales[..., None]).astype('int8'); return "
    "codes.reshape(weights.shape), scales",
)


def _weights(seed: int, bits: int, rows: int, groups: int, group: int) -> tuple[np.ndarray, int, int]:
    """Return weights that are no codes' midpoints, and whose groups differ in size; small ones, as trained, too."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0.003, 0.1, 2.0], (rows, groups, 1))
    weights = rng.standard_normal((rows, groups, group)) * sizes
    return weights.reshape(rows, -1).astype("float32"), bits, group


def _grouped(weights: np.ndarray, bits: int, group: int) -> str:
    return f"in_groups({np.round(weights, 6).tolist()}, {bits}, {group})"


EXERCISES[4] = Reference(
    cases=[
        (np.array(values, "float32"), bits, group)
        for values, bits, group in (
            ([[7, -3.25, 1.75, 0.25]], 4, 4),
            ([[-14, 5, 3, 0.75]], 4, 4),
            ([[3.4, -7, -14, 5, 0.4, 0.2]], 4, 2),
            ([[0, 0, 0.6, -0.25]], 4, 2),
            ([[0.6, -4, 0]], 3, 1),
            ([[1, -0.75, 0.25, 0.125]], 8, 4),
            ([[0.003, -0.0012, 0, 0.0006]], 8, 4),
            ([[3.4, -7, 1, 2], [0.4, -14, 3, 27]], 4, 2),
        )
    ],
    more=st.builds(
        _weights, st.integers(0, 99), st.integers(2, 8), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5)
    ),
    case=_grouped,
    returns=(
        Result("codes", array=True, hint=SCALE_HINT),
        Result("scales", rel=1e-4, abs=1e-8, array=True, hint=SCALE_HINT),
    ),
    wrong={
        "the scale were the largest weight": {" / (2 ** (bits - 1) - 1)": ""},
        "the largest code were 8, not 7": {"(2 ** (bits - 1) - 1)": "2 ** (bits - 1)"},
        "the codes went up to 15, not 7": {"(2 ** (bits - 1) - 1)": "(2**bits - 1)"},
        "the absolute value had not been taken": {"np.abs(groups).max": "groups.max"},
        "each row had one scale": {
            "np.abs(groups).max(axis=-1)": "np.abs(groups).max(axis=(1, 2))[:, None] + 0 * groups[..., 0]"
        },
        "all weights had one scale": {"np.abs(groups).max(axis=-1)": "np.abs(groups).max() + 0 * groups[..., 0]"},
        "codes were truncated, not rounded to the nearest integer": {
            "np.round(groups / scales[..., None])": "(groups / scales[..., None])"
        },
        "weights were multiplied by the scale": {"groups / scales": "groups * scales"},
        "codes were not rounded": {'np.round(groups / scales[..., None]).astype("int8")': "groups / scales[..., None]"},
    },
    also=[{"np.round(groups": "np.rint(groups"}, {"np.where(scales == 0, 1, scales)": "scales + (scales == 0)"}],
    hints=(GROUPS_HINT, SCALE_HINT, CODES_HINT),
)

# Exercise 5: what is accepted

FIRST_HINT, OWN_HINT = (
    "Go through the proposed tokens in order. Which is the first that the large model would not have written?",
    "After the right tokens, the large model's own choice is known as well, choices[right]: it is right by definition. "
    "That also holds if all of the proposed tokens are right, or none.",
)
TOO_FEW = "the large model's own token after the accepted ones were lost"

EXERCISES[5] = Reference(
    cases=[
        ([5, 6, 7], [5, 9, 8, 4]),
        ([5, 6, 7], [5, 6, 7, 8]),
        ([5, 6, 7], [9, 8, 4, 3]),
        ([5, 6, 7], [9, 6, 7, 8]),
        ([5, 6, 7], [6, 5, 7, 8]),
        ([5, 6, 7, 7], [5, 9, 7, 7, 7]),
        ([], [4]),
        ([50_001, 50_002], [50_001, 50_002, 50_003]),
    ],
    more=st.integers(0, 6).flatmap(
        lambda n: st.tuples(*(st.lists(st.integers(0, 2), min_size=k, max_size=k) for k in (n, n + 1)))
    ),
    returns=(Result(hint=FIRST_HINT),),
    wrong={
        TOO_FEW: {"[*proposed[:right], choices[right]]": "proposed[:right]"},
        "it were all choices of the large model": {"[*proposed[:right], choices[right]]": "choices"},
        "it were all proposed tokens": {"[*proposed[:right], choices[right]]": "proposed"},
        "the first wrong token were accepted too": {"[*proposed[:right], choices[right]]": "proposed[: right + 1]"},
        "only a whole proposal could be accepted": {
            "[*proposed[:right], choices[right]]": "choices if proposed == choices[:-1] else choices[:1]"
        },
        "right tokens after a wrong one counted": {
            "[*proposed[:right], choices[right]]": "[a for a, b in zip(proposed, choices) if a == b] + [choices[right]]"
        },
    },
    also=[{"[*proposed[:right], choices[right]]": "choices[: right + 1]"}],
    hints=(FIRST_HINT, OWN_HINT, "count the equal tokens at the beginning in `right`; return choices[: right + 1]"),
    hint_for={TOO_FEW: OWN_HINT},
)

# Exercise 6: is it worth it?

GROWN_HINT, TIME_HINT = (
    "Take gamma = 2. In any case, the text grows by one token, the large model's own. It grows by a second if the "
    "first proposed token is right. When does it grow by a third, and with which probability?",
    "Take the large model's time for one token as 1, in which it would write one token alone. In one pass, the draft "
    "proposes `gamma` tokens, each in `draft_cost`, and the large model reads all of them in `pass_cost`.",
)
SPENT, GROWN = "(gamma * draft_cost + pass_cost)", "sum(alpha**right for right in range(gamma + 1))"
LOST = {
    "the large model's own token did not count": {GROWN: f"({GROWN} - 1)"},
    "the large model wrote none after gamma right tokens": {"range(gamma + 1)": "range(gamma)"},
    "tokens after a wrong one counted too": {GROWN: "(1 + alpha * gamma)"},
    "the text grew by gamma + 1 tokens in each pass": {GROWN: "(gamma + 1)"},
    "the text grew by all tokens or by one": {GROWN: "(1 + gamma * alpha**gamma)"},
}
SPENT_WRONGLY = {
    "the draft took no time": {SPENT: "pass_cost"},
    "the draft wrote one token per pass": {"gamma * draft_cost": "draft_cost"},
    "the draft wrote gamma + 1 tokens per pass": {"gamma * draft_cost": "(gamma + 1) * draft_cost"},
    "the large model's pass took as long as for one token": {"+ pass_cost": "+ 1"},
    "pass_cost were the time for each of gamma + 1 tokens": {"+ pass_cost": "+ (gamma + 1) * pass_cost"},
    "it were the time of a token, as a share of the time without a draft": {f"grown / {SPENT}": f"{SPENT} / grown"},
    "it were the tokens of one pass, whatever its time": {f" / {SPENT}": ""},
}

EXERCISES[6] = Reference(
    cases=[
        (0.6, 3, 0.1, 1.7),
        (0.5, 1, 0.25, 1.5),
        (0.8, 4, 0.1, 1.2),
        (0.0, 2, 0.25, 1.5),
        (0.9, 5, 0.0, 2.0),
        (0.995, 9, 0.05, 1.5),  # nearly 1, but not 1
        (1.0, 4, 0.1, 1.6),
    ],
    more=st.tuples(
        st.sampled_from([twentieth / 20 for twentieth in range(21)]),
        st.integers(1, 12),
        st.sampled_from((0.0, 0.05, 0.3, 1.0)),
        st.sampled_from((1.0, 1.4, 3.0)),
    ),
    returns=(Result(format=".2f"),),
    wrong=LOST | SPENT_WRONGLY,
    also=[{GROWN: "(gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha))"}],
    hints=(
        GROWN_HINT,
        TIME_HINT,
        "On average, the text grows by 1 + alpha + … + alpha**gamma tokens per pass. Add up the terms with a loop or "
        "`sum`: the closed formula divides by 1 - alpha, so it fails for alpha = 1.",
        "sum(alpha**i for i in range(gamma + 1)) / (gamma * draft_cost + pass_cost)",
    ),
    hint_for=dict.fromkeys(LOST, GROWN_HINT) | dict.fromkeys(SPENT_WRONGLY, TIME_HINT),
)
