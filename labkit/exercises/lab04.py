"""Are the answers to lab 04 right: a float read from its bits, loss scaling, and a product of 8-bit numbers?"""

import math

import numpy as np

from labkit.exercises.answers import call
from labkit.exercises.core import Lab
from labkit.exercises.verdicts import expect

lab = Lab("04")


@lab.exercise(
    1,
    hints=(
        "Cut the pattern in three: sign = pattern >> (e + f), exponent = (pattern >> f) & (2**e - 1), and "
        "fraction = pattern & (2**f - 1). Then: which of the three cases is it?",
        "A normal number is (1 + fraction / 2**f) * 2.0 ** (exponent - bias), and bias is 2 ** (e - 1) - 1. With the "
        "exponent's bits all 0, the leading 1 is a 0, and the power is that of exponent 1.",
        "Exponent all ones: math.inf if fraction is 0, else math.nan. Exponent 0: fraction / 2**f * 2.0 ** (1 - bias). "
        "All else is normal. Take minus that when the sign is 1.",
    ),
)
def decode(answer) -> None:
    """What numpy reads from the same bits, in four formats, for numbers of all kinds."""
    from ml_dtypes import bfloat16, float8_e5m2  # comes with TensorFlow; few commands need it

    formats = ((np.float16, np.uint16, 5, 10), (bfloat16, np.uint16, 8, 7), (np.float32, np.uint32, 8, 23))
    for number, pattern_of, e, f in (*formats, (float8_e5m2, np.uint8, 5, 2)):
        one = (2 ** (e - 1) - 1) << f
        infinite = (2**e - 1) << f
        smallest_normal = 1 << f
        patterns = [one, one + 1, one + (1 << f), one - 3, smallest_normal, infinite - 1, 0]  # normal ones, and 0
        patterns += [1, smallest_normal - 1, 2]  # subnormal
        patterns += [infinite, infinite + 1]
        sign = 1 << (e + f)
        for pattern in [*patterns, *(pattern | sign for pattern in patterns)]:
            right = float(np.array(pattern, pattern_of).view(number))
            got = call(answer, pattern, e, f)
            asked = f"decode({pattern:#x}, {e}, {f})"
            expect(isinstance(got, int | float | np.number), f"{asked} to be a number; it is {got!r}")
            same = math.isnan(got) if math.isnan(right) else got == right
            expect(same, f"{asked}, {_kind_of_float(pattern, e, f)}, to be {right:g}; it is {got:g}")


def _kind_of_float(pattern: int, e: int, f: int) -> str:
    exponent, fraction = (pattern >> f) % 2**e, pattern % 2**f
    if exponent == 2**e - 1:
        return "not a number" if fraction else "an infinity"
    if exponent == 0:
        return "subnormal" if fraction else "a zero"
    return "a negative number" if pattern >> (e + f) else "a normal number"


