"""Checks for lab 04: a float from its bits, loss scaling, the range of 8-bit codes, and an 8-bit matmul."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.answers import call, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import expect, hinting
from labkit.exercises.engine.values import describe, expect_equal, integer, is_tensor, number, parts

lab = Lab("04")


SPLIT_HINT, FORMULA_HINT, CASES_HINT = (
    "Split the pattern into three: sign = pattern >> (e + f), exponent = (pattern >> f) & (2**e - 1), and "
    "fraction = pattern & (2**f - 1). Which of the three cases is it?",
    "A normal number is (1 + fraction / 2**f) * 2.0 ** (exponent - bias), where bias is 2 ** (e - 1) - 1. If the "
    "exponent's bits are all 0, the leading 1 becomes 0, and the exponent counts as 1.",
    "Exponent all ones: math.inf if fraction is 0, else math.nan. Exponent 0: fraction / 2**f * 2.0 ** (1 - bias). "
    "Everything else is normal. If the sign is 1, negate the value.",
)
HINT_BY_KIND = {"subnormal": FORMULA_HINT, "an infinity": CASES_HINT, "not a number": CASES_HINT}


@lab.exercise(1, hints=(SPLIT_HINT, FORMULA_HINT, CASES_HINT))
def decode(answer: Callable[..., Any]) -> None:
    """Check against NumPy's values of the same bits, in four formats, and a reference for any number of bits."""
    from ml_dtypes import bfloat16, float8_e5m2  # comes with TensorFlow; few commands need it

    def decide(pattern: int, e: int, f: int, expected: float) -> None:
        label, kind = f"decode({pattern:#x}, {e}, {f})", _kind_of_float(pattern, e, f)
        with hinting(HINT_BY_KIND.get(kind, "")):
            # Every value is exact in double precision, so rounding is no excuse.
            expect_equal(call(answer, pattern, e, f), expected, f"{label}, {kind},", rel=1e-9, abs=0)

    formats = ((np.float16, np.uint16, 5, 10), (bfloat16, np.uint16, 8, 7), (np.float32, np.uint32, 8, 23))
    for dtype, pattern_dtype, e, f in (*formats, (float8_e5m2, np.uint8, 5, 2)):
        one = (2 ** (e - 1) - 1) << f
        infinite = (2**e - 1) << f
        smallest_normal = 1 << f
        patterns = [one, one + 1, one + (1 << f), one - 3, smallest_normal, infinite - 1, 0]  # normal, and 0
        patterns += [1, smallest_normal - 1, 2]  # subnormal
        patterns += [infinite, infinite + 1]
        sign = 1 << (e + f)
        for pattern in [*patterns, *(pattern | sign for pattern in patterns)]:
            decide(pattern, e, f, float(np.array(pattern, pattern_dtype).view(dtype)))

    def decide_on_parts(e: int, f: int, sign: int, exponent: int, fraction: int) -> None:
        exponent, fraction = exponent % 2**e, fraction % 2**f
        if exponent == 2**e - 1:
            magnitude = math.nan if fraction else math.inf
        else:
            magnitude = math.ldexp(fraction + (2**f if exponent else 0), max(exponent, 1) - (2 ** (e - 1) - 1) - f)
        decide((sign << e | exponent) << f | fraction, e, f, -magnitude if sign else magnitude)

    for exponent in (0, 7, 14, 15):
        decide_on_parts(4, 3, sign=1, exponent=exponent, fraction=1)
    for_all(
        decide_on_parts,
        e=st.integers(2, 8),
        f=st.integers(1, 23),
        sign=st.integers(0, 1),
        exponent=st.integers(-2, 255),  # modulo 2**e: -1 is all ones
        fraction=st.integers(-2, 2**23 - 1),
    )


def _kind_of_float(pattern: int, e: int, f: int) -> str:
    exponent, fraction = (pattern >> f) % 2**e, pattern % 2**f
    if exponent == 2**e - 1:
        return "not a number" if fraction else "an infinity"
    if exponent == 0:
        return "subnormal" if fraction else "a zero"
    return "a negative number" if pattern >> (e + f) else "a normal number"


FINITE_HINT, TRUE_HINT, CALM_HINT = (
    "First check whether every number in every gradient is finite: np.isfinite(g).all(). What has to happen if not?",
    "Not finite: return None, half the scale, and 0. Finite: convert each gradient to float32 before you divide by "
    "the scale, or small gradients vanish again. The step counts as calm.",
    'true = [g.astype("float32") / scale for g in gradients]; when calm + 1 reaches patience, return '
    "true, 2 * scale, 0, else true, scale, calm + 1.",
)


