import numpy as np
import pytest
from labs import Student, ThreeWays, after, same, swap


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("10", {"np": np})


# --- Exercise 1: attention ---

LATER = "np.arange(m) > np.arange(m - n, m)[:, None]"
SOFTMAX = """    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
"""
MASKED = "    scores = np.where(later, -np.inf, scores)\n"
MASKED_SOFTMAX = """    scores = np.where(later, -np.inf, scores)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
"""
NOT_MASKED = swap(MASKED, "")
BY_A_TRIANGLE = swap(LATER, "~np.tril(np.ones((n, m), bool))")
STRICT_TRIANGLE = swap(LATER, "~np.tri(n, m, m - n - 1, dtype=bool)")
MASKED_BY_ZERO = swap("-np.inf, scores)", "0, scores)")
MASKED_BY_A_PRODUCT = swap(MASKED, "    scores = scores * ~later\n")
MASKED_TOO_LATE = swap(
    MASKED_SOFTMAX,
    """    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    shares = np.where(later, 0, shares)
""",
)
MAXIMUM_OF_ALL = swap("scores.max(axis=-1, keepdims=True)", "scores.max()")
MAXIMUM_OF_A_HEAD = swap("scores.max(axis=-1, keepdims=True)", "scores.max(axis=(-2, -1), keepdims=True)")
MAXIMUM_BEFORE_MASK = swap(
    MASKED_SOFTMAX,
    """    shares = np.exp(scores - scores.max(axis=-1, keepdims=True)) * ~later
    shares /= shares.sum(axis=-1, keepdims=True)
""",
)
CLIPPED = swap("np.exp(scores - scores.max(axis=-1, keepdims=True))", "np.exp(np.clip(scores, None, 80))")
WRONG_AXIS = swap("axis=-1", "axis=-2")
ONE_HEAD = swap("    return shares @ v", "    return shares @ v[:1]")
IN_PLACE = swap("    n, m, d =", "    q /= q.shape[2] ** 0.5\n    n, m, d =")
QUERIES_FIRST = swap("return shares @ v", "return (shares @ v).transpose(1, 0, 2)")
JOINED = swap("    return shares @ v", "    return (shares @ v).transpose(1, 0, 2).reshape(n, -1)")
BY_LOOPS = after(
    '    """Return what each query gathers from the values of the tokens up to its own."""',
    """    result = np.zeros(q.shape)
    for head in range(len(q)):
        for i in range(q.shape[1]):
            last = k.shape[1] - q.shape[1] + i
            scores = [float(np.dot(q[head, i], k[head, j])) / q.shape[2] ** 0.5 for j in range(last + 1)]
            shares = [np.exp(score - max(scores)) for score in scores]
            for share, value in zip(shares, v[head], strict=False):
                result[head, i] += share / sum(shares) * value
    return result
""",
)
BY_EINSUM = after(
    '    """Return what each query gathers from the values of the tokens up to its own."""',
    """    n, m = q.shape[1], k.shape[1]
    scores = np.einsum("hid,hjd->hij", q * q.shape[-1] ** -0.5, k)
    scores = scores + np.where(np.tri(n, m, m - n), 0, -1e9)
    scores -= np.log(np.exp(scores - scores.max(-1)[..., None]).sum(-1))[..., None] + scores.max(-1)[..., None]
    return np.einsum("hij,hjd->hid", np.exp(scores), v)
""",
)
DIVIDED_LAST = swap(
    "    shares /= shares.sum(axis=-1, keepdims=True)\n    return shares @ v",
    "    return shares @ v / shares.sum(axis=-1, keepdims=True)",
)
BY_SCIPY = swap(SOFTMAX, "    import scipy.special\n    shares = scipy.special.softmax(scores, axis=2)\n")
BY_LOGARITHM = swap(
    SOFTMAX,
    """    import scipy.special
    scores = scores.astype("float32")
    shares = np.exp(scores - scipy.special.logsumexp(scores, axis=-1, keepdims=True).astype("float32"))
""",
)
IN_FLOAT32 = swap(MASKED, "    scores = (scores + np.float32(-1e9) * later).astype('float32')\n")
WITH_TRIU = swap(LATER, "np.triu(np.ones((n, m)), k=m - n + 1).astype(bool)")
PADDED = after(
    '    """Return what each query gathers from the values of the tokens up to its own."""',
    """    (heads, n, d), m = q.shape, k.shape[1]
    q = np.concatenate([np.zeros((heads, m - n, d)), q], axis=1)
    scores = np.where(np.tri(m), q @ k.swapaxes(1, 2) / np.sqrt(d), -1e30)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (shares @ v / shares.sum(axis=-1, keepdims=True))[:, m - n :]
""",
)