@lab.exercise(
    2,
    hints=(
        "Look first whether every number of every gradient is finite: np.isfinite(g).all(). What has to happen if not?",
        "Not finite: give None, half the scale, and 0. Finite: convert each gradient to float32 before you divide by "
        "the scale, or what was saved vanishes again. The step counts as calm.",
        'true = [g.astype("float32") / scale for g in gradients]; when calm + 1 reaches patience, give '
        "true, 2 * scale, 0, else true, scale, calm + 1.",
    ),
)
def settle(answer) -> None:
    """Unscaled in FP32, skipped after an overflow, doubled after enough calm steps."""
    half = np.float16

    def settled(gradients, scale, calm, patience):
        got = call(answer, [g.copy() for g in gradients], scale, calm, patience)
        expect(
            isinstance(got, tuple | list) and len(got) == 3,
            f"three things, the gradients or None, the scale and the calm steps; it gave {got!r}",
        )
        return got

    gradients = [np.array([[1.5, -0.25]], half), np.array([6e-8, 3.0], half)]
    for scale, calm in ((8.0, 0), (4096.0, 3)):
        true, next_scale, next_calm = settled(gradients, scale, calm, 10)
        expect(true is not None, "the gradients of a step in which all is finite; it gave None")
        expect(len(true) == 2, f"as many gradients as came in, 2; it gave {len(true)}")
        for g, t in zip(gradients, true, strict=True):
            right = g.astype("float32") / np.float32(scale)
            t = np.asarray(t)
            expect(t.shape == g.shape, f"a gradient of the shape {g.shape}; yours has {t.shape}")
            expect(
                np.allclose(t, right, rtol=1e-3, atol=0),
                f"the gradient {right.ravel()} of {g.ravel()} and scale {scale:g}; it is {t.ravel()}",
            )
        expect(
            next_scale == scale and next_calm == calm + 1,
            f"scale {scale:g} to stay and calm steps to go from {calm} to {calm + 1} (patience 10); they became "
            f"{next_scale} and {next_calm}",
        )

    for bad in (math.inf, -math.inf, math.nan):
        for place in (0, 1):
            spoiled = [g.copy() for g in gradients]
            spoiled[place].flat[1] = bad
            true, next_scale, next_calm = settled(spoiled, 1024.0, 9, 10)
            expect(true is None, f"None, for a step to skip, since gradient {place} has {bad} in it; it gave {true!r}")
            expect(next_scale == 512, f"half of scale 1024 after an overflow; it is {next_scale}")
            expect(next_calm == 0, f"no calm steps after an overflow; there are {next_calm}")

    true, next_scale, next_calm = settled(gradients, 16.0, 9, 10)
    expect(true is not None, "the gradients of the tenth calm step of 10; it gave None")
    expect(next_scale == 32, f"twice the scale 16 at the tenth calm step of 10; it is {next_scale}")
    expect(next_calm == 0, f"the count to begin anew when the scale was doubled; it is {next_calm}")
    expect(
        np.allclose(true[0], gradients[0].astype("float32") / 16),
        f"the gradients divided by the scale that they came with, 16; {gradients[0].ravel()} became "
        f"{np.ravel(true[0])}",
    )


@lab.exercise(
    3,
    hints=(
        "256 codes have 255 steps between them. How wide is a step, if they are to reach from low to high? And which "
        "code stands for 0?",
        "scale = (high - low) / 255; zero = round(-low / scale). What if low is above 0, or high below?",
        "First low, high = min(low, 0), max(high, 0): then 0 is within the range, and its code is in 0..255.",
    ),
)
def scale_and_zero(answer) -> None:
    """Steps as fine as the range allows, and 0 at a whole code between 0 and 255."""
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (-0.3, 1.0), (2.0, 6.0), (-6.0, -2.0), (-1e-3, 0.0)):
        asked = f"scale_and_zero({low:g}, {high:g})"
        got = call(answer, low, high)
        expect(isinstance(got, tuple | list) and len(got) == 2, f"{asked} to give scale and zero; it gave {got!r}")
        scale, zero = got
        wide_low, wide_high = min(low, 0.0), max(high, 0.0)
        step = (wide_high - wide_low) / 255
        expect(
            isinstance(zero, int | np.integer), f"{asked} to give a whole number as zero, the code of 0.0; it is {zero}"
        )
        expect(
            bool(np.isclose(scale, step, rtol=1e-6)),
            f"{asked} to give steps of {step:.6g}: 256 codes from {wide_low:g} to {wide_high:g}; they are {scale:.6g}",
        )
        expect(0 <= zero <= 255, f"{asked} to give 0.0 a code from 0 to 255; it is {zero}")
        expect(
            abs(zero + wide_low / step) <= 0.5 + 1e-6,
            f"{asked} to give 0.0 the code nearest to {abs(wide_low) / step:.2f}; it is {zero}",
        )