@lab.exercise(2, hints=(FINITE_HINT, TRUE_HINT, CALM_HINT))
def settle(answer: Callable[..., Any]) -> None:
    """Check that gradients are unscaled in FP32, overflows skipped, and the scale doubled after enough calm steps."""

    def decide(gradients: list[np.ndarray], scale: float, calm: int, patience: int) -> None:
        result = call(answer, gradients, scale, calm, patience=patience)  # as in the notebook's loop
        true, next_scale, next_calm = parts(
            result, 3, "three things, the gradients or None, the scale and the calm steps"
        )
        case = f"with scale {scale:g}, {calm} calm steps before and patience {patience}"
        next_scale = number(next_scale, f"the next scale {case}")
        next_calm = integer(next_calm, f"the calm steps {case}")
        overflows = [(index, g[~np.isfinite(g)][0]) for index, g in enumerate(gradients) if not np.isfinite(g).all()]
        if overflows:
            index, bad = overflows[0]
            expect(
                true is None,
                f"None, since gradient {index} contains {bad} and the step must be skipped; it returned "
                f"{describe(true)}",
                FINITE_HINT,
            )
            with hinting(TRUE_HINT):
                expect_equal(
                    next_scale, scale / 2, "the next scale", because=f"half of scale {scale:g} after an overflow"
                )
                expect_equal(next_calm, 0, "the calm steps after an overflow")
            return
        expect(
            true is not None,
            f"the gradients of a step in which everything is finite, such as {_as_text(gradients)}; it returned None",
            FINITE_HINT,
        )
        with hinting(TRUE_HINT):
            true = parts(true, len(gradients), f"a list as long as gradients, {len(gradients)}")
            for index, (g, unscaled) in enumerate(zip(gradients, true, strict=True)):
                unscaled = unscaled.numpy() if is_tensor(unscaled) else unscaled
                label = f"gradient {index} of {_as_text(gradients)}, {case},"
                expect(
                    isinstance(unscaled, np.ndarray | np.generic) and unscaled.dtype == np.float32,
                    f"{label} to be a float32 array; it is {describe(unscaled)}",
                )
                expect_equal(unscaled, g.astype("float64") / scale, label, abs=0)
        doubled = calm + 1 == patience
        scale_reason, calm_reason = (
            (f"twice the scale, at calm step {calm + 1}", "the count restarts when the scale is doubled")
            if doubled
            else (f"unchanged until calm step {patience}", "this step is calm too")
        )
        with hinting(CALM_HINT):
            expect_equal(next_scale, 2 * scale if doubled else scale, f"the next scale {case}", because=scale_reason)
            expect_equal(next_calm, 0 if doubled else calm + 1, f"the calm steps {case}", because=calm_reason)

    half = np.float16
    gradients = [np.array([[1.5, -0.25]], half), np.array([6e-8, 3.0], half)]
    for scale, calm in ((8.0, 0), (4096.0, 3), (16.0, 9)):
        decide(gradients, scale, calm, 10)
    decide([np.array([[65504.0, 65504.0]], half)], 8.0, 0, 10)  # finite, but their sum is not
    for bad in (math.inf, -math.inf, math.nan):
        for index in (0, 1):
            overflowed = [g.copy() for g in gradients]
            overflowed[index].flat[1] = bad
            decide(overflowed, 1024.0, 9, 10)

    def decide_on_lists(rows: list[list[float]], scale: float, calm: int, remaining: int) -> None:
        decide([np.array([row], half) for row in rows], scale, calm, calm + remaining)

    value = st.sampled_from((1.0, 0.0, -0.25, 6e-8, 0.1, 65504.0, -65504.0, math.inf, -math.inf, math.nan))
    finite = value.filter(math.isfinite)
    for_all(
        decide_on_lists,
        rows=st.lists(st.lists(finite, min_size=1, max_size=4), min_size=1, max_size=3)
        | st.lists(st.lists(value, min_size=1, max_size=4), min_size=1, max_size=3),
        scale=st.sampled_from((1.0, 0.25, 2.0, 1000.0, 2.0**15, 2.0**40)),
        calm=st.integers(0, 20),
        remaining=st.integers(1, 3),
    )


def _as_text(gradients: list[np.ndarray]) -> str:
    return str([g.tolist() for g in gradients])


ERROR_HINT = (
    "For one high: scale = high / (2**bits - 1), codes = np.clip(np.round(values / scale), 0, 2**bits - 1), and the "
    "error is np.mean((codes * scale - values) ** 2). Which high gives the smallest?"
)
ERROR_TOLERANCE = 1.1  # relative to the smallest error, as the exercise says


