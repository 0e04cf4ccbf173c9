"""Checks for lab 02: a folded batch norm, an operation count, what to improve first."""

from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.exercises.engine.answers import call, for_all
from labkit.exercises.engine.checker import Lab
from labkit.exercises.engine.outcomes import expect, refuse
from labkit.exercises.engine.values import array_of_numbers, describe, expect_equal, parts

lab = Lab("02")


@lab.exercise(
    1,
    hints=(
        "Write the formula as y = s * x + t, with one s and t per channel. What are they?",
        "s = gamma / sqrt(variance + epsilon). A convolution with its weights scaled by s gives s * x.",
        "The weights are w * s, since NumPy broadcasts along the last dimension, the output channels. The bias is "
        "beta - mean * s.",
    ),
)
def fold(answer: Callable[..., Any]) -> None:
    """Check that one convolution with the folded weights equals convolution and batch norm."""
    from hypothesis import strategies as st

    tolerance = 1e-5  # float32 is within it, however the formula is written; float16 and 4 digits are not

    def decide(kernel: tuple[int, int], channels: tuple[int, int], epsilon: float, smallest: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        c_in, c_out = channels
        w = rng.normal(size=(*kernel, c_in, c_out)).astype("float32")
        gamma, beta, mean = (rng.normal(size=c_out).astype("float32") for _ in range(3))
        variance = rng.uniform(smallest, 2, size=c_out).astype("float32")
        result = call(answer, w, gamma, beta, mean, variance, epsilon)
        weights, bias = parts(result, 2, "fold(…) to return two things, the weights and the bias")
        weights = array_of_numbers(weights, "weights that are numbers")
        bias = array_of_numbers(bias, "a bias of numbers")
        expect(weights.shape == w.shape, f"weights with the shape of w, {w.shape}; yours have {weights.shape}")
        expect(bias.shape == (c_out,), f"a bias for each of the {c_out} output channels; its shape is {bias.shape}")
        scale = gamma.astype(float) / np.sqrt(variance.astype(float) + epsilon)
        # For an input of 0, only the bias remains.
        expect_equal(
            bias, beta - mean * scale, "the bias", tolerance, tolerance, because="batch norm's output for an input of 0"
        )
        # On a patch of the kernel's size, a convolution is one sum per output channel. Where large terms nearly cancel,
        # their rounding exceeds `tolerance`.
        patch = rng.normal(size=w.shape[:3])
        x = np.einsum("hwi,hwio->o", patch, w)
        expect_equal(
            np.einsum("hwi,hwio->o", patch, weights) + bias,
            scale * (x - mean) + beta,
            "the convolution with your weights and bias",
            rel=1e-3,
            abs=1e-3,
            because="as with the batch norm",
        )
        expect_equal(weights, w * scale, "the weights", tolerance, tolerance)

    decide((1, 1), (3, 5), 0.05, 0.1, 0)
    decide((2, 3), (4, 4), 0.001, 0.0, 1)
    length = st.integers(1, 4)
    for_all(
        decide,
        examples=30,
        kernel=st.tuples(length, length),
        channels=st.tuples(length, length),
        epsilon=st.sampled_from((0.001, 0.5)),
        smallest=st.sampled_from((0.0, 0.3)),
        seed=st.integers(0, 9),
    )


@lab.exercise(
    3,
    hints=(
        "How many elements does the output have? And how many terms does each one sum?",
        "mb * oc * oh * ow elements; ic * kh * kw terms each; two operations per term.",
        "2 * mb * oc * oh * ow * ic * kh * kw",
    ),
)
def flops(answer: Callable[..., Any]) -> None:
    """Check the count of two operations per term per element, even beyond 32 bits."""
    from hypothesis import strategies as st

    def decide(**case: int) -> None:
        label = f"flops({', '.join(f'{name}={value}' for name, value in case.items())})"
        expected = 2 * int(np.prod(list(case.values()), dtype=np.int64))
        result = call(answer, *case.values())
        expect_equal(result, expected, label, rel=1e-12, abs=0)
        try:
            result / 0.5  # as the next cell divides by milliseconds
        except (TypeError, ValueError):
            refuse(f"{label} to be an int or a float, to divide by milliseconds; it is {describe(result)}")

    names = ("mb", "ic", "oc", "oh", "ow", "kh", "kw")
    for case in (
        *((1, 1, 1, 1, 1, 1, 1), (64, 1, 32, 28, 28, 3, 3), (64, 32, 64, 14, 14, 3, 3), (2, 3, 5, 7, 11, 1, 5)),
        *((256, 512, 512, 28, 28, 3, 3), (3, 5, 7, 1001, 1003, 3, 3)),
    ):
        decide(**dict(zip(names, case, strict=True)))
    channels, side, kernel = st.integers(1, 1024), st.integers(1, 64), st.integers(1, 7)
    for_all(
        decide, examples=40, mb=st.integers(1, 256), ic=channels, oc=channels, oh=side, ow=side, kh=kernel, kw=kernel
    )


@lab.exercise(
    4,
    hints=(
        "At its roof, a convolution would take its milliseconds times its share. How much time would that save?",
        "It saves ms[name] * (1 - share[name]). max(ms, key=…) returns the name with the largest saving.",
        "name = max(ms, key=lambda name: ms[name] * (1 - share[name])); the step then takes step_ms minus the saving.",
    ),
)
def improve_first(answer: Callable[..., Any]) -> None:
    """Check for the layer that saves most, not always the slowest or the furthest from its roof."""
    from hypothesis import strategies as st

    def decide(ms: dict[str, float], share: dict[str, float], rest: float) -> None:
        step_ms = sum(ms.values()) + rest
        label = f"improve_first({ms}, {share}, {step_ms:g})"
        savings = {name: ms[name] * (1 - share[name]) for name in ms}
        best = max(savings.values())
        result = call(answer, ms, share, step_ms)
        name, factor = parts(result, 2, f"{label} to return two things, a name and a factor")
        expect(
            isinstance(name, str) and name in ms,
            f"{label} to begin with one of the names {', '.join(ms)}; it is {describe(name)}",
        )
        expect(
            savings[name] >= best - 1e-9,
            f"{label} to choose the convolution that saves most at its roof, {best:.2f} ms; {name} saves "
            f"{savings[name]:.2f}",
        )
        expect_equal(factor, step_ms / (step_ms - best), f"the factor of {label}", rel=1e-6, abs=0)

    for ms, share, rest in (
        ({"a": 1.0, "b": 4.0, "c": 5.0}, {"a": 0.1, "b": 0.5, "c": 0.9}, 2.0),
        ({"a": 0.5, "b": 0.25}, {"a": 0.8, "b": 0.1}, 0.0),
        ({"a": 2.0, "b": 3.0}, {"a": 1.2, "b": 0.9}, 1.0),  # above its roof: nothing to save
    ):
        decide(ms, share, rest)
    layer = st.tuples(st.integers(1, 80).map(lambda ms: ms / 8), st.integers(1, 15).map(lambda share: share / 16))
    for_all(
        lambda layers, rest: decide(
            {f"conv{number}": ms for number, (ms, _) in enumerate(layers, 1)},
            {f"conv{number}": share for number, (_, share) in enumerate(layers, 1)},
            rest,
        ),
        examples=40,
        layers=st.lists(layer, min_size=1, max_size=5),
        rest=st.sampled_from((0.0, 2.0, 20.0)),
    )