@lab.exercise(
    4,
    hints=(
        "uint8 @ int8 is int16 in numpy, and overflows. Convert first.",
        'sums = a.astype("int32") @ b.astype("int32"). The true numbers are scale_a * (a - zero_a) and scale_b * b: '
        "multiply them out. What is left besides scale_a * scale_b * sums?",
        'scale_a * scale_b * (sums - zero_a * b.astype("int32").sum(axis=0))',
    ),
)
def int8_product(answer) -> None:
    """32-bit sums as exact integers; the product as from the true numbers, also with a scale for each column."""
    rng = np.random.default_rng(0)
    for m, k, n in ((2, 1, 3), (3, 64, 2), (4, 1000, 5)):
        for zero in (0, 131):
            a, b = rng.integers(0, 256, (m, k), "uint8"), rng.integers(-127, 128, (k, n), "int8")
            a[0], b[:, 0] = 255, 127  # the largest sum there can be
            for scale_b in (0.02, rng.uniform(0.01, 0.1, n)):
                got = call(answer, a.copy(), b.copy(), zero, 0.5, scale_b)
                expect(
                    isinstance(got, tuple | list) and len(got) == 2,
                    f"two things, the sums and the product; it gave {type(got).__name__}",
                )
                sums, product = (np.asarray(part) for part in got)
                right = np.einsum("mk,kn->mn", a.astype(object), b.astype(object)).astype("int64")
                expect(sums.shape == (m, n), f"sums of the shape {(m, n)}; yours have {sums.shape}")
                expect(sums.dtype == np.int32, f"sums of type int32, as the CPU has them; yours are {sums.dtype}")
                wrong = np.argwhere(sums != right)
                expect(
                    not len(wrong),
                    f"the sum of {k} products to be {right[tuple(wrong[0])] if len(wrong) else 0:,}; it is "
                    f"{sums[tuple(wrong[0])] if len(wrong) else 0:,}",
                )
                true = (0.5 * (a.astype(float) - zero)) @ (scale_b * b.astype(float))
                expect(product.shape == (m, n), f"a product of the shape {(m, n)}; yours has {product.shape}")
                about = f"zero_a = {zero} and {'one scale_b' if np.isscalar(scale_b) else 'a scale_b for each column'}"
                expect(
                    np.allclose(product, true, rtol=1e-4, atol=1e-4 * np.abs(true).max()),
                    f"the product to begin with {true[0, 0]:.5g}, for {about}; it begins with {product[0, 0]:.5g}",
                )


@lab.exercise(
    5,
    hints=(
        "One term first: a becomes a + d, b becomes b + e, with |d| ≤ scale_a / 2 and |e| ≤ scale_b / 2. How far can "
        "(a + d) * (b + e) be from a * b?",
        "At most |a| * scale_b / 2 + |b| * scale_a / 2 + scale_a * scale_b / 4. Now sum this over the k terms: over "
        "a row of a, over a column of b.",
        "np.abs(a).sum(axis=1, keepdims=True) * scale_b / 2 + np.abs(b).sum(axis=0) * scale_a / 2 "
        "+ a.shape[1] * scale_a * scale_b / 4",
    ),
)
def error_bound(answer) -> None:
    """Not below an error that happens, and no larger than it need be."""
    rng = np.random.default_rng(0)
    for m, k, n in ((2, 3, 2), (3, 50, 4)):
        for scale_a, scale_b in ((0.1, 0.02), (0.05, rng.uniform(0.01, 0.1, n))):
            # Small and rounded up by nearly half a step each, all positive: as bad as it gets.
            worst = (rng.integers(0, 2, (m, k)) + 0.501) * scale_a, (rng.integers(0, 2, (k, n)) + 0.501) * scale_b
            for a, b in (worst, (rng.normal(size=(m, k)), rng.normal(size=(k, n)))):
                rounded = (np.round(a / scale_a) * scale_a) @ (np.round(b / scale_b) * scale_b)
                error = np.abs(rounded - a @ b)
                got = np.asarray(call(answer, a.copy(), b.copy(), scale_a, scale_b))
                expect(
                    got.shape == (m, n),
                    f"a bound for each element of the product, of the shape {(m, n)}; yours has {got.shape}",
                )
                at = np.unravel_index(np.argmin(got - error), error.shape)
                expect(
                    bool((got >= error).all()),
                    f"no error above the bound; a product of {k} terms is off by {error[at]:.4g}, and your bound is "
                    f"{got[at]:.4g}",
                )
                right = (
                    np.abs(a).sum(axis=1, keepdims=True) * scale_b / 2
                    + np.abs(b).sum(axis=0) * scale_a / 2
                    + k * scale_a * scale_b / 4
                )
                expect(
                    bool((got >= right * (1 - 1e-6)).all()),
                    f"{right.flat[0]:.4g} for the first element, whose {k} terms may all be rounded the worst way; "
                    f"your bound is {got.flat[0]:.4g}",
                )
                expect(
                    bool((got <= right * 1.01).all()),
                    f"a bound no larger than it need be, {right.flat[0]:.4g} for the first element; yours is "
                    f"{got.flat[0]:.4g}",
                )
