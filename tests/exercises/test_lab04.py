import math

import numpy as np
import pytest
from labs import Bench, ThreeWays, same, swap


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Bench("04", {"np": np, "math": math})


NORMAL = "return sign * (1 + fraction / 2**f) * 2.0 ** (exponent - bias)"
BY_LDEXP = swap(
    "    if exponent == 0:\n",
    """    if exponent:
        return math.ldexp(sign * (2**f + fraction), exponent - bias - f)
    if exponent == 0:
""",
)
IN_STEPS = swap(
    """    sums = a.astype("int32") @ b.astype("int32")
""",
    """    a, b = a.astype("int32"), b.astype("int32")
    sums = np.zeros((a.shape[0], b.shape[1]), "int32")
    for k in range(a.shape[1]):
        sums += np.outer(a[:, k], b[k]).astype("int32")
""",
)
BY_LOOPS = swap(
    "    from_b = ",
    """    bound = np.empty((len(a), b.shape[1]))
    half_b = np.broadcast_to(half_b, b.shape[1])
    for i, j in np.ndindex(*bound.shape):
        moved = (np.abs(a[i]) + half_a) * (np.abs(b[:, j]) + half_b[j])
        bound[i, j] = np.sum(moved - np.abs(a[i] * b[:, j]))
    return bound
    from_b = """,
)


class TestExercises(ThreeWays):
    lab = "04"
    mistakes = [
        (1, swap("1 + fraction / 2**f", "fraction / 2**f"), "decode(0x3c00, 5, 10), a normal number, to be 1; it is 0"),
        (1, swap("2 ** (e - 1) - 1\n", "2 ** (e - 1)\n"), "decode(0x3c00, 5, 10), a normal number, to be 1; it is 0.5"),
        (1, swap("2.0 ** (1 - bias)", "2.0 ** -bias"), "subnormal, to be 5.96046e-08; it is 2.98023e-08"),
        (1, swap("    if exponent == 0:\n", "    if pattern == 0:\n"), "subnormal, to be"),
        (1, swap("if fraction == 0 else np.nan", ""), "not a number, to be nan; it is inf"),
        (1, swap("if exponent == 2**e - 1", "if False"), "an infinity, to be inf; it is 65536"),
        (1, swap("-1.0 if pattern >> (e + f) else 1.0", "1.0"), "a negative number, to be -1; it is 1"),
        (1, swap("bias = 2 ** (e - 1) - 1", "bias = 15"), "0x3f80, 8, 7), a normal number, to be 1; it is"),
        (1, swap(NORMAL, NORMAL.removeprefix("return ")), "to be a number; it is None"),
        (2, swap('g.astype("float32") / scale', "g / scale"), "and scale 8; it is"),
        (2, swap(" / scale for", " for"), "and scale 8; it is"),
        (2, swap("np.isfinite(g).all()", "not np.isinf(g).any()"), "since gradient 0 has nan in it"),
        (2, swap("for g in gradients):", "for g in gradients[:1]):"), "since gradient 1 has inf in it"),
        (2, swap("None, scale / 2, 0", "None, scale / 2, calm"), "no calm steps after an overflow; there are 9"),
        (2, swap("None, scale / 2, 0", "None, scale, 0"), "half of scale 1024 after an overflow; it is 1024.0"),
        (2, swap("None, scale / 2, 0", "gradients, scale / 2, 0"), "None, for a step to skip"),
        (2, swap("scale * 2, 0", "scale * 2, calm + 1"), "the count to begin anew"),
        (2, swap("scale * 2, 0", "scale, 0"), "twice the scale 16 at the tenth calm step of 10; it is 16.0"),
        (2, swap("calm + 1 == patience", "calm == patience"), "twice the scale 16 at the tenth calm step"),
        (2, swap("scale, calm + 1", "scale, calm"), "calm steps to go from 0 to 1"),
        (2, swap("return true, scale, calm + 1", "return true"), "three things, the gradients or None"),
        (
            2,
            swap("    true = [", "    scale *= 2 if calm + 1 == patience else 1\n    true = ["),
            "twice the scale 16 at the tenth calm step of 10; it is 64.0",
        ),
        (3, swap("/ 255", "/ 256"), "to give steps of 0.00392157"),
        (3, swap("low, high = min(low, 0.0), max(high, 0.0)", "pass"), "scale_and_zero(2, 6) to give steps of"),
        (3, swap("round(-low / scale)", "-low / scale"), "a whole number as zero"),
        (3, swap("round(-low / scale)", "round(low / scale)"), "a code from 0 to 255; it is -128"),
        (3, swap("round(-low / scale)", "128"), "the code nearest to 0.00; it is 128"),
        (3, swap("round(-low / scale)", "int(-low / scale)"), "the code nearest to 58.85; it is 58"),
        (3, swap(", round(-low / scale)", ""), "to give scale and zero"),
        (4, swap('a.astype("int32") @ b.astype("int32")', "a @ b"), "sums of type int32, as the CPU has them"),
        (
            4,
            swap('a.astype("int32") @ b.astype("int32")', '(a @ b).astype("int32")'),
            "the sum of 64 products to be 2,072,640; it is",
        ),
        (4, swap('a.astype("int32") @', 'a.view("int8").astype("int32") @'), "to be 32,385; it is -127"),
        (4, swap(" - zero_a * columns", ""), "for zero_a = 131 and one scale_b"),
        (4, swap('b.astype("int32").sum(axis=0)', 'a.astype("int32").sum(axis=1, keepdims=True)'), "for zero_a = 131"),
        (
            4,
            swap("scale_a * scale_b * (", "scale_a * np.mean(scale_b) * ("),
            "for zero_a = 0 and a scale_b for each column",
        ),
        (4, swap("scale_a * scale_b", "scale_b"), "the product to begin with"),
        (4, swap("return sums, ", "return "), "two things, the sums and the product"),
        (5, swap(" + a.shape[1] * half_a * half_b", ""), "terms is off by"),
        (5, swap("a.shape[1] * half_a", "half_a"), "no error above the bound"),
        (5, swap("np.abs(a)", "a"), "whose 3 terms may all be rounded the worst way"),
        (5, swap("scale_a / 2, scale_b / 2", "scale_a, scale_b"), "no larger than it need be"),
        (5, swap("scale_a / 2, scale_b / 2", "scale_a / 4, scale_b / 4"), "no error above the bound"),
        (5, swap("sum(axis=1, keepdims=True)", "sum()"), "a bound for each element of the product"),
        (5, swap("return from_b + from_a + a.shape[1] * half_a * half_b", "return (from_b + from_a).max()"), "(2, 2)"),
    ]
    right = [
        (1, same),
        (1, BY_LDEXP),
        (2, same),
        (2, swap('g.astype("float32") / scale', 'np.float32(1 / scale) * g.astype("float32")')),
        (3, same),
        (3, swap("round(-low / scale)", "int(255 - np.floor(high / scale + 0.5))")),
        (4, same),
        (4, IN_STEPS),
        (5, same),
        (5, BY_LOOPS),
    ]