# --- Exercise 2: the cache ---

BOTH = "return np.concatenate([keys, k], axis=1), np.concatenate([values, v], axis=1)"
BY_A_GLOBAL = after(
    '    """Return all keys and all values so far."""',
    """    global so_far
    so_far = [k, v] if past is None else [np.concatenate(pair, axis=1) for pair in zip(so_far, (k, v))]
    return so_far
""",
)
PAST_IN_PLACE = swap(
    BOTH,
    """for place, new in enumerate((k, v)):
        past[place] = np.concatenate([past[place], new], axis=1)
    return past""",
)
PAST_LIST_IN_PLACE = after(
    '    """Return all keys and all values so far."""',
    """    if past is None:
        return [k, v]
    for place, new in enumerate((k, v)):
        past[place] = np.concatenate([past[place], new], axis=1)
    return past
""",
)
IN_ONE_ARRAY = after(
    '    """Return all keys and all values so far."""',
    """    new = np.array([k, v])
    return new if past is None else np.concatenate((past, new), axis=2)
""",
)
BY_IDENTITY = after(
    '    """Return all keys and all values so far."""',
    """    known = remember.__dict__.setdefault("known", {})
    keys, values = (k[:, :0], v[:, :0]) if past is None else known[id(past)]
    so_far = np.concatenate([keys, k], axis=1), np.concatenate([values, v], axis=1)
    known[id(so_far)] = so_far
    return so_far
""",
)
BY_APPEND = swap(BOTH, "return [np.append(keys, k, axis=-2), np.hstack((values, v))]")
FILLED = swap(
    BOTH,
    """m, n = keys.shape[1], k.shape[1]
    result = np.empty((2, len(k), m + n, k.shape[2]), k.dtype)
    result[0, :, :m], result[1, :, :m] = keys, values
    result[0, :, m:], result[1, :, m:] = k, v
    return tuple(result)""",
)

# --- Exercise 3: operations and bytes ---

PAIRS = "tokens * cached + tokens * (tokens + 1) // 2"
BY_A_LOOP = swap(PAIRS, "sum(cached + 1 + i for i in range(tokens))")
AS_FLOATS = swap(PAIRS, "tokens * (cached + (tokens + 1) / 2)")
FROM_ARRAYS = swap("return operations, moved", "return np.array([operations, moved])")
IN_FRACTIONS = swap(
    "return operations, moved",
    "from fractions import Fraction\n    return [operations, Fraction(moved)]",
)
BY_BLOCK = after(
    '    """Return the operations and the bytes of one pass of new tokens through all blocks."""',
    """    operations = moved = 0
    for _ in range(layers):
        for size in (3, 1, 4, 4):
            operations += 2 * size * width * width * tokens
            moved += size * width * width * weight_bytes
        operations += sum(2 * 2 * width * (cached + new) for new in range(1, tokens + 1))
        moved += 4 * width * cached * 2 + 4 * width * tokens * 2
    return np.int64(operations), np.float64(moved)
""",
)

# --- Exercise 4: a scale for each group ---