@lab.exercise(
    3,
    hints=(
        "Search for it: which values of high could be best, and what is the error of each?",
        ERROR_HINT,
        "min(values.max() * np.arange(1, 101) / 100, key=error), where error(high) returns the mean squared error.",
    ),
)
def choose_high(answer: Callable[..., Any]) -> None:
    """Check for an error near the smallest, for activations with and without a long tail, in many and few bits."""

    def decide(tail: float, bits: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        uniform = (rng.permutation(2000) + rng.random(2000)) / 1000  # stratified: luck alone could exceed 10% otherwise
        values = 2.0 ** (seed - 4) * np.maximum(-np.log(uniform), 0) ** tail
        high = number(call(answer, values, bits), f"the high for {bits} bits")
        case = f"for {bits} bits and 2,000 activations up to {values.max():.3g}"
        expect(high > 0, f"a high above 0 {case}; it is {high:.3g}")
        highs = values.max() * np.arange(1, 101) / 100
        errors = [_clipping_error(values, candidate, bits) for candidate in highs]
        best, error = min(errors), _clipping_error(values, high, bits)
        effect = "clips too much" if high < highs[np.argmin(errors)] else "makes the steps too wide"
        expect(
            error <= ERROR_TOLERANCE * best,
            f"a mean squared error near {best:.3g} {case}, as with high = {highs[np.argmin(errors)]:.3g}; with yours, "
            f"{high:.3g}, it is {error:.3g}: that {effect}",
        )

    for tail in (1, 2):
        for bits in (8, 4, 2):
            decide(tail, bits, seed=8)
    for_all(decide, examples=20, tail=st.sampled_from((0.5, 1, 2)), bits=st.integers(2, 8), seed=st.integers(0, 9))


def _clipping_error(values: np.ndarray, high: float, bits: int) -> float:
    scale = high / (2**bits - 1)
    return float(np.mean((np.clip(np.round(values / scale), 0, 2**bits - 1) * scale - values) ** 2))


SUMS_HINT, PRODUCT_HINT = (
    "In NumPy, a matmul of uint8 and int8 has dtype int16, which is too small for the sums. Convert both "
    'to the dtype of the sums before you multiply them: .astype("int32").',
    'sums = a.astype("int32") @ b.astype("int32"). The true numbers are scale_a * (a - zero_a) and scale_b * b: '
    "expand the product. Which term remains besides scale_a * scale_b * sums?",
)


@lab.exercise(4, hints=(SUMS_HINT, PRODUCT_HINT, 'scale_a * scale_b * (sums - zero_a * b.astype("int32").sum(axis=0))'))
def int8_product(answer: Callable[..., Any]) -> None:
    """Check for exact 32-bit sums, and for the product of the true numbers, even with a scale per column."""

    def decide(m: int, k: int, n: int, zero: int, per_column: bool, seed: int = 0, scale_a: float = 0.5) -> None:
        rng = np.random.default_rng(seed)
        a, b = rng.integers(0, 256, (m, k), "uint8"), rng.integers(-127, 128, (k, n), "int8")
        a[0], b[:, 0] = 255, 127  # the largest possible sum
        scale_b = rng.uniform(0.01, 0.1, n) if per_column else 0.02
        result = call(answer, a, b, zero, scale_a, scale_b)
        sums, product = parts(result, 2, "two things, the sums and the product")
        operands = f"of {m} × {k} and {k} × {n} codes"
        exact = a.astype("int64") @ b.astype("int64")
        with hinting(SUMS_HINT):
            terms = "1 product" if k == 1 else f"{k} products"
            expect_equal(sums, exact, f"the sums {operands}", rel=0, abs=0, because=f"sums of {terms}")
            dtype = getattr(sums, "dtype", None)
            expect(dtype == np.int32, f"int32 sums, as the CPU computes them; yours are {dtype or describe(sums)}")
        shifted = a.astype(float) - zero
        magnitude = (
            scale_a * (a.astype(float) + zero) @ np.abs(scale_b * b)
        )  # of the summed terms, which rounding scales with
        with hinting(PRODUCT_HINT):
            expect_equal(
                product,
                scale_a * shifted @ (scale_b * b),
                f"the product {operands}",
                rel=1e-5,
                abs=1e-6 * magnitude.max(),
                because=f"zero_a = {zero}, {'one scale_b per column' if per_column else 'one scale_b'}",
            )

    for m, k, n in ((3, 1, 2), (3, 64, 2), (2, 1001, 3)):
        for zero in (0, 131):
            for per_column in (False, True):
                decide(m, k, n, zero, per_column)
    small = st.integers(1, 4)
    for_all(
        decide,
        m=small,
        k=st.integers(1, 12),
        n=small,
        zero=st.integers(0, 255),
        per_column=st.booleans(),
        seed=st.integers(0, 99),
        scale_a=st.sampled_from((0.003, 0.1, 2.0)),
    )
