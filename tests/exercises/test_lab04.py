import math

import numpy as np
import pytest
from labs import Student, ThreeWays, same, swap


@pytest.fixture
def student(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Student("04", {"np": np, "math": math})


IN_PLACE = swap(
    '    true = [g.astype("float32") / scale for g in gradients]\n',
    """    for place, g in enumerate(gradients):
        gradients[place] = g.astype("float32") / scale
    true = gradients
""",
)
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
        (1, swap("2.0 ** (1 - bias)", "2.0 ** -bias"), "subnormal, to be 5.96e-08; it is 2.98e-08"),
        (1, swap("    if exponent == 0:\n", "    if pattern == 0:\n"), "subnormal, to be"),
        (1, swap("if fraction == 0 else np.nan", ""), "not a number, to be nan; it is inf"),
        (1, swap("if exponent == 2**e - 1", "if False"), "an infinity, to be inf; it is 6.554e+04"),
        (1, swap("-1.0 if pattern >> (e + f) else 1.0", "1.0"), "a negative number, to be -1; it is 1"),
        (1, swap("bias = 2 ** (e - 1) - 1", "bias = 15"), "0x3f80, 8, 7), a normal number, to be 1; it is"),
        (1, swap(NORMAL, NORMAL.removeprefix("return ")), "to be a number; it is None: does it return?"),
        (1, swap("pattern & (2**f - 1)", "pattern & (2**f - 2)"), "to be 1.001; it is 1."),
        (
            1,
            swap("bias = 2 ** (e - 1) - 1", "bias = {2: 1, 5: 15, 8: 127}.get(e, 0)"),
            "decode(0x81, 4, 3), subnormal, to be -0.001953",
        ),
        (
            2,
            swap('g.astype("float32") / scale', "g / scale"),
            "to be an array of float32; it is an array of shape (1, 2), float16",
        ),
        (
            2,
            swap('g.astype("float32") / scale', "g.astype(float) / scale"),
            "float32; it is an array of shape (1, 2), float64",
        ),
        (2, swap('g.astype("float32") / scale', '(g / scale).astype("float32")'), "at [0]; it has 0 there"),
        (2, IN_PLACE, "Expected gradients to stay as it was; settle changed it"),
        (
            2,
            swap("np.isfinite(g).all()", "np.isfinite(g.sum())"),
            "in which everything is finite, such as [[[65504.0, 65504.0]]]",
        ),
        (2, swap(" / scale for", " for"), "to have 0.1875 at [0, 0]; it has 1.5 there"),
        (2, swap("np.isfinite(g).all()", "not np.isinf(g).any()"), "since gradient 0 has nan in it"),
        (2, swap("for g in gradients):", "for g in gradients[:1]):"), "since gradient 1 has inf in it"),
        (2, swap("None, scale / 2, 0", "None, scale / 2, calm"), "the calm steps after an overflow to be 0; it is 9"),
        (
            2,
            swap("None, scale / 2, 0", "None, scale, 0"),
            "to be 512 (half of scale 1024 after an overflow); it is 1024",
        ),
        (2, swap("None, scale / 2, 0", "gradients, scale / 2, 0"), "None, since gradient"),
        (
            2,
            swap("scale * 2, 0", "scale * 2, calm + 1"),
            "(the count starts again when the scale is doubled); it is 10",
        ),
        (2, swap("scale * 2, 0", "scale, 0"), "to be 32 (twice the scale, at calm step 10); it is 16"),
        (2, swap("calm + 1 == patience", "calm == patience"), "to be 32 (twice the scale, at calm step 10)"),
        (2, swap("scale, calm + 1", "scale, calm"), "patience 10 to be 1 (this one is calm as well); it is 0"),
        (2, swap("return true, scale, calm + 1", "return true"), "three things, the gradients or None"),
        (
            2,
            swap("    true = [", "    scale *= 2 if calm + 1 == patience else 1\n    true = ["),
            "to have 0.09375 at [0, 0]; it has 0.04688 there",
        ),
        (3, swap("/ 255", "/ 256"), "the scale of scale_and_zero(0.0, 1.0) to be 0.003922 (255 steps"),
        (3, swap("low, high = min(low, 0.0), max(high, 0.0)", "pass"), "the scale of scale_and_zero(2.0, 6.0) to be"),
        (3, swap("round(-low / scale)", "-low / scale"), "the code of 0.0, to be a whole number; it is 127.5"),
        (3, swap("round(-low / scale)", "round(low / scale)"), "the code nearest to 127.50; it is -128"),
        (3, swap("round(-low / scale)", "128"), "the code nearest to 0.00; it is 128"),
        (3, swap("round(-low / scale)", "int(-low / scale)"), "the code nearest to 58.85; it is 58"),
        (3, swap("round(-low / scale)", "int(np.ceil(-low / scale))"), "the code nearest to 194.29; it is 195"),
        (3, swap(", round(-low / scale)", ""), "to return scale and zero"),
        (
            4,
            swap('a.astype("int32") @ b.astype("int32")', "a @ b"),
            "sums of type int32, as the CPU computes them; yours are int16",
        ),
        (
            4,
            swap('a.astype("int32") @ b.astype("int32")', '(a @ b).astype("int32")'),
            "to have 2,072,640 at [0, 0] (sums of 64 products); it has",
        ),
        (
            4,
            swap('a.astype("int32") @', 'a.view("int8").astype("int32") @'),
            "to have 32,385 at [0, 0] (sums of 1 products); it has -127",
        ),
        (4, swap(" - zero_a * columns", ""), "(zero_a = 131, one scale_b)"),
        (
            4,
            swap('a.astype("int32") @ b.astype("int32")', '(a.astype("f4") @ b.astype("f4")).astype("int32")'),
            "(sums of 1001",
        ),
        (4, swap("return sums", "b *= 2\n    return sums"), "Expected b to stay as it was; int8_product changed it"),
        (
            4,
            swap('b.astype("int32").sum(axis=0)', 'a.astype("int32").sum(axis=1, keepdims=True)'),
            "(zero_a = 131, one scale_b)",
        ),
        (
            4,
            swap("scale_a * scale_b * (", "scale_a * np.mean(scale_b) * ("),
            "(zero_a = 0, a scale_b for each column)",
        ),
        (4, swap("scale_a * scale_b", "scale_b"), "to have 323.9 at [0, 0]"),
        (4, swap("return sums, ", "return "), "two things, the sums and the product"),
        (5, swap(" + a.shape[1] * half_a * half_b", ""), "terms is off by"),
        (5, swap("a.shape[1] * half_a", "half_a"), "no error above the bound"),
        (5, swap("np.abs(a)", "a"), "to have 0.2368 at [0, 0] (each of its 3 terms as far off as it can be)"),
        (
            5,
            swap("scale_a / 2, scale_b / 2", "scale_a, scale_b"),
            "(each of its 3 terms as far off as it can be); it has",
        ),
        (5, swap("scale_a / 2, scale_b / 2", "scale_a / 4, scale_b / 4"), "no error above the bound"),
        (5, swap("sum(axis=1, keepdims=True)", "sum()"), "(each of its 3 terms as far off as it can be)"),
        (5, swap("return from_b + from_a + a.shape[1] * half_a * half_b", "return (from_b + from_a).max()"), "(2, 2)"),
    ]
    right = [
        (1, same),
        (1, BY_LDEXP),
        (2, same),
        (2, swap('g.astype("float32") / scale', 'np.float32(1 / scale) * g.astype("float32")')),
        (2, swap("return true, scale, calm + 1", "return tuple(true), np.float64(scale), np.int64(calm + 1)")),
        (3, same),
        (3, swap("round(-low / scale)", "int(255 - np.floor(high / scale + 0.5))")),
        (3, swap("round(-low / scale)", "np.floor(-low / scale + 0.5)")),
        (4, same),
        (4, IN_STEPS),
        (5, same),
        (5, BY_LOOPS),
    ]