GROUPS = "weights.reshape(len(weights), -1, group)"
SCALES = "scales = np.abs(groups).max(axis=-1) / (2 ** (bits - 1) - 1)"
BOTH_ARRAYS = "codes.reshape(weights.shape), scales"
NO_ZERO = "    scales = np.where(scales == 0, 1, scales)\n"
CODES = 'np.round(groups / scales[..., None]).astype("int8")'
FAR_APART = swap(GROUPS, "weights.reshape(len(weights), group, -1).transpose(0, 2, 1)")
ACROSS_ROWS = swap(GROUPS, "weights.T.reshape(len(weights), -1, group)")
ACROSS_ALL_ROWS = swap("max(axis=-1)", "max(axis=(0, 2)) * np.ones(groups.shape[:2])")
LEAST_PEAK = swap("np.abs(groups).max(axis=-1)", "np.abs(groups).max(axis=-1).clip(0.01)")
AFFINE = swap("np.abs(groups).max(axis=-1) / (2 ** (bits - 1) - 1)", "np.ptp(groups, axis=-1) / (2**bits - 2)")
IN_PLACE_GROUPS = swap(
    "    codes = np.round(", "    groups /= scales[..., None]\n    scales = scales + 0\n    codes = np.round("
)
HALF_UP = swap("np.round(groups / scales[..., None])", "np.floor(groups / scales[..., None] + 0.5)")
BY_GROUPS_LOOP = after(
    '    """Return the codes and the scales of weights that share a scale in groups."""',
    """    rows, columns = weights.shape
    codes, scales = np.zeros((rows, columns), np.int8), np.zeros((rows, columns // group))
    largest = 2 ** (bits - 1) - 1
    for row in range(rows):
        for start in range(0, columns, group):
            part = weights[row, start : start + group].tolist()
            scale = max(max(part), -min(part)) / largest
            scales[row, start // group] = scale or 1
            if scale:
                codes[row, start : start + group] = [round(weight / scale) for weight in part]
    return [codes, scales]
""",
)
TIMES_CODES = swap(CODES, 'np.rint(groups * (1 / scales[..., None]).astype("float32")).astype(np.int8)')
BY_REPEAT = swap(
    CODES + "\n    return codes.reshape(weights.shape), scales",
    """np.rint(weights / np.repeat(scales, group, axis=1))
    return codes.astype(np.int8), scales.astype("float32")""",
)

# --- Exercise 5: verify ---

TOKENS = "[*proposed[:right], choices[right]]"
COUNTED = "proposed[right] == choices[right]"
ANY_THAT_AGREE = after(
    '    """Return the tokens by which the text grows in one pass."""',
    """    right = sum(a == b for a, b in zip(proposed, choices))
    return choices[: right + 1]
""",
)
THOSE_THAT_AGREE = after(
    '    """Return the tokens by which the text grows in one pass."""',
    """    kept = [a for a, b in zip(proposed, choices) if a == b]
    return [*kept, choices[len(kept)]]
""",
)
BY_SEARCH = after(
    '    """Return the tokens by which the text grows in one pass."""',
    """    for place, token in enumerate(proposed):
        if token != choices[place]:
            return choices[: place + 1]
""",
)
NO_BONUS = after(
    '    """Return the tokens by which the text grows in one pass."""',
    """    grown = []
    for token, choice in zip(proposed, choices):
        grown.append(choice)
        if token != choice:
            break
    return grown
""",
)
ONE_BY_ONE = after(
    '    """Return the tokens by which the text grows in one pass."""',
    """    grown = []
    for token, choice in zip([*proposed, None], choices):
        grown.append(choice)
        if token != choice:
            break
    return tuple(grown)
""",
)
BY_NUMPY = after(
    '    """Return the tokens by which the text grows in one pass."""',
    """    choices = np.array(choices)
    agree = np.cumprod(np.array(proposed, int) == choices[: len(proposed)])
    return choices[: 1 + int(agree.sum())]
""",
)
BY_TAKEWHILE = after(
    '    """Return the tokens by which the text grows in one pass."""',
    """    from itertools import takewhile
    right = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(proposed, choices))))
    return proposed[:right] + choices[right : right + 1]
""",
)

# --- Exercise 6: is it worth it? ---

GROWN = "sum(alpha**right for right in range(gamma + 1))"
SPENT = "(gamma * draft_cost + pass_cost)"
RATIO = "grown / (gamma * draft_cost + pass_cost)"
CLOSED = swap(GROWN, "(1 - alpha ** (gamma + 1)) / (1 - alpha)")
CLOSED_BY_NUMPY = swap(GROWN, "np.float64(1 - alpha ** (gamma + 1)) / np.float64(1 - alpha)")
CLOSED_BUT_ONE = swap(GROWN, "gamma + 1 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)")
CLOSED_BUT_NEAR_ONE = swap(GROWN, "gamma + 1 if alpha > 0.99 else (1 - alpha ** (gamma + 1)) / (1 - alpha)")
BY_CHANCES = swap(
    GROWN,
    """(gamma + 1) * alpha**gamma
    for right in range(gamma):
        grown += (right + 1) * alpha**right * (1 - alpha)
    grown += 0""",
)


