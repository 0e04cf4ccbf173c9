"""Exercises of lab 04: a number from its bits, loss scaling, the range of codes, and an integer layer, also in C."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from labkit.exercises.engine.in_c import Case as Run
from labkit.exercises.engine.in_c import InC
from labkit.exercises.engine.on_ranks import Script
from labkit.exercises.engine.outcomes import expect
from labkit.exercises.engine.reference import Case, Reference, Result
from labkit.exercises.engine.values import describe, number, parts
from labkit.models import integer_net

EXERCISES: dict[int, Reference | InC] = {}


def _bits(e: int, f: int, sign: int, exponent: int, fraction: int) -> tuple[int, int, int]:
    return (sign << e | exponent % 2**e) << f | fraction % 2**f, e, f


EXERCISES[1] = Reference(
    cases=[
        _bits(e, f, sign, exponent, fraction)
        for sign in (0, 1)
        for e, f in ((5, 10), (8, 7), (8, 23), (5, 2), (4, 3))
        for exponent in (2 ** (e - 1) - 1, 1, -2, 0, -1)
        for fraction in (0, 1, -1)
    ],
    more=st.builds(_bits, *(st.integers(*ends) for ends in ((2, 8), (1, 23), (0, 1), (-2, 255), (-2, 2**23 - 1)))),
    case=lambda pattern, e, f: f"decode({pattern:#x}, {e}, {f})",
    returns=(Result(rel=1e-9, abs=0),),
    wrong={
        "normal numbers had no leading 1": {"1 + fraction / 2**f": "fraction / 2**f"},
        "the bias were 2 ** (e - 1)": {"bias = 2 ** (e - 1) - 1": "bias = 2 ** (e - 1)"},
        "every format had FP16's bias": {"bias = 2 ** (e - 1) - 1": "bias = 15"},
        "subnormal numbers had the exponent 0, not 1": {"2.0 ** (1 - bias)": "2.0 ** -bias"},
        "subnormal numbers kept the leading 1": {"* fraction / 2**f * 2": "* (1 + fraction / 2**f) * 2"},
        "only 0 were special, and not all exponents of 0": {"if exponent == 0": "if exponent == fraction == 0"},
        "an exponent of all ones were an ordinary one": {"if exponent == 2**e - 1": "if False"},
        "there were infinities, but no NaN": {" if fraction == 0 else np.nan": ""},
        "there were NaN, but no infinities": {"sign * np.inf if fraction == 0 else": ""},
        "there were no negative infinity": {"sign * np.inf": "np.inf"},
        "there were no sign": {"-1.0 if pattern >> (e + f) else 1.0": "1.0"},
        "the fraction had one bit less": {"pattern & (2**f - 1)": "pattern & (2**f - 2)"},
    },
    also=[{"2.0 ** (exponent - bias)": "2.0**exponent / 2**bias", "1.0 if pattern": "+1.0 if 0 < pattern"}],
    hints=(
        "Split it: sign = pattern >> (e + f), exponent = (pattern >> f) & (2**e - 1), fraction = pattern & (2**f - 1).",
        "A normal number is (1 + fraction / 2**f) * 2.0 ** (exponent - bias), where bias is 2 ** (e - 1) - 1.",
        "Exponent all ones: np.inf if fraction is 0, else np.nan. Exponent 0: fraction / 2**f * 2.0 ** (1 - bias). "
        "Everything else is normal. If the sign is 1, negate the value.",
    ),
)


def _settle(settle: Callable[..., Any], gradients: list[np.ndarray], *state: Any) -> tuple[Any, Any, Any]:
    """Return the true gradients side by side or None, the next scale, and the calm steps."""
    update, scale, calm = parts(settle(gradients, *state), 3, "three values: the update, the scale, the calm steps")
    if update is None:
        return None, scale, calm
    arrays = parts(update, len(gradients), f"a list of {len(gradients)} true gradients, or None")
    for array in arrays:
        hint = 'Convert before you divide: g.astype("float32") / scale.'
        expect(getattr(array, "dtype", "") == np.float32, f"float32 gradients; one is {describe(array)}", hint)
    return np.concatenate([np.ravel(array) for array in arrays]).astype(float), scale, calm


def _step(values: list[list[float]], scale: float, calm: int, remaining: int) -> tuple[Any, ...]:
    return [np.array([row], np.float16) for row in values], scale, calm, calm + remaining


SMALL, TINY, LARGE, BAD = [1.5, -0.25], [6e-8, 3.0], [65504.0, 65504.0], (np.inf, -np.inf, np.nan)
TRUE = 'g.astype("float32") / scale'
EXERCISES[2] = Reference(
    cases=[
        *(_step([SMALL], 8.0, 0, 10), _step([LARGE], 8.0, 0, 10)),
        *(_step([SMALL, TINY], 4096.0, 3, 7), _step([SMALL, TINY], 16.0, 9, 1)),
        *(_step([SMALL, TINY, [3.0, bad]], 1024.0, 9, remaining) for bad in BAD for remaining in (1, 3)),
        *(_step([[bad, 1.0], SMALL], 1024.0, 4, 2) for bad in BAD),
    ],
    more=st.builds(
        _step,
        st.lists(st.lists(st.sampled_from((*SMALL, *TINY, *LARGE, *BAD)), min_size=1), min_size=1, max_size=3),
        *(st.sampled_from((1.0, 0.25, 1000.0, 2.0**40)), st.integers(0, 20), st.integers(1, 3)),
    ),
    use=_settle,
    case=lambda gradients, scale, calm, patience: (
        f"settle({[g.tolist() for g in gradients]}, scale={scale:g}, calm={calm}, patience={patience})"
    ),
    returns=(Result("true gradients", abs=0), Result("next scale"), Result("calm steps")),
    wrong={
        "an overflow were not noticed": {"not all(np.isfinite(g).all() for g in gradients)": "False"},
        "NaN were no overflow": {"np.isfinite(g).all()": "not np.isinf(g).any()"},
        "infinities were no overflow": {"np.isfinite(g).all()": "not np.isnan(g).any()"},
        "minus infinity were no overflow": {"np.isfinite(g).all()": "(g < np.inf).all()"},
        "only the first gradient could overflow": {"for g in gradients)": "for g in gradients[:1])"},
        "gradients whose sum overflows were an overflow": {"np.isfinite(g).all()": "np.isfinite(g.sum())"},
        "an overflow left the scale as it is": {"scale / 2, 0": "scale, 0"},
        "an overflow were a calm step": {"scale / 2, 0": "scale / 2, calm + 1"},
        "an overflow left the count as it is": {"scale / 2, 0": "scale / 2, calm"},
        "gradients were divided in FP16": {TRUE: '(g / np.float16(min(scale, 65504))).astype("float32")'},
        "gradients were not divided by the scale": {TRUE: 'g.astype("float32")'},
        "the scale were never doubled": {"calm + 1 == patience": "False"},
        "the scale were doubled at each calm step": {"calm + 1 == patience": "True"},
        "the count went on after doubling": {"scale * 2, 0": "scale * 2, calm + 1"},
        "this step were not counted": {"true, scale, calm + 1": "true, scale, calm"},
    },
    also=[{TRUE: "np.float32(g) * np.float32(1 / scale)", "calm + 1 == patience": "calm + 1 >= patience"}],
    hints=(
        "First check whether all numbers in all gradients are finite: np.isfinite(g).all(). What has to happen if not?",
        "Not finite: return None, half the scale, and 0. Finite: convert to float32 before you divide.",
        'true = [g.astype("float32") / scale for g in gradients]; when calm + 1 reaches patience, return true, '
        "2 * scale, 0, else true, scale, calm + 1.",
    ),
)


def _excess(choose_high: Callable[..., Any], values: np.ndarray, bits: int) -> float:
    """Return the error in terms of the smallest that 100 values of `high` have; 1 if it is within the 10%."""

    def error(high: float) -> float:
        step = high / (2**bits - 1)
        return float(np.mean((np.clip(np.round(values / step), 0, 2**bits - 1) * step - values) ** 2))

    high = number(choose_high(values, bits), "high")
    expect(high > 0, f"a high above 0; it is {high:.3g}")
    ratio = error(high) / min(map(error, values.max() * np.arange(1, 101) / 100))
    return 1.0 if ratio <= 1.1 else ratio


def _activations(tail: float, bits: int, seed: int = 8) -> Case:
    rng = np.random.default_rng(seed)
    uniform = (rng.permutation(2000) + rng.random(2000)) / 1000  # stratified: luck alone could exceed 10% otherwise
    values = 2.0 ** (seed - 4) * np.maximum(-np.log(uniform), 0) ** tail
    return Case((values, bits), f"choose_high({len(values):,} values up to {values.max():.3g}, {bits})")


EXERCISES[3] = Reference(
    cases=[_activations(tail, bits) for tail in (1, 2) for bits in (8, 4, 2)]
    + [_activations(0.5, bits, seed) for bits in (3, 6) for seed in (0, 5)],
    use=_excess,
    returns=(Result("error, divided by the smallest possible,"),),
    wrong={
        "nothing were clipped": lambda values, bits: values.max(),
        "half of the values were clipped": lambda values, bits: np.median(values),
        "one value in 100 were clipped": lambda values, bits: np.percentile(values, 99),
        "clipped values had no error": {"(codes * scale - values)": "(codes * scale - values)[values <= high]"},
        "the largest error decided": {"np.mean": "np.max"},
    },
    also=[{"np.arange(1, 101) / 100": "np.linspace(0.004, 1, 250)"}],
    hints=(
        "Search for it: which values of high could be best, and what is the error of each?",
        "For one high: scale = high / (2**bits - 1), codes = np.clip(np.round(values / scale), 0, 2**bits - 1). Error?",
        "min(values.max() * np.arange(1, 101) / 100, key=error), where error(high) returns the mean squared error.",
    ),
)


def _floats(k: int, n: int, scale_in: float, scale_out: float, seed: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 0.1, (k, n)) * rng.uniform(0.2, 5, n), rng.normal(0, 0.5, n), scale_in, scale_out


ROUND, FACTOR = "np.round(bias / (scale_in * scale))", "scale_in * scale / scale_out"
EXERCISES[4] = Reference(
    cases=[
        (np.array([[0.5], [-1.27]]), np.array([0.3]), 0.1, 0.02),
        *(_floats(9, 4, 1 / 255, 0.01), _floats(64, 5, 0.02, 0.03, seed=1), _floats(3, 1, 4.0, 0.5, seed=2)),
    ],
    case=lambda weights, bias, scale_in, scale_out: (
        f"to_integers(weights of shape {weights.shape}, bias, scale_in={scale_in:.3g}, scale_out={scale_out:.3g})"
    ),
    returns=(
        *(Result(name, rel=0, abs=0, array=True) for name in ("codes", "biases")),
        Result("factors", rel=1e-5, array=True),
    ),
    wrong={
        "all columns shared a scale": {"max(axis=0)": "max() * np.ones_like(bias)"},
        "the largest weight had the code 128": {"/ 127": "/ 128"},
        "codes were unsigned, up to 255": {"/ 127": "/ 255"},
        "codes were cut off, not rounded": {"np.round(weights / scale)": "np.trunc(weights / scale)"},
        "biases were cut off, not rounded": {ROUND: "np.trunc(bias / (scale_in * scale))"},
        "the sums had the step of the outputs": {ROUND: "np.round(bias / scale_out)"},
        "the sums had the step of the weights": {ROUND: "np.round(bias / scale)"},
        "the sums had the step of the inputs": {ROUND: "np.round(bias / scale_in)"},
        "the factor turned sums into numbers, not into codes": {FACTOR: "scale_in * scale"},
        "the factor were upside down": {FACTOR: "scale_out / (scale_in * scale)"},
        "the factor left out the step of the inputs": {FACTOR: "scale / scale_out"},
        "the factor left out the steps of the weights": {FACTOR: "scale_in / scale_out * np.ones_like(bias)"},
    },
    also=[{"np.abs(weights).max(axis=0)": "np.maximum(weights.max(0), -weights.min(0))"}],
    hints=(
        "One column first. Which number does one step of its weights stand for, if the largest has the code 127?",
        "A sum counts in steps of scale_in * scale, and so must the bias. How many steps of scale_out is one of these?",
        "scale = np.abs(weights).max(axis=0) / 127; return np.round(weights / scale), np.round(bias / (scale_in * "
        "scale)), scale_in * scale / scale_out.",
    ),
)


def _codes(sums: Any, factor: Any, half: Any = 0.5) -> Any:
    return np.clip(np.floor(factor * sums + half), 0, 255)


def _layers() -> Iterator[Run]:
    """Yield layers with one product, with sums of over 16 bits, beyond both ends, and of the sizes of a network."""
    rng = np.random.default_rng(4)
    one = tuple(map(np.array, ([[3]], [[2]], [1], [1.0])))
    yield Run("1 code, 3, times 2, plus 1", one, (1, 1, 1), np.full((1, 1), 7.0))
    for rows, k, n, scale in ((2, 3, 4, 1 / 150), (3, 64, 20, 1 / 900), (7, 576, 64, 1 / 3000)):
        x, w = rng.integers(0, 256, (rows, k)), rng.integers(-127, 128, (n, k))
        x[0], w[0], bias = 255, 127, rng.integers(-9_000, 9_001, n)
        arrays = x, w, bias, (factor := np.asarray(scale * rng.uniform(0.9, 1.1, n), np.float32))
        yield Run(f"{rows} × {k} codes and {n} outputs", arrays, (rows, k, n), _codes(x @ w.T + bias, factor))


_PRODUCT = "in[k] * weights[n * K + k]"
_IN_C = functools.partial(
    InC,
    build=integer_net.build,
    cases=_layers,
    names={
        "sums had 16 bits": lambda x, w, b, f: _codes((x @ w.T + b).astype("int16"), f),
        "the bias were left out": lambda x, w, b, f: _codes(x @ w.T, f),
        "the bias were added after the factor": lambda x, w, b, f: _codes(x @ w.T, f, b + 0.5),
        "codes were cut off, not rounded": lambda x, w, b, f: _codes(x @ w.T + b, f, 0),
        "`in` had signed codes": lambda x, w, b, f: _codes(x.astype("int8").astype(int) @ w.T + b, f),
        "nothing were clipped": lambda x, w, b, f: np.trunc(f * (x @ w.T + b) + 0.5) % 256,
        "only numbers below 0 were clipped": lambda x, w, b, f: np.maximum(f * (x @ w.T + b) + 0.5, 0) // 1 % 256,
        "all outputs had the first factor": lambda x, w, b, f: _codes(x @ w.T + b, f[:1]),
    },
)
EXERCISES[5] = _IN_C(
    hints=(
        "A sum starts with the bias of output n, whose weights begin at weights + n * K. What is below 0 or above 255?",
        "sums[n] += in[k] * weights[n * K + k] for all k. Converting a float to an integer cuts off, so add 0.5f.",
        "for n: sums[n] = bias[n]; for k: sums[n] += in[k] * weights[n * K + k]; and for n: float y = factor[n] * "
        "sums[n] + 0.5f; y = y < 0 ? 0 : y > 255 ? 255 : y; out[n] = (int)y;",
    ),
    wrong=(
        ("sums had 16 bits", Script(f"sums[n] = (int16_t)(sums[n] + {_PRODUCT});", f"sums[n] += {_PRODUCT};")),
        ("the bias were left out", Script("= 0;", "= bias[n];")),
        ("the bias were added after", Script("factor[n] * (sums[n] - bias[n]) + bias[n] +", "factor[n] * sums[n] +")),
        ("cut off, not rounded", Script("sums[n];", "sums[n] + 0.5f;")),
        ("had signed codes", Script("(int8_t)in[k]", "in[k]")),
        ("the first factor", Script("factor[0]", "factor[n]")),
        ("nothing were clipped", Script("", "y = y < 0 ? 0 : y > 255 ? 255 : y;")),
        ("only numbers below 0", Script("", "y > 255 ? 255 :")),
        ("to have ", Script("weights[k * N + n]", "weights[n * K + k]")),
        ("heap-buffer-overflow", Script("k <= K", "k < K")),
        ("it does not compile", Script("sums[n] = bias[n]", "sums[n] = bias[n];")),
    ),
    right=(Script("int k = K; k--;", "int k = 0; k < K; k++"),),
)
EXERCISES[6] = _IN_C(
    hints=(
        "It is exercise 5's product, for one of eight outputs: x[k] times the weight k places after w + n * K.",
        "s[n] += x[k] * w[n * K + k];",
    ),
    wrong=(
        ("to have ", Script("s[n] = x", "s[n] += x")),
        ("to have ", Script("x[n]", "x[k]")),
        ("to have ", Script("w[n * K + k + 1]", "w[n * K + k]")),
        ("it does not compile", Script("s[n] += x[k] * w[n * K + k]", "s[n] += x[k] * w[n * K + k];")),
    ),
    right=(Script("s[n] = s[n] + w[k + K * n] * x[k];", "s[n] += x[k] * w[n * K + k];"),),
)