class TestExercises(ThreeWays):
    lab = "10"
    mistakes = [
        (1, BY_A_TRIANGLE, "n = 2, m = 4 and d = 2, all scores alike, to have 3 at [0, 0, 0]"),
        (1, BY_A_TRIANGLE, "as if query i were token i, though it is token m - n + i."),
        (1, BY_A_TRIANGLE, "Hint 2 of 3: Query i is that of token m - n + i"),
        (1, NOT_MASKED, "as if each query saw all keys, later ones too."),
        (1, STRICT_TRIANGLE, "as if a token did not see its own key."),
        (1, swap("np.arange(m) > np", "np.arange(m) >= np"), "it has nan there"),
        (1, swap("np.arange(m) > np", "np.arange(m) < np"), "its own key and the later ones alone."),
        (1, MASKED_BY_A_PRODUCT, "as if later keys had a finite score, such as 0, which counts in the softmax."),
        (1, MASKED_BY_ZERO, "as if later keys had a finite score, such as 0"),
        (1, swap("-np.inf, scores)", "-100, scores)"), "scores from -1000 to 1001, to have"),
        (1, MASKED_TOO_LATE, "as if shares were set to 0 after the softmax"),
        (1, swap("d**0.5", "d"), "as if the scores were divided by d."),
        (1, swap(" / d**0.5", ""), "as if the scores were not divided by the root of d."),
        (1, swap("d**0.5", "m**0.5"), "1 head, n = 3, m = 3 and d = 5 to have"),
        (1, WRONG_AXIS, "1 head, n = 3, m = 3 and d = 2, all scores alike, to have 6 at [0, 0, 0]"),
        (1, swap(" - scores.max(axis=-1, keepdims=True)", ""), "scores from -1000 to 1001, to have"),
        (1, swap(" - scores.max(axis=-1, keepdims=True)", ""), "Softmax stays the same when you subtract"),
        (1, MAXIMUM_OF_ALL, "scores from -1000 to 1001, to have"),
        (1, MAXIMUM_OF_A_HEAD, "it has nan there"),
        (1, MAXIMUM_BEFORE_MASK, "it has nan there"),
        (1, CLIPPED, "scores from -1000 to 1001, to have"),
        (1, swap("    shares /= shares.sum(axis=-1, keepdims=True)\n", ""), "all scores alike, to have 3 at [0, 1, 0]"),
        (1, swap("axis=-1, keepdims=True)\n    return", "axis=-1)[:, None]\n    return"), "to have"),
        (1, ONE_HEAD, "2 heads, n = 3, m = 3 and d = 5 to have"),
        (1, IN_PLACE, "Expected q to stay as it was; attention changed it"),
        (1, QUERIES_FIRST, "to have the shape (1, 3, 2); it has (3, 1, 2)"),
        (1, JOINED, "to have the shape (1, 3, 2); it has (3, 2)"),
        (1, swap("return shares @ v", "return shares"), "to have the shape (1, 3, 2); it has (1, 3, 3)"),
        (1, swap("return shares @ v", "return (shares @ v).tolist()"), "an array of shape (1, 3, 2); it is a list"),
        (1, swap("return shares @ v", "shares @ v"), "an array of shape (1, 3, 2); it is None: does it return?"),
        (1, swap("return shares @ v", "return (shares @ v).astype('float16')"), "to have"),
        (2, swap("axis=1", "axis=0"), "as if the new ones were put behind the others along axis 0, the heads"),
        (2, swap("axis=1", "axis=0"), "the keys after 3 and 3 tokens of 2 heads, d = 4 to have the shape (2, 6, 4)"),
        (2, swap("axis=1", "axis=0"), "Hint 1 of 3"),
        (2, swap("axis=1", "axis=2"), "as if the new ones were put behind the others along axis 2, the numbers"),
        (2, swap("[keys, k]", "[k, keys]"), "as if the new tokens came before those of the past."),
        (2, swap("[values, v]", "[v, values]"), "the values after 3 and 3 tokens of 2 heads, d = 4 to have 1000"),
        (2, swap("[values, v]", "[values, k]"), "the values after 3 and 3 tokens"),
        (2, swap("[values, v]", "[keys, k]"), "as if they were the keys."),
        (2, swap("return k, v", "return v, k"), "the keys after 3 tokens of 2 heads, d = 4 to have 1000"),
        (2, swap("return k, v", "return v, k"), "as if they were the values."),
        (2, swap("keys, values = past", "values, keys = past"), "the keys after 3 and 3 tokens"),
        (2, swap(BOTH, "return k, v"), "as if the past were forgotten."),
        (2, swap(BOTH, "return past"), "as if the new tokens were left out."),
        (2, swap("    if past is None:\n        return k, v\n", ""), "TypeError"),
        (2, swap("return k, v", "return None"), "a pair, all keys and all values, after 3 tokens of 2 heads"),
        (2, swap("return np.", "np."), "after 3 and 3 tokens of 2 heads, d = 4; it is None: does it return?"),
        (2, swap(BOTH, "return np.concatenate([keys, k], axis=1)"), "to have the shape (2, 6, 4); it has (6, 4)"),
        (2, swap(BOTH, "return [*keys, *k], [*values, *v]"), "to be an array of shape (2, 6, 4); it is a list"),
        (2, swap("    return np.", "    keys *= 2\n    return np."), "Expected past to stay as it was; remember"),
        (2, PAST_LIST_IN_PLACE, "Expected past to stay as it was; remember changed it"),
        (2, PAST_IN_PLACE, "TypeError"),
        (2, BY_A_GLOBAL, "of two texts in turn"),
        (2, BY_IDENTITY, "KeyError"),
        (3, swap(PAIRS, "tokens * (cached + tokens)"), "the operations of cost(3, 7, 3, 5, 0.5) to be 7,020"),
        (3, swap(PAIRS, "tokens * (cached + tokens)"), "as if each new token saw all keys, those of later ones too."),
        (3, swap("(tokens + 1)", "(tokens - 1)"), "as if no token saw its own key."),
        (3, swap("tokens * cached + ", ""), "as if the keys of the cached tokens were left out."),
        (3, swap(" + tokens * (tokens + 1) // 2", ""), "as if the new tokens saw the cached ones alone."),
        (3, swap("2 * weights * tokens", "weights * tokens"), "as if each weight had one operation for each token."),
        (3, swap("4 * width * pairs", "2 * width * pairs"), "as if attention had half of its products"),
        (3, swap("2 * weights * tokens + 4 *", "weights * tokens + 2 *"), "with its addition were one operation."),
        (3, swap("2 * weights * tokens", "2 * weights"), "the operations of cost(3, 7, 3, 5, 0.5) to be 7,020"),
        (3, swap("2 * weights * tokens", "2 * weights * (tokens + cached)"), "multiplied with the weights once more."),
        (3, swap("operations = layers * ", "operations = "), "as if there were one block."),
        (3, swap("moved = layers * ", "moved = "), "the bytes of cost(3, 7, 3, 5, 0.5) to be 1,650"),
        (3, swap("12 * width**2", "12 * width"), "the operations of cost(3, 7, 3, 5, 0.5) to be 7,020"),
        (3, swap("weight_bytes * weights", "weight_bytes * weights * tokens"), "the weights were read once for each"),
        (3, swap("4 * 2 * width", "4 * width"), "as if there were keys or values, and not both."),
        (3, swap("4 * 2 * width", "2 * width"), "as if each number of a key or a value took one byte."),
        (3, swap("4 * 2 * width", "weight_bytes * 2 * width"), "took as many bytes as a weight."),
        (3, swap("weight_bytes * weights", "4 * weights"), "as if a weight took 4 bytes."),
        (3, swap("(cached + tokens)", "cached"), "as if the keys and values of the new tokens were not written."),
        (3, swap("(cached + tokens)", "tokens"), "as if the cache were not read."),
        (3, swap("(cached + tokens)", "tokens"), "to be 1,650; it is 810."),
        (3, swap("(cached + tokens)", "tokens"), "Hint: Count what one block reads and writes."),
        (3, swap("return operations, moved", "return moved, operations"), "as if these were the bytes."),
        (3, swap("return operations, moved", "return moved, operations"), "to be 7,020; it is 1,650."),
        (3, swap("return operations, moved", "return moved, operations"), "Hint: Return the operations first"),
        (3, swap("return operations, moved", "return operations"), "to be two numbers, the operations and the bytes"),
        (3, swap("return operations, moved", "pass"), "to be two numbers, the operations and the bytes; it is None"),
        (3, swap("return operations, moved", "return operations, int(moved)"), "the bytes of cost("),
        (3, IN_FRACTIONS, "to be an int or a float, for the next cells to show"),
        (4, swap("2 ** (bits - 1) - 1", "2 ** (bits - 1)"), "the scale of group 0 of row 0, [7.0, -3.25, 1.75, 0.25]"),
        (4, swap("2 ** (bits - 1) - 1", "2 ** (bits - 1)"), "as if the largest code were 8."),
        (4, swap("2 ** (bits - 1) - 1", "2**bits - 1"), "as if the codes went up to 15."),
        (4, swap("2 ** (bits - 1) - 1", "7"), "in 3 bits, to be"),
        (4, swap("np.abs(groups).max(axis=-1)", "groups.max(axis=-1)"), "as if the sign had not been taken off."),
        (4, swap("np.abs(groups).max(axis=-1)", "np.abs(groups.max(axis=-1))"), "(so that its largest weight is"),
        (4, AFFINE, "as if the steps went from the smallest to the largest weight."),
        (4, swap(" / (2 ** (bits - 1) - 1)", ""), "as if it were the largest weight."),
        (4, swap(BOTH_ARRAYS, "codes.reshape(weights.shape), 1 / scales"), "as if it were"),
        (4, swap("max(axis=-1)", "max()"), "to have the shape (1, 1); it is ()"),
        (4, swap(GROUPS, "weights.reshape(-1, group)"), "to have the shape (1, 1); it is (1,)"),
        (4, FAR_APART, "the scale of group 0 of row 0, [3.5, -7.0] in 4 bits, to be 1"),
        (4, ACROSS_ROWS, "the scale of group 0 of row 0, [3.5, -7.0] in 4 bits, to be 1"),
        (4, swap("max(axis=-1)", "max() * np.ones(groups.shape[:2])"), "the row had one scale."),
        (4, ACROSS_ALL_ROWS, "as if the rows had one scale for each group of columns."),
        (4, swap("scales == 0, 1, scales", "scales < 1e-3, 1e-3, scales"), "0.0025] in 8 bits, to be 9.843e-05"),
        (4, swap("scales == 0, 1, scales", "scales < 1e-3, 1e-3, scales"), "A trained model has many groups"),
        (4, swap("scales == 0, 1, scales", "scales < 1e-4, 1e-4, scales"), "127 of it, up to the sign); it is 0.0001"),
        (4, LEAST_PEAK, "0.0006] in 8 bits, to be 2.362e-05"),
        (4, swap(NO_ZERO, "    scales[scales == 0] = np.nan\n"), "a finite scale above 0; it is nan"),
        (4, swap(NO_ZERO, "    scales = 1 / np.where(scales == 0, 0, 1 / scales)\n"), "scale above 0; it is inf"),
        (4, swap(NO_ZERO, ""), "[0.0, 0.0] in 4 bits, to have a finite scale above 0; it is 0"),
        (4, swap("scales == 0, 1, scales", "scales == 0, -5, scales"), "it is -5"),
        (4, swap("np.round(groups / scales[..., None])", "np.sign(groups)"), "to have the code nearest to"),
        (4, swap("np.round(groups / scales[..., None])", "(groups / scales[..., None])"), "astype alone cuts off"),
        (4, swap("np.round(", "np.floor("), "-3.25 in group 0 of row 0"),
        (4, swap("np.round(", "np.ceil("), "0.25 in group 0 of row 0, [7.0, -3.25, 1.75, 0.25] in 4 bits, to have"),
        (4, swap("np.round(groups", "8 + np.round(groups"), "to have codes from -7 to 7; they are"),
        (4, swap("np.round(groups", "(groups == 0) + np.round(groups"), "4 bits, to have codes 0; they are"),
        (4, swap('.astype("int8")', ""), "of type int8; their type is float32"),
        (4, swap('"int8"', '"uint8"'), "of type int8; their type is uint8"),
        (4, swap(BOTH_ARRAYS, "codes, scales"), "to have the shape (1, 4); it is (1, 1, 4)"),
        (4, swap(BOTH_ARRAYS, "codes.reshape(weights.shape)"), "two arrays, the codes"),
        (4, swap(BOTH_ARRAYS, "codes.reshape(weights.shape).tolist(), scales"), "it is a list"),
        (4, swap(BOTH_ARRAYS, "scales, codes.reshape(weights.shape)"), "to have the shape (1, 4)"),
        (4, swap("return codes.reshape(weights.shape), scales", "pass"), "the codes and the scales; it is None"),
        (4, IN_PLACE_GROUPS, "Expected weights to stay as it was; in_groups changed it"),
        (5, swap(TOKENS, "proposed[:right]"), "[5, 9] (of the proposed tokens, the"),
        (5, swap(TOKENS, "proposed[:right]"), "Hint 2 of 3"),
        (5, swap(TOKENS, "choices[right]"), "to be a list of tokens; it is 9, of type int"),
        (5, swap(TOKENS, "choices"), "to be [5, 9] (of the proposed tokens, the first 1"),
        (5, swap(TOKENS, "proposed"), "to be [5, 9]"),
        (5, swap(TOKENS, "[*proposed, choices[-1]]"), "it is [5, 6, 7, 4]"),
        (5, swap(TOKENS, "[*proposed[:right], choices[-1]]"), "it is [5, 4]"),
        (5, swap(TOKENS, "proposed[: right + 1]"), "it is [5, 6]"),
        (5, swap(TOKENS, "right + 1"), "to be a list of tokens; it is 2"),
        (5, swap("return [*proposed[:right], choices[right]]", "pass"), "tokens; it is None: does it return?"),
        (5, swap(TOKENS, "''.join(map(chr, choices))"), "a list of tokens; it is '"),
        (5, swap("choices[right]]", "[choices[right]]]"), "token 1 of accept([5, 6, 7], [5, 9, 8, 4]) to be a number"),
        (5, swap("choices[right]]", "choices[right] / 1]"), "to be an int; it is 9.0, a float"),
        (5, swap("right < len(proposed) and ", ""), "IndexError"),
        (5, ANY_THAT_AGREE, "accept([5, 6, 7], [9, 6, 7, 8]) to be [9] (of the proposed tokens, none can be kept)"),
        (5, THOSE_THAT_AGREE, "accept([5, 6, 7], [9, 6, 7, 8]) to be [9]"),
        (5, BY_SEARCH, "accept([5, 6, 7], [5, 6, 7, 8]) to be a list of tokens; it is None"),
        (5, NO_BONUS, "to be [5, 6, 7, 8] (of the proposed tokens, all can be kept); it is [5, 6, 7]"),
        (5, swap(COUNTED, "proposed[right] <= choices[right]"), "accept([5, 6, 7], [5, 9, 8, 4]) to be [5, 9]"),
        (5, swap(COUNTED, "proposed[right] is choices[right]"), "need not be one object, which is what `is` asks for."),
        (5, swap(COUNTED, "proposed[right] in choices"), "accept([5, 6, 7], [6, 5, 7, 8]) to be [6]"),
        (5, swap("while right < len", "while right < 2 and right < len"), "to be [5, 6, 7, 8]"),
        (5, swap("    right = 0\n", "    right = 0\n    choices.append(0)\n"), "Expected choices to stay as it was"),
        (6, CLOSED, "ZeroDivisionError"),
        (6, CLOSED, "for all alpha but 1, where it is gamma + 1"),
        (6, CLOSED_BY_NUMPY, "speed_up(1, 4, 0.1, 1.6) to be 2.5; it is nan"),
        (6, CLOSED_BY_NUMPY, "for all alpha but 1, where it is gamma + 1"),
        (6, CLOSED_BUT_NEAR_ONE, "speed_up(0.995, 9, 0.05, 1.5) to be 5.014; it is 5.128"),
        (6, swap("range(gamma + 1)", "range(gamma)"), "as if the large model wrote none after gamma right tokens."),
        (6, swap("range(gamma + 1)", "range(1, gamma + 1)"), "as if the large model's own token did not count."),
        (6, swap(GROWN, "1 + alpha * gamma"), "speed_up(0.5, 3, 0.1, 1.7) to be 0.9375"),
        (6, swap(GROWN, "1 + alpha * gamma"), "as if tokens after a wrong one counted too."),
        (6, swap(GROWN, "alpha * gamma"), "counted too, and the large model's own did not."),
        (6, swap(GROWN, "1 + gamma * alpha**gamma"), "as if the text grew by all tokens or by one."),
        (6, swap(GROWN, "gamma + 1"), "as if the text grew by gamma + 1 tokens in each pass."),
        (6, swap(" / (gamma * draft_cost + pass_cost)", ""), "the tokens of one pass, whatever its time."),
        (6, swap(SPENT, "pass_cost"), "as if the draft took no time."),
        (6, swap(SPENT, "(draft_cost + pass_cost)"), "as if the draft wrote one token a pass."),
        (6, swap(SPENT, "((gamma + 1) * draft_cost + pass_cost)"), "as if the draft wrote gamma + 1 tokens a pass."),
        (6, swap(SPENT, "(gamma * draft_cost)"), "as if the large model took no time."),
        (6, swap(SPENT, "(gamma * draft_cost + 1)"), "as if the large model's pass took as long as for one token."),
        (6, swap(SPENT, "(gamma * draft_cost + pass_cost * (gamma + 1))"), "the time for each of gamma + 1 tokens."),
        (6, swap(RATIO, "(gamma * draft_cost + pass_cost) / grown"), "it were the time of a token"),
        (6, swap("return grown", "grown"), "speed_up(0.5, 3, 0.1, 1.7) to be a number; it is None"),
        (6, swap(RATIO, "grown // (gamma * draft_cost + pass_cost)"), "3, 0.1, 1.7) to be 0.9375; it is 0."),
        (6, swap(RATIO, "round(grown / (gamma * draft_cost + pass_cost), 2)"), "to be 0.9375; it is 0.94"),
        (6, swap(RATIO, "(grown / (gamma * draft_cost + pass_cost), gamma)"), "to be a number; it is a tuple"),
    ]  # fmt: skip
    right = [
        (1, same),
        (1, BY_LOOPS),
        (1, BY_EINSUM),
        (1, DIVIDED_LAST),
        (1, BY_SCIPY),
        (1, BY_LOGARITHM),
        (1, IN_FLOAT32),
        (1, WITH_TRIU),
        (1, PADDED),
        (1, swap("-np.inf, scores)", "-1e9, scores)")),
        (1, swap("q @ k.transpose(0, 2, 1) / d**0.5", "(q * np.float32(d**-0.5)) @ np.swapaxes(k, 1, 2)")),
        (2, same),
        (2, BY_APPEND),
        (2, IN_ONE_ARRAY),
        (2, FILLED),
        (2, swap("return k, v", "return [k.astype(float), v.copy()]")),
        (3, same),
        (3, BY_A_LOOP),
        (3, AS_FLOATS),
        (3, FROM_ARRAYS),
        (3, BY_BLOCK),
        (4, same),
        (4, HALF_UP),
        (4, BY_GROUPS_LOOP),
        (4, TIMES_CODES),
        (4, BY_REPEAT),
        (4, swap("scales == 0, 1, scales", "scales == 0, 5, scales")),
        (4, swap(NO_ZERO, "    scales = scales + 1e-8\n")),
        (4, swap(NO_ZERO, "    scales = scales + 1e-12\n")),
        (4, swap(NO_ZERO, "    scales = np.maximum(scales, 1e-8)\n")),
        (5, same),
        (5, ONE_BY_ONE),
        (5, BY_NUMPY),
        (5, BY_TAKEWHILE),
        (6, same),
        (6, CLOSED_BUT_ONE),
        (6, BY_CHANCES),
        (6, swap(GROWN, "np.sum(np.float64(alpha) ** np.arange(gamma + 1))")),
        (6, swap(RATIO, "1 / ((gamma * draft_cost + pass_cost) / grown)")),
    ]
